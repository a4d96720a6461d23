"""A GEMM and the windows that read it, in bands: the same results, and what is between stays in a part."""

from dataclasses import replace

import numpy as np
import pytest
from graph_cases import f32, floats
from native import every_target, run_native

from tilewright.families.bands.cost import BandForm, apart_cycles, banded_cycles, bands, gain, windows_cycles
from tilewright.families.bands.match import try_band_chain
from tilewright.families.bands.space import bands_space, try_form
from tilewright.families.prepare import prepared
from tilewright.graph.build import GraphBuilder
from tilewright.graph.passes import prepare
from tilewright.graph.passes.lower import lower_graph
from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    Buffer,
    Expr,
    as_index,
    const,
    maximum,
    select,
)
from tilewright.ops.core.activation import Relu
from tilewright.ops.core.conv import Conv
from tilewright.ops.core.window import Window
from tilewright.schedule.find import find_block, loops_above
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps.fill_border import FillBorder
from tilewright.schedule.steps.join_funcs import JoinFuncs
from tilewright.schedule.trace import replay
from tilewright.search.default import choose_schedule, make_request, schedule_func
from tilewright.search.join import join_funcs
from tilewright.search.layouts import find_images, lay_out
from tilewright.support.errors import ScheduleError
from tilewright.support.program import leaves
from tilewright.target.target import AVX2, AVX512, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.compare import same_func
from tilewright.tir.func import Call, Func, Module, single
from tilewright.tir.interp import run_func
from tilewright.tir.pipeline import lower_func
from tilewright.tir.stmt import For, LoopKind, blocks
from tilewright.tir.verify import verify_func

F32 = DType.F32


def relu(x: Expr) -> Expr:
    return maximum(x, const(0, F32))


def gemm(b: FuncBuilder, x: Buffer, u: Buffer) -> Buffer:
    made = (*x.shape[:3], u.shape[1])
    acc = b.reduce("acc", made, (u.shape[0],), lambda n, h, w, c, i: (x[n, h, w, i], u[i, c]))
    return b.compute("t", made, lambda n, h, w, c: relu(acc[n, h, w, c]))


def windows(b: FuncBuilder, t: Buffer, v: Buffer, stride: int) -> Buffer:
    kernel, border = v.shape[1], v.shape[1] // 2
    images, size, width, channels = t.shape
    out = (images, (size - 1) // stride + 1, (width - 1) // stride + 1, channels)

    def padded(n: Expr, h: Expr, w: Expr, c: Expr) -> Expr:
        low = as_index(border)
        inside = logical_and(low <= h, h < size + border, low <= w, w < width + border)
        return select(inside, t[n, h - border, w - border, c], const(0, F32))

    p = b.compute("p", (images, *((n - 1) * stride + kernel for n in out[1:3]), channels), padded)
    total = b.reduce(
        "total",
        out,
        (kernel, kernel),
        lambda n, h, w, c, r, s: (p[n, h * stride + r, w * stride + s, c], v[c, r, s]),
    )
    return b.compute("Y", out, lambda n, h, w, c: relu(total[n, h, w, c]))


def chain(size: int, width: int, k: int, channels: int, kernel: int, stride: int, images: int = 1) -> Func:
    """Y = relu(windows of the padded relu(X · U)), channels last."""
    b = FuncBuilder("chain")
    x, u = b.param("X", (images, size, width, k), F32), b.param("U", (k, channels), F32)
    v = b.param("V", (channels, kernel, kernel), F32)
    return b.finish(windows(b, gemm(b, x, u), v, stride))


def pair(between: tuple[int, ...] = (1, 8, 8, 16)) -> Module:
    """The same in two Funcs."""
    x, u = Buffer("X", (*between[:3], 4), F32), Buffer("U", (4, between[3]), F32)
    f = FuncBuilder("f", "f_")
    first = f.finish(t := gemm(f, f.use(x), f.use(u)))
    g = FuncBuilder("g", "g_")
    v = Buffer("V", (between[3], 3, 3), F32)
    second = g.finish(y := windows(g, g.use(t), g.use(v), 1))
    program = (Call("f", first.params), Call("g", second.params))
    return Module((first, second), program, (x, u, v), (y,), (), (t,))


def integers(func: Func) -> list[np.ndarray]:
    """Small ones: every order of a sum gives the same bits."""
    rng = np.random.default_rng(0)
    return [rng.integers(-2, 3, p.shape).astype(np.float32) for p in func.params if p not in func.outputs]


SHAPES = [
    (8, 8, 4, 16, 3, 1),
    (8, 8, 4, 16, 3, 2),
    (9, 7, 5, 24, 3, 2),
    (6, 11, 3, 16, 5, 1),
    (7, 7, 8, 40, 5, 2),
    (4, 6, 8, 16, 3, 1, 3),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@every_target
def test_bands_mean_the_same(shape: tuple[int, ...], target: Target) -> None:
    func = chain(*shape)
    space = bands_space(make_request(func, target, frozenset()))
    assert space is not None
    arrays = integers(func)
    (want,) = run_func(func, *arrays)
    points, _ = space.ranked()
    if not len(points) and target is AVX512:
        pytest.skip("channels are no whole vectors of 64 bytes")
    for point in {0, len(points) - 1}:
        scheduled = space.build(space.decisions(points[point]))
        built = scheduled.module.funcs[0]
        verify_func(built)
        np.testing.assert_array_equal(run_func(built, *arrays)[0], want)
        np.testing.assert_array_equal(run_native(built, arrays, target)[0], want)


def test_the_default_schedule_is_in_bands_and_replays() -> None:
    func = chain(16, 16, 8, 32, 3, 1)
    s = schedule_func(func, AVX2)
    assert any(n.kind is LoopKind.PARALLEL and len(list(blocks(n))) > 3 for n in _loops(s.func))
    assert same_func(replay(single(func), s.trace).funcs[0], s.func)


def _loops(func: Func) -> list[For]:
    stmts = getattr(func.body, "stmts", (func.body,))
    return [n for n in stmts if isinstance(n, For)]


def test_what_is_between_is_no_larger_than_a_band() -> None:
    func = chain(16, 16, 8, 32, 3, 2)
    space = bands_space(make_request(func, AVX2, frozenset()))
    assert space is not None
    built = space.build({"rows": 4, "channels": 16}).module.funcs[0]
    phases, shared = lower_func(built)
    assert {b.name for b in shared} == {"acc_U_reindex", "total_V_reindex"}  # both made of constants
    kernel = str(phases[-1].func)
    assert (
        'alloc(f32[1, 9, 17, 16], "local") as p:' in kernel
    )  # 4 rows two apart and a window of 3, of 16 channels


def test_borders_are_filled_in_vectors() -> None:
    """A model has its channels first, and so has the block of the border: its loop over channels is outside."""
    b = GraphBuilder()
    window = Window((5, 5), (1, 1), (1, 1), (2, 2), (2, 2))
    pixel = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    wide = b.apply(Conv(pixel), b.input("x", f32(1, 16, 3, 96)), b.constant("u", floats(48, 16, 1, 1)))
    made = b.apply(Conv(window, 48), b.apply(Relu(), wide), b.constant("v", floats(48, 1, 5, 5)))
    module, _ = join_funcs(lower_graph(prepare(b.finish(made))), AVX2)
    module, _ = lay_out(module, find_images(module))
    (func,) = [f for f in module.funcs if len(f.params) == 4]
    chosen = choose_schedule(func, AVX2, frozenset(c.buffer.name for c in module.constants))
    assert chosen.family == "bands"
    scheduled = chosen.draft.func
    fills = [b for b in blocks(scheduled.body) if "pad_fill" in b.name]
    assert fills
    for fill in fills:
        assert loops_above(scheduled, fill)[-1].kind is LoopKind.VECTORIZED


def test_bands_do_not_ask_inside_of_tiles() -> None:
    func = chain(16, 16, 8, 32, 3, 2)
    space = bands_space(make_request(func, AVX2, frozenset()))
    assert space is not None
    phases, _ = lower_func(space.build({"rows": 4, "channels": 16}).module.funcs[0])
    assert "select" not in str(phases[-1].func)


def test_a_chain_by_numbers() -> None:
    found = try_band_chain(prepared(chain(9, 7, 5, 24, 3, 2, 2)).func)
    assert found is not None
    want = BandForm(
        images=2,
        rows=5,
        channels=24,
        stride=2,
        reach=3,
        in_rows=9,
        in_columns=7,
        wide_columns=9,
        k=5,
        columns=4,
        taps=(3, 3),
        column_stride=2,
    )
    assert try_form(found) == want
    assert want.needed(5) == 11


def test_others_are_no_chain() -> None:
    b = FuncBuilder("f")
    x, u = b.param("X", (1, 8, 8, 4), F32), b.param("U", (4, 16), F32)
    t = gemm(b, x, u)
    v = b.param("V", (16, 3, 3), F32)
    y = windows(b, t, v, 1)
    also = b.compute("also", t.shape, lambda *i: t[i] + 1)  # what is between is needed elsewhere
    assert try_band_chain(prepared(b.finish(y, also)).func) is None


# ------------------------------------------------------------------------------------------------------------- cost


def test_bands_pay_where_what_is_between_is_large() -> None:
    large = BandForm(1, 56, 96, 2, 3, 112, 112, 113, 16)
    assert gain(large, AVX2) > 0.03
    height, width = min(bands(large, AVX2), key=lambda p: banded_cycles(large, *p, AVX2))
    assert large.block_bytes(height, width) < AVX2.machine.l2_bytes
    assert large.needed(height) < 1.1 * height * large.stride  # few rows twice


def test_windows_of_few_channels_wait_for_their_sums() -> None:
    form = BandForm(1, 3, 88, 1, 5, 3, 3, 7, 16, columns=3, taps=(5, 5))
    assert windows_cycles(form, 8, AVX2) > windows_cycles(form, 88, AVX2)
    wide = replace(form, columns=96)  # here neighbours fill the pipeline
    assert windows_cycles(wide, 8, AVX2) == windows_cycles(wide, 88, AVX2)


def test_rows_that_two_bands_need_cost_twice() -> None:
    form = BandForm(1, 16, 32, 1, 3, 16, 16, 18, 64)
    costs = [banded_cycles(form, rows, 16, AVX2) for rows in (16, 8, 4, 2, 1)]
    assert costs == sorted(costs)
    assert apart_cycles(form, AVX2) < np.inf


# ------------------------------------------------------------------------------------------------------------- join


def test_joined_funcs_compute_the_same() -> None:
    module = pair()
    joined = JoinFuncs("f", "g").apply(module)
    (func,) = joined.funcs
    assert func.name == "f__g" and not joined.temps
    assert [p.name for p in func.params] == ["X", "U", "V", "g_Y"]
    assert [(c.func, c.args) for c in leaves(joined.program) if isinstance(c, Call)] == [
        ("f__g", func.params)
    ]
    arrays = integers(func)
    (between,) = run_func(module.funcs[0], *arrays[:2])
    np.testing.assert_array_equal(
        run_func(func, *arrays)[0], run_func(module.funcs[1], between, arrays[2])[0]
    )


def test_a_buffer_that_others_read_stays_a_param() -> None:
    module = pair()
    b = FuncBuilder("h", "h_")
    t = b.use(module.temps[0])
    third = b.finish(out := b.compute("Z", t.shape, lambda *i: t[i] * 2))
    program = (*module.program, Call("h", third.params))
    more = Module((*module.funcs, third), program, module.inputs, (*module.outputs, out), (), module.temps)
    joined = JoinFuncs("f", "g").apply(more)
    assert module.temps[0] in joined.func("f__g").outputs and joined.temps == module.temps
    assert join_funcs(more, AVX2)[1] == ()


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("g", "f", "not called once each"),
        ("f", "x", "not called once each"),
        ("f", "h", "next to each other"),
    ],
)
def test_funcs_that_cannot_be_joined(first: str, second: str, message: str) -> None:
    module = pair()
    b = FuncBuilder("h", "h_")
    x = b.use(module.inputs[0])
    third = b.finish(out := b.compute("Z", x.shape, lambda *i: x[i] * 2))
    program = (*module.program, Call("h", third.params))
    more = Module((*module.funcs, third), program, module.inputs, (*module.outputs, out), (), module.temps)
    with pytest.raises(ScheduleError, match=message):
        JoinFuncs(first, second).apply(more)


def test_what_does_not_pay_is_not_joined() -> None:
    large = pair((1, 56, 56, 96))
    assert join_funcs(large, AVX2)[1] == (JoinFuncs("f", "g"),)
    tiny = pair((1, 2, 2, 8))
    assert join_funcs(tiny, AVX2)[1] == (JoinFuncs("f", "g"),)  # a kernel less


# ----------------------------------------------------------------------------------------------------------- border


def padding(size: int, width: int) -> Func:
    b = FuncBuilder("pad")
    x = b.param("X", (size, width), F32)
    low = as_index(1)

    def padded(h: Expr, w: Expr) -> Expr:
        inside = logical_and(low <= h, h < size + 1, low <= w, w < width + 1)
        return select(inside, x[h - 1, w - 1], const(0, F32))

    return b.finish(b.compute("P", (size + 2, width + 3), padded, axes=["h", "w"]))


def test_the_border_is_filled_and_the_inside_copied() -> None:
    func = padding(5, 6)
    s = Schedule(func)
    s.fill_border("P", "P_h")
    verify_func(s.func)
    sides = FillBorder("P", "P_h").blocks(s.func)
    assert [b.name for b in sides] == [f"P_fill{n}" for n in range(4)]
    extents = [[n.extent for n in loops_above(s.func, b)] for b in (*sides, find_block(s.func, "P"))]
    assert extents == [[1, 9], [1, 9], [7, 1], [7, 2], [5, 6]]
    assert "select" not in str(s.func)
    (x,) = integers(func)
    np.testing.assert_array_equal(run_func(s.func, x)[0], run_func(func, x)[0])


def test_a_predicate_chooses_the_side_of_a_tile() -> None:
    func = padding(5, 6)
    s = Schedule(func)
    _, inner = s.split("P_h", (None, 3))
    s.fill_border("P", inner)
    verify_func(s.func)
    (x,) = integers(func)
    np.testing.assert_array_equal(run_func(s.func, x)[0], run_func(func, x)[0])


def test_a_border_of_a_block_that_is_vectorized() -> None:
    s = Schedule(padding(5, 8))
    s.vectorize("P_w")
    with pytest.raises(ScheduleError, match="not a plain loop around P alone"):
        s.fill_border("P", "P_h")


def test_a_follower_stays_if_another_block_fills_after_its_loop_began() -> None:
    """`p` may move under a loop of `acc` behind a fill; not if the fill is there too."""
    b = FuncBuilder("f")
    x, u = b.param("X", (1, 4, 4, 2), F32), b.param("U", (2, 8), F32)
    t = gemm(b, x, u)
    v = b.param("V", (8, 3, 3), F32)
    s = Schedule(b.finish(windows(b, t, v, 1)))
    s.compute_inline("t")
    s.fill_border("p", "p_n")  # stands behind `acc`
    with pytest.raises(ScheduleError, match="two writers"):
        s.reverse_compute_at("p", "acc_c")

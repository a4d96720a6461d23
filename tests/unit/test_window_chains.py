"""Pools behind a GEMM, and pointwise convolutions behind windows, in bands: the same results as one after the other."""

from dataclasses import replace

import numpy as np
import pytest
from native import best_target, run_native

from tilewright.families.bands import space as bands_rule
from tilewright.families.bands.cost import BandForm, apart_cycles, banded_cycles, best_bands, gain
from tilewright.families.bands.match import try_band_chain
from tilewright.families.bands.space import bands_space, try_form
from tilewright.families.chain.space import chain_space
from tilewright.families.prepare import prepared
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
from tilewright.schedule.steps.join_funcs import JoinFuncs
from tilewright.schedule.trace import replay
from tilewright.search.default import make_request, schedule_as, schedule_func, spaces
from tilewright.search.join import join_funcs
from tilewright.support.errors import ScheduleError
from tilewright.target.target import AVX2, AVX512, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.compare import same_func
from tilewright.tir.func import Call, Func, Module, single
from tilewright.tir.interp import run_func
from tilewright.tir.pipeline import lower_func
from tilewright.tir.stmt import For, LoopKind, blocks
from tilewright.tir.verify import verify_func

F32 = DType.F32
LOWEST = float("-inf")


def relu(x: Expr) -> Expr:
    return maximum(x, const(0, F32))


def border(b: FuncBuilder, name: str, x: Buffer, size: tuple[int, int], low: int, fill: float) -> Buffer:
    """`x`, channels last, inside a frame of `fill`; itself if no more of it is read."""
    images, height, width, channels = x.shape
    if not low and size[0] <= height and size[1] <= width:
        return x

    def padded(n: Expr, h: Expr, w: Expr, c: Expr) -> Expr:
        start = as_index(low)
        inside = logical_and(start <= h, h < height + low, start <= w, w < width + low)
        return select(inside, x[n, h - low, w - low, c], const(fill, F32))

    return b.compute(name, (images, *size, channels), padded)


def places(x: Buffer, kernel: int, stride: int, low: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """How many windows there are, and how much of the padded image they read."""
    many = tuple((n + 2 * low - kernel) // stride + 1 for n in x.shape[1:3])
    read = tuple((n - 1) * stride + kernel for n in many)
    return (many[0], many[1]), (read[0], read[1])


def convolution(b: FuncBuilder, x: Buffer, u: Buffer, stride: int, *, bare: bool = False) -> Buffer:
    """By filters [kernel, kernel, inputs, outputs], with half a kernel of zeros around."""
    kernel = u.shape[0]
    many, read = places(x, kernel, stride, kernel // 2)
    p = border(b, "x_pad", x, read, kernel // 2, 0.0)
    made = (x.shape[0], *many, u.shape[3])
    acc = b.reduce(
        "acc",
        made,
        u.shape[:3],
        lambda n, h, w, c, r, s, i: (p[n, h * stride + r, w * stride + s, i], u[r, s, i, c]),
    )
    return acc if bare else b.compute("t", made, lambda n, h, w, c: relu(acc[n, h, w, c]))


def pool(b: FuncBuilder, t: Buffer, kernel: int, stride: int, low: int, kind: str = "max") -> Buffer:
    many, read = places(t, kernel, stride, low)
    p = border(b, "p", t, read, low, LOWEST if kind == "max" else 0.0)
    out = (t.shape[0], *many, t.shape[3])
    best = b.reduce(
        "best",
        out,
        (kernel, kernel),
        lambda n, h, w, c, r, s: p[n, h * stride + r, w * stride + s, c],
        kind,
    )
    return best if kind == "max" else b.compute("mean", out, lambda *i: best[i] / const(kernel**2, F32))


def mean(b: FuncBuilder, t: Buffer) -> Buffer:
    out = (t.shape[0], t.shape[3], 1, 1)
    total = b.reduce("total", out, t.shape[1:3], lambda n, c, _, __, h, w: t[n, h, w, c])
    return b.compute("mean", out, lambda *i: total[i] / const(t.shape[1] * t.shape[2], F32))


def filtered(b: FuncBuilder, t: Buffer, v: Buffer, stride: int) -> Buffer:
    """Depthwise by filters [channels, kernel, kernel]."""
    kernel = v.shape[1]
    many, read = places(t, kernel, stride, kernel // 2)
    p = border(b, "p", t, read, kernel // 2, 0.0)
    out = (t.shape[0], *many, t.shape[3])
    total = b.reduce(
        "total",
        out,
        (kernel, kernel),
        lambda n, h, w, c, r, s: (p[n, h * stride + r, w * stride + s, c], v[c, r, s]),
    )
    return b.compute("d", out, lambda *i: relu(total[i]))


def projected(b: FuncBuilder, d: Buffer, z: Buffer, residual: Buffer | None = None) -> Buffer:
    out = (*d.shape[:3], z.shape[1])
    sums = b.reduce("sums", out, (z.shape[0],), lambda n, h, w, o, c: (d[n, h, w, c], z[c, o]))
    return b.compute("Y", out, lambda *i: sums[i] if residual is None else sums[i] + residual[i])


def pooled(
    size: tuple[int, int, int, int],
    channels: int,
    taps: tuple[int, int],
    window: tuple[int, int, int],
    kind: str = "max",
    *,
    bare: bool = False,
) -> Func:
    """A pool behind a convolution of an image [n, h, w, k]."""
    b = FuncBuilder("pooled")
    x, u = b.param("X", size, F32), b.param("U", (taps[0], taps[0], size[3], channels), F32)
    return b.finish(pool(b, convolution(b, x, u, taps[1], bare=bare), *window, kind))


def whole(size: tuple[int, int, int, int], channels: int) -> Func:
    b = FuncBuilder("whole")
    x, u = b.param("X", size, F32), b.param("U", (1, 1, size[3], channels), F32)
    return b.finish(mean(b, convolution(b, x, u, 1)))


def separable(size: tuple[int, int, int, int], outputs: int, kernel: int, stride: int) -> Func:
    """Depthwise, then pointwise."""
    b = FuncBuilder("separable")
    x, v = b.param("X", size, F32), b.param("V", (size[3], kernel, kernel), F32)
    z = b.param("Z", (size[3], outputs), F32)
    return b.finish(projected(b, filtered(b, x, v, stride), z))


def bottleneck(size: tuple[int, int, int, int], channels: int, kernel: int, stride: int) -> Func:
    """Expansion, depthwise, projection to as many channels as there were, and these added."""
    b = FuncBuilder("bottleneck")
    x, u = b.param("X", size, F32), b.param("U", (1, 1, size[3], channels), F32)
    v, z = b.param("V", (channels, kernel, kernel), F32), b.param("Z", (channels, size[3]), F32)
    d = filtered(b, convolution(b, x, u, 1), v, stride)
    return b.finish(projected(b, d, z, x if stride == 1 else None))


def reduced(size: tuple[int, int, int, int], outputs: int) -> Func:
    """A pool, then pointwise."""
    b = FuncBuilder("reduced")
    x, z = b.param("X", size, F32), b.param("Z", (size[3], outputs), F32)
    return b.finish(projected(b, pool(b, x, 2, 2, 0), z))


CHAINS = {
    "stem": pooled((1, 17, 18, 3), 16, (7, 2), (3, 2, 1)),
    "stem, images": pooled((2, 9, 12, 3), 8, (3, 2), (3, 2, 1)),
    "pairs": pooled((1, 8, 12, 4), 16, (3, 1), (2, 2, 0)),
    "pairs of odd sizes": pooled((1, 9, 7, 4), 24, (3, 1), (2, 2, 0)),
    "without an activation": pooled((1, 8, 8, 4), 16, (1, 1), (2, 2, 0), bare=True),
    "padded, without one": pooled((1, 8, 8, 4), 16, (1, 1), (3, 2, 1), bare=True),
    "side by side": pooled((1, 7, 6, 5), 16, (1, 1), (3, 1, 1)),
    "means": pooled((1, 8, 8, 4), 16, (3, 1), (2, 2, 0), "sum"),
    "padded means": pooled((1, 8, 9, 4), 16, (1, 1), (3, 2, 1), "sum"),
    "all of an image": whole((1, 7, 7, 8), 24),
    "all of images": whole((3, 4, 6, 8), 16),
    "separable": separable((1, 8, 8, 16), 24, 3, 1),
    "separable, strided": separable((1, 9, 12, 24), 16, 3, 2),
    "separable, 5, images": separable((2, 6, 7, 8), 20, 5, 1),
    "bottleneck": bottleneck((1, 8, 8, 8), 24, 3, 1),
    "bottleneck, strided": bottleneck((1, 9, 7, 4), 16, 3, 2),
    "bottleneck, 5, images": bottleneck((2, 6, 10, 4), 16, 5, 1),
    "pool, then pixels": reduced((1, 8, 9, 16), 16),
}


def integers(func: Func) -> list[np.ndarray]:
    """Small ones: every order of a sum gives the same bits."""
    rng = np.random.default_rng(0)
    return [rng.integers(-2, 3, p.shape).astype(np.float32) for p in func.params if p not in func.outputs]


@pytest.mark.parametrize("name", CHAINS)
@best_target
def test_bands_mean_the_same(name: str, target: Target) -> None:
    func = CHAINS[name]
    space = bands_space(make_request(func, target, frozenset()))
    assert space is not None
    arrays = integers(func)
    (want,) = run_func(func, *arrays)
    points, _ = space.ranked()
    if not len(points) and target is AVX512:
        pytest.skip("channels are no whole vectors of 64 bytes")
    built = func
    for point in {0, len(points) // 2, len(points) - 1}:
        built = space.build(space.decisions(points[point])).module.funcs[0]
        verify_func(built)
        np.testing.assert_array_equal(run_native(built, arrays, target)[0], want)
    np.testing.assert_array_equal(run_func(built, *arrays)[0], want)


@pytest.mark.parametrize("name", ["stem", "separable", "bottleneck"])
def test_the_schedule_in_bands_has_all_reductions_in_one_nest_and_replays(name: str) -> None:
    func = CHAINS[name]
    space = bands_space(make_request(func, AVX2))
    assert space is not None
    s = schedule_as(func, AVX2, frozenset(), "bands", space.decisions(space.ranked()[0][0]))
    reductions = {b.name for b in blocks(prepared(func).func.body) if b.is_reduction}
    nest = _loops(s.func)[-1]
    assert {r for r in reductions if any(b.name.startswith(r) for b in blocks(nest))} == reductions
    assert same_func(replay(single(func), s.trace).funcs[0], s.func)


def _loops(func: Func) -> list[For]:
    stmts = getattr(func.body, "stmts", (func.body,))
    return [n for n in stmts if isinstance(n, For)]


def test_what_is_between_is_no_larger_than_a_band() -> None:
    space = bands_space(make_request(bottleneck((1, 16, 16, 8), 32, 3, 1), AVX2, frozenset()))
    assert space is not None
    kernel = str(lower_func(space.build({"rows": 4, "channels": 16}).module.funcs[0])[0][-1].func)
    assert 'alloc(f32[1, 6, 18, 16], "local") as p:' in kernel  # with the rows around, of a block of channels
    assert 'alloc(f32[1, 4, 16, 32], "local") as d:' in kernel  # for all channels: the projection sums them
    assert "select" not in kernel


# ---------------------------------------------------------------------------------------------------------- no chains


def test_what_others_read_too_is_no_chain() -> None:
    b = FuncBuilder("f")
    x, u = b.param("X", (1, 8, 8, 4), F32), b.param("U", (3, 3, 4, 16), F32)
    t = convolution(b, x, u, 1)
    y = pool(b, t, 2, 2, 0)
    also = b.compute("also", t.shape, lambda *i: t[i] + 1)
    assert try_band_chain(prepared(b.finish(y, also)).func) is None


def test_windows_of_windows_are_no_chain() -> None:
    b = FuncBuilder("f")
    y = pool(b, pool(b, b.param("X", (1, 12, 12, 16), F32), 2, 2, 0), 3, 1, 1)
    assert try_band_chain(prepared(b.finish(y)).func) is None


def test_a_convolution_of_windows_is_no_projection() -> None:
    b = FuncBuilder("f")
    x, u = b.param("X", (1, 8, 8, 8), F32), b.param("U", (3, 3, 8, 8), F32)
    assert try_band_chain(prepared(b.finish(convolution(b, pool(b, x, 2, 2, 0), u, 1))).func) is None


def test_a_product_of_means_is_no_projection() -> None:
    b = FuncBuilder("f")
    m = mean(b, b.param("X", (1, 4, 4, 8), F32))
    z = b.param("Z", (8, 16), F32)
    y = b.reduce("y", (1, 16, 1, 1), (8,), lambda n, o, h, w, c: (m[n, c, h, w], z[c, o]))
    assert try_band_chain(prepared(b.finish(y)).func) is None


# -------------------------------------------------------------------------------------------------------------- apart


def test_chains_that_cannot_be_banded_are_scheduled_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ScheduleError("no")

    monkeypatch.setattr(bands_rule, "schedule_bands", refuse)
    for name in ("stem", "all of an image", "separable", "bottleneck"):
        func = CHAINS[name]
        s = schedule_func(func, AVX2)
        verify_func(s.func)
        arrays = integers(func)
        np.testing.assert_array_equal(run_native(s.func, arrays, AVX2)[0], run_func(func, *arrays)[0])
        kinds = {n.kind for n in _all_loops(s.func)}
        assert {LoopKind.VECTORIZED, LoopKind.UNROLLED} <= kinds  # register tiles
        assert same_func(replay(single(func), s.trace).funcs[0], s.func)


def _all_loops(func: Func) -> list[For]:
    from_body = [func.body]
    found: list[For] = []
    while from_body:
        n = from_body.pop()
        if isinstance(n, For):
            found.append(n)
            from_body.append(n.body)
        from_body.extend(getattr(n, "stmts", ()))
    return found


def test_apart_is_a_design_space_of_its_own() -> None:
    found = {s.family: s for s in spaces(CHAINS["bottleneck"], AVX2)}
    assert found["apart"].ranked()[0].tolist() == [[3]]


# --------------------------------------------------------------------------------------------------------------- cost


def form_of(func: Func) -> BandForm:
    chain = try_band_chain(prepared(func).func)
    assert chain is not None
    form = try_form(chain)
    assert form is not None
    return form


def test_chains_by_numbers() -> None:
    assert form_of(pooled((2, 17, 18, 3), 16, (7, 2), (3, 2, 1))) == BandForm(
        images=2,
        rows=5,
        channels=16,
        stride=2,
        reach=3,
        in_rows=9,
        in_columns=9,
        wide_columns=11,
        k=147,
        row_reads=23 * 23 * 3 // 9,
        columns=5,
        is_pool=True,
        taps=(3, 3),
        column_stride=2,
        tap_work=3.0,
    )
    assert form_of(whole((3, 4, 6, 8), 16)) == BandForm(
        3,
        1,
        16,
        1,
        1,
        in_rows=1,
        in_columns=24,
        wide_columns=24,
        k=8,
        is_padded=False,
        columns=1,
        is_pool=True,
        taps=(4, 6),
    )
    assert form_of(bottleneck((1, 9, 7, 4), 16, 3, 2)) == BandForm(
        *(1, 5, 16, 2, 3, 9, 7, 9, 4), columns=4, projected=4, taps=(3, 3), column_stride=2
    )
    assert form_of(reduced((1, 8, 9, 16), 24)) == BandForm(
        *(1, 4, 16, 2, 2, 8, 9, 9, 0),
        is_padded=False,
        columns=4,
        projected=24,
        is_pool=True,
        taps=(2, 2),
        column_stride=2,
        tap_work=3.0,
    )


def test_a_large_map_is_pooled_in_bands() -> None:
    stem = BandForm(1, 56, 64, 2, 3, 112, 112, 113, 147, row_reads=3 * 230 * 2, columns=56, is_pool=True)
    assert gain(stem, AVX2) > 0
    best = best_bands(stem, AVX2)
    assert stem.block_bytes(best.rows, best.channels) < AVX2.machine.l2_bytes
    assert stem.needed(best.rows) < 1.1 * best.rows * stem.stride


def test_windows_that_overlap_much_are_not_worth_computing_again() -> None:
    deep = BandForm(1, 16, 64, 1, 13, 16, 16, 28, 2304, row_reads=18 * 256, columns=16)
    assert banded_cycles(deep, 1, 64, AVX2) > 2 * apart_cycles(deep, AVX2)
    assert best_bands(deep, AVX2).rows == 16


def test_weights_are_read_again_by_every_band() -> None:
    late = BandForm(1, 7, 960, 1, 3, 7, 7, 9, 0, columns=7, projected=320)
    assert gain(late, AVX2) < 0
    early = BandForm(1, 112, 32, 1, 3, 112, 112, 114, 0, columns=112, projected=16)
    assert gain(early, AVX2) > 0


def test_a_projection_must_save_more_than_bands_without_it() -> None:
    form = BandForm(1, 56, 144, 1, 3, 56, 56, 58, 24, columns=56, projected=24)
    alone = replace(form, projected=0)
    assert apart_cycles(form, AVX2) >= best_bands(alone, AVX2).cycles


# --------------------------------------------------------------------------------------------------------------- join


def program(funcs: list[Func], inputs: tuple[Buffer, ...], temps: tuple[Buffer, ...], y: Buffer) -> Module:
    called = tuple(Call(f.name, f.params) for f in funcs)
    return Module(tuple(funcs), called, inputs, (y,), (), temps)


def in_three(size: tuple[int, int, int, int], channels: int) -> Module:
    """Expansion, depthwise and projection as Funcs."""
    x, u = Buffer("X", size, F32), Buffer("U", (1, 1, size[3], channels), F32)
    v, z = Buffer("V", (channels, 3, 3), F32), Buffer("Z", (channels, size[3]), F32)
    e, d, p = (FuncBuilder(n, f"{n}_") for n in "edp")
    first = e.finish(t := convolution(e, e.use(x), e.use(u), 1))
    second = d.finish(made := filtered(d, d.use(t), d.use(v), 1))
    third = p.finish(y := projected(p, p.use(made), p.use(z)))
    return program([first, second, third], (x, u, v, z), (t, made), y)


def test_three_funcs_become_one() -> None:
    joined, steps = join_funcs(in_three((1, 56, 56, 24), 144), AVX2)
    assert steps == (JoinFuncs("e", "d"), JoinFuncs("e__d", "p"))
    assert [f.name for f in joined.funcs] == ["e__d__p"] and not joined.temps


def test_a_pool_is_joined_to_the_convolution_before_it() -> None:
    x, u = Buffer("X", (1, 224, 224, 3), F32), Buffer("U", (7, 7, 3, 64), F32)
    c, p = FuncBuilder("c", "c_"), FuncBuilder("p", "p_")
    first = c.finish(t := convolution(c, c.use(x), c.use(u), 2))
    second = p.finish(y := pool(p, p.use(t), 3, 2, 1))
    module = program([first, second], (x, u), (t,), y)
    assert join_funcs(module, AVX2)[1] == (JoinFuncs("c", "p"),)
    staged = replace(module, funcs=(replace(first, algorithm="by other products"), second))
    assert join_funcs(staged, AVX2)[1] == ()


@pytest.mark.parametrize("name", CHAINS)
def test_windows_between_contractions_are_not_taken_for_rows_of_attention(name: str) -> None:
    assert chain_space(make_request(CHAINS[name], AVX512, frozenset())) is None

"""Steps that move computation and data: what each one makes, and that any legal trace keeps the program's meaning.

The programs are small and run in the interpreter, on integers, so results are equal to the bit. Parallel loops are
also run backwards, which shows iterations that are not independent.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.ir import layout as lay
from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    Buffer,
    Expr,
    Scope,
    as_index,
    const,
    maximum,
    select,
)
from tilewright.schedule.find import chain, find_block, find_loop, loops_above
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    DecomposeReduction,
    Fuse,
    LoopPartition,
    Parallel,
    Reorder,
    ReverseComputeAt,
    ReverseComputeInline,
    Rfactor,
    SetScope,
    Split,
    TransformLayout,
)
from tilewright.schedule.trace import parse_trace, replay
from tilewright.support.errors import ScheduleError
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Call, Constant, Func, Module, single
from tilewright.tir.interp import run_func
from tilewright.tir.rewrite import substitute_stmt, transform_stmt
from tilewright.tir.stmt import For, LoopKind, Stmt, blocks, loops
from tilewright.tir.verify import verify_module

I32 = DType.I32
LOCAL, REGISTER = Scope.LOCAL, Scope.REGISTER

# --------------------------------------------------------------------------------------------------------- programs


def dense(m: int = 10, n: int = 9, k: int = 4, residual: bool = False) -> Func:
    """matmul, bias, relu, and perhaps a residual sum."""
    b = FuncBuilder("dense")
    x, y, bias = b.param("A", (m, k), I32), b.param("B", (k, n), I32), b.param("bias", (n,), I32)
    c = b.reduce("C", (m, n), (k,), lambda i, j, k: (x[i, k], y[k, j]))
    d = b.compute("D", (m, n), lambda i, j: c[i, j] + bias[j])
    e = b.compute("E", (m, n), lambda i, j: maximum(d[i, j], 0))
    if residual:
        r = b.param("R", (m, n), I32)
        e = b.compute("F", (m, n), lambda i, j: e[i, j] + r[i, j])
    return b.finish(e)


def conv() -> Func:
    """Scale, pad, convolve, relu."""
    b = FuncBuilder("conv")
    x, w = b.param("X", (2, 5, 6), I32), b.param("W", (3, 2, 3, 3), I32)
    s = b.compute("S", (2, 5, 6), lambda c, h, v: x[c, h, v] * 3)
    p = b.compute("P", (2, 7, 8), lambda c, h, v: padded(s, c, h, v))
    y = b.reduce("Y", (3, 5, 6), (2, 3, 3), lambda o, h, v, c, r, q: (p[c, h + r, v + q], w[o, c, r, q]))
    return b.finish(b.compute("Z", (3, 5, 6), lambda o, h, v: maximum(y[o, h, v], 0)))


def padded(s: Buffer, c: Expr, h: Expr, v: Expr) -> Expr:
    inside = logical_and(as_index(1) <= h, h < 6, as_index(1) <= v, v < 7)
    return select(inside, s[c, h - 1, v - 1], const(0, I32))


def rows() -> Func:
    """The structure of a softmax: two reductions along a row and elementwise blocks between and after them."""
    b = FuncBuilder("rows")
    x = b.param("X", (4, 7), I32)
    m = b.reduce("M", (4,), (7,), lambda i, k: x[i, k], "max")
    e = b.compute("E", (4, 7), lambda i, k: (x[i, k] - m[i]) * 2)
    s = b.reduce("S", (4,), (7,), lambda i, k: e[i, k])
    return b.finish(b.compute("Y", (4, 7), lambda i, k: e[i, k] * s[i]))


def chain_of_maps() -> Func:
    """Elementwise blocks, a transpose, a stencil, a broadcast, and a buffer with two readers."""
    b = FuncBuilder("maps")
    x, v = b.param("X", (6, 8), I32), b.param("V", (8,), I32)
    a = b.compute("A", (6, 8), lambda i, j: x[i, j] + v[j])
    t = b.compute("T", (8, 6), lambda i, j: a[j, i] * 3)
    d = b.compute("D", (7, 6), lambda i, j: t[i, j] - t[i + 1, j])
    return b.finish(b.compute("E", (7, 6), lambda i, j: d[i, j] + a[j, i]))


PROGRAMS: dict[str, Callable[[], Func]] = {
    "dense": dense,
    "residual": lambda: dense(6, 8, 3, residual=True),
    "conv": conv,
    "rows": rows,
    "maps": chain_of_maps,
}


def run(func: Func) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    given = [p for p in func.params if p not in func.outputs]
    return list(run_func(func, *(rng.integers(-9, 10, p.shape).astype(p.dtype.numpy) for p in given)))


def backwards(func: Func) -> Func:
    """Every loop that promises independent iterations runs from its end."""

    def turn(s: Stmt) -> Stmt | None:
        if isinstance(s, For) and s.kind in (LoopKind.PARALLEL, LoopKind.VECTORIZED):
            return For(s.var, s.extent, substitute_stmt(s.body, {s.var: as_index(s.extent - 1) - s.var}))
        return None

    return func.with_body(transform_stmt(func.body, turn))


def assert_same(original: Func, scheduled: Func) -> None:
    for form in (scheduled, backwards(scheduled)):
        for a, b in zip(run(original), run(form), strict=True):
            np.testing.assert_array_equal(b, a)


def apply(func: Func, *steps: Step) -> Func:
    """The steps applied; meaning, invariants and text of each checked."""
    module = single(func)
    for step in steps:
        module = step.apply(module)
        verify_module(module)
        assert parse_trace(str(step)) == (step,)
        assert_same(func, module.funcs[0])
    return module.funcs[0]


def extents(func: Func, block: str) -> list[int]:
    return [n.extent for n in loops_above(func, find_block(func, block))]


def names(func: Func, block: str) -> list[str]:
    return [n.var.name for n in loops_above(func, find_block(func, block))]


def tiled(func: Func, *more: Step, ti: int = 4, tj: int = 3) -> Func:
    """The matmul of `dense`, its tiles outermost."""
    split = (Split("C_i", (None, ti)), Split("C_j", (None, tj)))
    return apply(func, *split, Reorder(("C_i_0", "C_j_0", "C_k", "C_i_1", "C_j_1")), *more)


# ------------------------------------------------------------------------------------------------ cache_write, _read


def test_cache_write_makes_a_buffer_and_a_copy() -> None:
    f = apply(dense(), CacheWrite("C", "C", REGISTER))
    assert [b.name for b in blocks(f.body)] == ["C", "C_C_out", "D", "E"]
    assert Buffer("C_register", (10, 9), I32, REGISTER) in f.locals
    assert names(f, "C_C_out") == ["C_C_out_i0", "C_C_out_i1"]


def test_cache_write_copies_only_what_the_block_writes() -> None:
    b = FuncBuilder("part")
    x = b.param("X", (5,), I32)
    out = b.use(Buffer("O", (9,), I32))
    f = b.finish(b.compute("O", (5,), lambda i: x[i], out=out))
    # The block stores to 0 … 4 of 9 elements; the rest of O keeps what the caller put there.
    g = CacheWrite("O", "O", LOCAL).apply(single(f)).funcs[0]
    assert extents(g, "O_O_out") == [5]


def test_cache_read_redirects_one_block() -> None:
    f = apply(chain_of_maps(), CacheRead("T", "A", LOCAL))
    assert [b.name for b in blocks(f.body)] == ["A", "T_A_in", "T", "D", "E"]
    assert Buffer("A_T_local", (6, 8), I32, LOCAL) in f.locals


def test_cache_read_moves_under_the_tile_that_reads_it() -> None:
    f = tiled(dense(), CacheRead("C", "B", LOCAL), ComputeAt("C_B_in", "C_j_0"))
    assert names(f, "C_B_in") == ["C_i_0", "C_j_0", "C_B_in_0", "C_B_in_1"]
    assert extents(f, "C_B_in")[2:] == [4, 3]


# ------------------------------------------------------------------------------------------------ reverse_compute_at


def test_copy_out_of_a_register_tile_iterates_the_tile() -> None:
    f = tiled(dense(), CacheWrite("C", "C", REGISTER), ReverseComputeAt("C_C_out", "C_j_0"))
    assert names(f, "C_C_out") == ["C_i_0", "C_j_0", "C_C_out_0", "C_C_out_1"]
    assert extents(f, "C_C_out")[2:] == [4, 3]


def test_chain_of_epilogues_follows_the_tile_under_a_parallel_loop() -> None:
    f = tiled(
        dense(residual=True),
        CacheWrite("C", "C", REGISTER),
        ReverseComputeAt("C_C_out", "C_j_0"),
        Parallel("C_i_0"),
        *(ReverseComputeAt(b, "C_j_0") for b in ("D", "E", "F")),
    )
    assert all(extents(f, b)[2:] == [4, 3] for b in ("C_C_out", "D", "E", "F"))


def test_reverse_compute_at_follows_a_partitioned_producer() -> None:
    """Two copies of a block fill one row together."""
    f = apply(dense(), LoopPartition("C_j", (6,)), ReverseComputeAt("D", "C_i"))
    assert extents(f, "D") == [10, 1, 9]


def test_reverse_compute_at_follows_a_decomposed_reduction() -> None:
    f = tiled(dense(), DecomposeReduction("C", "C_k"), ReverseComputeAt("D", "C_j_0"))
    assert extents(f, "D")[2:] == [4, 3]


def test_reverse_compute_at_follows_a_fused_loop() -> None:
    f = tiled(dense(8, 9, 4), Fuse(("C_i_0", "C_j_0")), ReverseComputeAt("D", "C_i_0_f"))
    assert extents(f, "D")[1:] == [4, 3]


def test_reverse_compute_at_of_a_reduction_runs_whole_rows() -> None:
    f = apply(rows(), ReverseComputeAt("S", "E_i"))
    assert extents(f, "S") == [4, 1, 7]


def test_reverse_compute_at_runs_guarded_readers_in_full() -> None:
    """Padding instances read nothing, so no read decides where they belong: they are all run where S is complete."""
    b = FuncBuilder("pad")
    x = b.param("X", (4,), I32)
    s = b.compute("S", (4,), lambda i: x[i] * 3)
    z = const(0, I32)
    p = b.compute("P", (6,), lambda i: select(logical_and(as_index(1) <= i, i < 5), s[i - 1], z))
    f = b.finish(p)
    with pytest.raises(ScheduleError, match="needs more of S"):
        ReverseComputeAt("P", "S_i").apply(single(f))
    split = apply(f, Split("S_i", (1, 4)))
    assert extents(apply(split, ReverseComputeAt("P", "S_i_0")), "P") == [1, 6]


def test_reverse_compute_at_follows_a_packed_buffer() -> None:
    packed = lay.Layout((lay.SplitDim(1, 3), lay.ReorderDims((1, 0, 2))))
    f = tiled(dense(), TransformLayout("C", packed), ReverseComputeAt("D", "C_j_0"))
    assert extents(f, "D")[2:] == [4, 3]


def test_two_inputs_from_one_loop_do_not_decide_together() -> None:
    """D[i, j] = A[i] * B[j]: iteration t writes A[t] and B[t], but D needs all pairs."""
    b = FuncBuilder("outer")
    x = b.param("X", (4,), I32)
    p = b.compute("P", (4,), lambda i: x[i] * 2)
    q = b.compute("Q", (4,), lambda i: p[i] * 5)
    f = b.finish(b.compute("D", (4, 4), lambda i, j: p[i] * q[j]))
    f = apply(f, ReverseComputeAt("Q", "P_i"))
    with pytest.raises(ScheduleError, match="needs more of"):
        ReverseComputeAt("D", "P_i").apply(single(f))


# -------------------------------------------------------------------------------------------------------- compute_at


def test_compute_at_covers_the_window_of_a_convolution() -> None:
    f = apply(conv(), Split("Y_h", (None, 2)), ComputeAt("P", "Y_h_0"), ComputeAt("S", "P_0"))
    assert extents(f, "P") == [3, 3, 2, 4, 8]
    assert names(f, "S")[:3] == ["Y_o", "Y_h_0", "P_0"]


def test_compute_at_of_a_reduction_runs_all_of_it() -> None:
    f = apply(dense(), ComputeAt("D", "E_j"), ComputeAt("C", "D_0"))
    assert extents(f, "C") == [10, 9, 1, 1, 1, 4]


def test_compute_at_moves_to_the_first_consumer() -> None:
    f = apply(chain_of_maps(), ComputeAt("D", "E_i"), ComputeAt("T", "D_0"), ComputeAt("A", "E_i"))
    assert [b.name for b in blocks(f.body)] == ["A", "T", "D", "E"]


def test_a_block_can_be_moved_again() -> None:
    f = apply(dense(), ComputeAt("D", "E_i"), ComputeAt("D", "E_j"))
    assert names(f, "D") == ["E_i", "E_j", "D_0", "D_1"]


# ------------------------------------------------------------------------------------------------------------ inline


def test_compute_inline_keeps_guards() -> None:
    f = apply(conv(), ComputeInline("S"), ComputeInline("P"))
    assert [b.name for b in blocks(f.body)] == ["Y", "Z"]
    assert [b.name for b in f.locals] == ["Y"]


def test_compute_inline_into_two_readers_and_a_stencil() -> None:
    f = apply(chain_of_maps(), ComputeInline("A"), ComputeInline("T"))
    assert [b.name for b in blocks(f.body)] == ["D", "E"]


def test_compute_inline_of_a_packed_buffer() -> None:
    apply(
        dense(),
        TransformLayout("D", lay.Layout((lay.SplitDim(1, 4), lay.ReorderDims((1, 0, 2))))),
        ComputeInline("D"),
    )


def test_reverse_compute_inline_through_a_transpose() -> None:
    b = FuncBuilder("t")
    x = b.param("X", (3, 5), I32)
    y = b.compute("Y", (3, 5), lambda i, j: x[i, j] * 2)
    f = b.finish(b.compute("Z", (5, 3), lambda i, j: y[j, i] + 1))
    g = apply(f, ReverseComputeInline("Z"))
    assert [b.name for b in blocks(g.body)] == ["Y"]
    assert g.locals == ()


def test_reverse_compute_inline_takes_other_complete_inputs() -> None:
    f = apply(dense(residual=True), ReverseComputeInline("F"), ReverseComputeInline("E"))
    assert [b.name for b in blocks(f.body)] == ["C", "D"]


# -------------------------------------------------------------------------------------------------- scope and layout


def test_set_scope() -> None:
    f = apply(dense(), ComputeAt("D", "E_i"), SetScope("D", LOCAL), Parallel("E_i"))
    assert Buffer("D", (10, 9), I32, LOCAL) in f.locals


LAYOUTS = [
    lay.Layout((lay.ReorderDims((1, 0)),)),
    lay.Layout((lay.SplitDim(1, 3), lay.ReorderDims((1, 0, 2)))),
    lay.Layout((lay.SplitDim(0, 4),)),  # 10 rows in blocks of 4: the last block is not full
    lay.Layout((lay.FuseDims(0, 2),)),
    lay.Layout((lay.PadDim(1, 1, 2), lay.FuseDims(0, 2))),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_transform_layout_of_a_local(layout: lay.Layout) -> None:
    f = apply(dense(), TransformLayout("C", layout), ComputeAt("D", "E_i"))
    assert next(b for b in f.locals if b.name == "C").shape == layout.shape((10, 9))


def two_kernels() -> Module:
    """T = X · 2 in one kernel, Y = T · W in another; T is shared and W a constant."""
    x, t = Buffer("X", (4, 6), I32), Buffer("T", (4, 6), I32)
    w, y = Buffer("W", (6, 5), I32), Buffer("Y", (4, 5), I32)
    b = FuncBuilder("first", "f_")
    b.use(x)
    b.compute("T", (4, 6), lambda i, j: x[i, j] * 2, out=t)
    first = b.finish(t)
    b = FuncBuilder("second", "s_")
    b.use(t), b.use(w)
    b.reduce("Y", (4, 5), (6,), lambda i, j, k: (t[i, k], w[k, j]), out=y)
    second = b.finish(y)
    value = np.arange(30, dtype=np.int32).reshape(6, 5)
    program = (Call("first", first.params), Call("second", second.params))
    return Module((first, second), program, (x,), (y,), (Constant(w, value),), (t,))


def run_two(module: Module) -> np.ndarray:
    x = np.random.default_rng(3).integers(-9, 10, (4, 6)).astype(np.int32)
    (t,) = run_func(module.func("first"), x)
    (y,) = run_func(module.func("second"), t, module.constants[0].value)
    return y


def test_transform_layout_of_shared_buffers_and_constants() -> None:
    before = two_kernels()
    packed = lay.Layout((lay.SplitDim(1, 4), lay.ReorderDims((1, 0, 2))))
    steps = (TransformLayout("T", lay.Layout((lay.ReorderDims((1, 0)),))), TransformLayout("W", packed))
    after = replay(before, steps)
    verify_module(after)
    assert after.temps[0].shape == (6, 4)
    assert after.constants[0].value.shape == (2, 6, 4)
    np.testing.assert_array_equal(run_two(after), run_two(before))


def test_untouched_funcs_keep_their_identity() -> None:
    before = two_kernels()
    after = TransformLayout("W", lay.Layout((lay.ReorderDims((1, 0)),))).apply(before)
    assert after.func("first") is before.func("first")


# -------------------------------------------------------------------------------------------------- random traces


def proposal(func: Func, kind: int, a: int, b: int, c: int) -> Step:
    """A step chosen by four numbers; it need not be legal."""

    def pick(options: Sequence[str], n: int) -> str:
        return options[n % len(options)]

    loop_names = [n.var.name for n in loops(func.body)]
    block_names = [n.name for n in blocks(func.body)]
    buffers = [n.name for n in (*func.locals, *func.params)]
    loop, block, buffer = pick(loop_names, a), pick(block_names, b), pick(buffers, c)
    scope = (Scope.GLOBAL, LOCAL, REGISTER)[a % 3]
    nest = [n.var.name for n in chain(find_loop(func, loop))]
    written = pick([n.name for n in func.locals] or buffers, c)
    shape = next(n for n in (*func.locals, *func.params) if n.name == written).shape
    flow = Dataflow(func)
    near: list[list[str]] = []  # the loops around consumers and around producers, where a move may be legal
    for others in (flow.consumers(find_block(func, block)), flow.producers(find_block(func, block))):
        near.append([n.var.name for o in others for n in loops_above(func, o)] or loop_names)
    moves: list[Step] = [
        ComputeAt(block, pick(near[0], a)),
        ReverseComputeAt(block, pick(near[1], a)),
        ComputeInline(block),
        ReverseComputeInline(block),
        CacheRead(block, buffer, scope),
        CacheWrite(block, buffer, scope),
        SetScope(buffer, scope),
        TransformLayout(written, random_layout(shape, a, b)),
        Split(loop, (None, 2 + b % 3)),
        Reorder(tuple(nest[b % len(nest) :] + nest[: b % len(nest)])),
        Fuse(tuple(nest[:2])),
        Parallel(loop),
        LoopPartition(loop, (1 + b % 3,)),
        DecomposeReduction(block, loop),
        Rfactor(block, loop),
        ComputeAt(block, loop),
        ReverseComputeAt(block, loop),
    ]
    return moves[kind % len(moves)]


def random_layout(shape: tuple[int, ...], a: int, b: int) -> lay.Layout:
    rank = len(shape)
    options: list[tuple[lay.LayoutPrimitive, ...]] = [
        (lay.SplitDim(a % rank, 2 + b % 2),),
        (lay.ReorderDims(tuple(range(rank))[::-1]),),
        (lay.SplitDim(a % rank, 2), lay.ReorderDims((rank, *range(rank)))),
        (lay.FuseDims(0, rank),),
        (lay.PadDim(a % rank, 1, 0),),
    ]
    return lay.Layout(options[b % len(options)])


Choice = st.tuples(*([st.integers(0, 10**6)] * 4))


FEW, MANY = (
    settings(max_examples=n, deadline=None, suppress_health_check=[HealthCheck.too_slow]) for n in (10, 50)
)
Choices = st.lists(Choice, min_size=8, max_size=20)


@pytest.mark.parametrize("name", PROGRAMS)
@FEW
@given(choices=Choices)
def test_any_legal_trace_keeps_the_meaning(name: str, choices: list[tuple[int, int, int, int]]) -> None:
    check_trace(name, choices)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
@MANY
@given(choices=Choices)
def test_many_legal_traces_keep_the_meaning(name: str, choices: list[tuple[int, int, int, int]]) -> None:
    check_trace(name, choices)


def check_trace(name: str, choices: list[tuple[int, int, int, int]]) -> None:
    func = PROGRAMS[name]()
    module, done = single(func), list[Step]()
    for choice in choices:
        step = proposal(module.funcs[0], *choice)
        try:
            module = step.apply(module)
        except ScheduleError:
            continue
        done.append(step)
        verify_module(module)
    assert_same(func, module.funcs[0])
    assert replay(single(func), tuple(done)).funcs[0].body == module.funcs[0].body

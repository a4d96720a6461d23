"""Steps on loops: what each one makes, and that the program keeps its meaning under any legal trace.

The programs are small and run in the interpreter. Loops that promise independent iterations are also run backwards:
that shows a promise that was not kept.
"""

import importlib
import pkgutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.ir.dtype import DType
from tilewright.ir.expr import TRUE, BinaryOp, UnaryOp, Var, binary, const, maximum, select, unary
from tilewright.schedule import steps
from tilewright.schedule.excerpt import header
from tilewright.schedule.nest import find_block, find_loop, path_to
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import FuncStep, Step
from tilewright.schedule.steps import (
    STEPS,
    ComputeAt,
    ComputeInline,
    DecomposeReduction,
    Distribute,
    Fuse,
    LoopPartition,
    Parallel,
    Reorder,
    ReverseComputeAt,
    Rfactor,
    Split,
    Unroll,
    Vectorize,
)
from tilewright.schedule.trace import parse_trace, print_trace, replay
from tilewright.support.errors import ScheduleError, UserError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.compare import same_func
from tilewright.tir.func import Func, Module, single
from tilewright.tir.interp import run_func
from tilewright.tir.parser import parse_func
from tilewright.tir.printer import print_func
from tilewright.tir.rewrite import substitute, transform
from tilewright.tir.stmt import For, IterKind, LoopKind, Stmt, blocks, children, loops
from tilewright.tir.verify import verify_func

# --------------------------------------------------------------------------------------------------------- programs


def matmul(dtype: DType = DType.I32, m: int = 7, n: int = 6, k: int = 5, *, relu: bool = False) -> Func:
    b = FuncBuilder("matmul")
    x, y = b.param("A", (m, k), dtype), b.param("B", (k, n), dtype)
    c = b.reduce("C", (m, n), (k,), lambda i, j, k: (x[i, k], y[k, j]))
    if relu:
        c = b.compute("D", (m, n), lambda i, j: maximum(c[i, j], 0))
    return b.finish(c)


def conv(dtype: DType = DType.I32) -> Func:
    b = FuncBuilder("conv")
    x, w = b.param("X", (2, 5, 6), dtype), b.param("W", (3, 2, 3, 3), dtype)
    p = b.compute(
        "P",
        (2, 7, 8),
        lambda c, h, w: select(
            binary(
                BinaryOp.AND,
                binary(BinaryOp.AND, const(1) <= h, h < 6),
                binary(BinaryOp.AND, const(1) <= w, w < 7),
            ),
            x[c, h - 1, w - 1],
            const(0, dtype),
        ),
    )
    y = b.reduce("Y", (3, 5, 6), (2, 3, 3), lambda o, h, v, c, r, s: (p[c, h + r, v + s], w[o, c, r, s]))
    return b.finish(y)


def row_sum(dtype: DType = DType.I32, rows: int = 4, columns: int = 11, combine: str = "sum") -> Func:
    b = FuncBuilder("rows")
    x = b.param("X", (rows, columns), dtype)
    return b.finish(b.reduce("S", (rows,), (columns,), lambda i, k: x[i, k], combine))


def elementwise(dtype: DType = DType.I32) -> Func:
    b = FuncBuilder("chain")
    x = b.param("X", (5, 8), dtype)
    y = b.compute("Y", (5, 8), lambda i, j: x[i, j] * 3)
    z = b.compute("Z", (5, 8), lambda i, j: maximum(y[i, j], 1))
    return b.finish(b.compute("W", (8, 5), lambda i, j: z[j, i] + y[j, i]))


def softmax() -> Func:
    b = FuncBuilder("softmax")
    x = b.param("X", (3, 9), DType.F32)
    m = b.reduce("M", (3,), (9,), lambda i, k: x[i, k], "max")
    e = b.compute("E", (3, 9), lambda i, k: unary(UnaryOp.EXP, x[i, k] - m[i]))
    s = b.reduce("S", (3,), (9,), lambda i, k: e[i, k])
    return b.finish(b.compute("Y", (3, 9), lambda i, k: e[i, k] / s[i]))


PROGRAMS = {
    "matmul": matmul(),
    "matmul_relu": matmul(relu=True),
    "matmul_f32": matmul(DType.F32, relu=True),
    "conv": conv(),
    "row_sum": row_sum(),
    "row_max": row_sum(DType.F32, combine="max"),
    "row_prod": row_sum(combine="prod"),
    "elementwise": elementwise(),
    "softmax": softmax(),
}


def run(func: Func) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(7)
    inputs = [p for p in func.params if p not in func.outputs]
    return run_func(
        func,
        *(
            rng.standard_normal(p.shape).astype(p.dtype.numpy)
            if p.dtype.is_float
            else rng.integers(-9, 10, p.shape).astype(p.dtype.numpy)
            for p in inputs
        ),
    )


def assert_same(original: Func, scheduled: Func) -> None:
    for a, b in zip(run(original), run(scheduled), strict=True):
        if a.dtype.kind == "f":
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(b, a)


def backwards(func: Func) -> Func:
    """Parallel and vectorized loops as serial ones that count down."""

    def turn(s: Stmt) -> Stmt | None:
        if isinstance(s, For) and s.kind in (LoopKind.PARALLEL, LoopKind.VECTORIZED):
            return For(s.var, s.extent, substitute(s.body, {s.var: const(s.extent - 1) - s.var}))
        return None

    return func.with_body(transform(func.body, turn))


def outline(s: Stmt, depth: int = 0) -> list[str]:
    """The loops and blocks of a nest, one a line."""
    text = header(s)
    lines = [] if text is None else ["    " * depth + text]
    return lines + [line for c in children(s) for line in outline(c, depth + (text is not None))]


def check(func: Func, *trace: Step) -> Func:
    """`func` after the steps; its meaning is compared with that of `func`."""
    done = replay(single(func), trace).funcs[0]
    verify_func(done)
    assert_same(func, done)
    assert_same(func, backwards(done))
    assert same_func(parse_func(print_func(done)), done)
    assert parse_trace(print_trace(trace)) == trace
    return done


# -------------------------------------------------------------------------------------------------------- each step


def test_split_with_a_remainder_guards_the_block() -> None:
    done = check(matmul(), Split("C_i", (None, 4)))
    assert outline(done.body) == [
        "for C_i_0 in range(2):",
        "    for C_i_1 in range(4):",
        "        for C_j in range(6):",
        "            for C_k in range(5):",
        "                C(C_vi = C_i_0 * 4 + C_i_1, C_vj = C_j, C_vk = reduce(C_k)) where C_i_0 * 4 + C_i_1 < 7",
    ]


def test_split_that_divides_needs_no_guard() -> None:
    done = check(matmul(), Split("C_j", (None, 2, 3)))
    assert find_block(done, "C").predicate is TRUE
    assert [n.extent for n in loops(done.body)] == [7, 1, 2, 3, 5]


def test_reorder_keeps_loops_that_are_not_named() -> None:
    done = check(matmul(), Reorder(("C_k", "C_i")))
    assert [n.var.name for n in loops(done.body)] == ["C_k", "C_j", "C_i"]


def test_reorder_of_reduce_loops() -> None:
    done = check(conv(), Reorder(("Y_s", "Y_c", "Y_o", "Y_r", "Y_h")))
    names = [n.var.name for n in loops(done.body) if n.var.name.startswith("Y")]
    assert names == ["Y_s", "Y_c", "Y_v", "Y_o", "Y_r", "Y_h"]


def test_fuse_then_split_along_the_old_border_gives_the_old_bindings() -> None:
    fuse = Fuse(("C_i", "C_j"))
    done = check(matmul(), fuse, Split(fuse.name, (None, 6)))
    block = find_block(done, "C")
    assert block.bindings[:2] == (Var("C_i_f_0"), Var("C_i_f_1"))


def test_fuse_of_three_loops() -> None:
    done = check(conv(), Fuse(("Y_c", "Y_r", "Y_s")))
    assert find_loop(done, "Y_c_f").extent == 18


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (Parallel("C_i"), LoopKind.PARALLEL),
        (Vectorize("C_j"), LoopKind.VECTORIZED),
        (Unroll("C_k"), LoopKind.UNROLLED),
    ],
)
def test_loop_kinds(step: Step, kind: LoopKind) -> None:
    assert kind in [n.kind for n in loops(check(matmul(), step).body)]


def test_a_fused_loop_can_be_parallel() -> None:
    check(matmul(), Fuse(("C_i", "C_j")), Split("C_i_f", (None, 4)), Parallel("C_i_f_0"))


def test_decompose_reduction_copies_the_spatial_loops_below() -> None:
    done = check(
        matmul(),
        Split("C_i", (None, 4)),
        Reorder(("C_i_0", "C_k", "C_i_1", "C_j")),
        Vectorize("C_j"),
        DecomposeReduction("C", "C_k"),
    )
    assert outline(done.body) == [
        "for C_i_0 in range(2):",
        "    for C_i_1_init in range(4):",
        "        for C_j_init in vectorized(6):",
        "            C_init(C_vi_init = C_i_0 * 4 + C_i_1_init, C_vj_init = C_j_init)"
        " where C_i_0 * 4 + C_i_1_init < 7",
        "    for C_k in range(5):",
        "        for C_i_1 in range(4):",
        "            for C_j in vectorized(6):",
        "                C(C_vi = C_i_0 * 4 + C_i_1, C_vj = C_j, C_vk = reduce(C_k)) where C_i_0 * 4 + C_i_1 < 7",
    ]
    update = find_block(done, "C")
    assert update.init is None and update.is_reduction


def test_decompose_reduction_with_a_guarded_reduce_loop() -> None:
    done = check(matmul(), Split("C_k", (None, 3)), DecomposeReduction("C", "C_i"))
    assert find_block(done, "C_init").predicate is TRUE


def test_loop_partition_makes_exact_tiles_of_a_split_with_a_remainder() -> None:
    done = check(matmul(), Split("C_i", (None, 4)), LoopPartition("C_i_0", (1,)))
    assert outline(done.body) == [
        "for C_i_0_p0 in range(1):",
        "    for C_i_1_p0 in range(4):",
        "        for C_j_p0 in range(6):",
        "            for C_k_p0 in range(5):",
        "                C_p0(C_vi_p0 = C_i_1_p0, C_vj_p0 = C_j_p0, C_vk_p0 = reduce(C_k_p0))",
        "for C_i_0_p1 in range(1):",
        "    for C_i_1_p1 in range(3):",
        "        for C_j_p1 in range(6):",
        "            for C_k_p1 in range(5):",
        "                C_p1(C_vi_p1 = C_i_1_p1 + 4, C_vj_p1 = C_j_p1, C_vk_p1 = reduce(C_k_p1))",
    ]


def test_loop_partition_drops_an_init_that_is_never_reached() -> None:
    done = check(matmul(), LoopPartition("C_k", (1, 3)))
    assert [b.init is None for b in blocks(done.body)] == [False, True, True]


def test_loop_partition_drops_what_never_runs() -> None:
    done = check(matmul(), Split("C_i", (3, 7)), LoopPartition("C_i_0", (1,)))
    assert [b.name for b in blocks(done.body)] == ["C_p0"]


def test_rfactor_makes_the_loop_spatial() -> None:
    done = check(
        row_sum(columns=12),
        Split("S_k", (None, 4)),
        Rfactor("S", "S_k_1"),
        Vectorize("S_k_1"),
        Parallel("S_i_m"),
    )
    assert outline(done.body) == [
        "for S_i in range(4):",
        "    for S_k_0 in range(3):",
        "        for S_k_1 in vectorized(4):",
        "            S_rf(S_vi_rf = S_i, S_k_0_v_rf = reduce(S_k_0), S_k_1_v_rf = S_k_1)",
        "for S_i_m in parallel(4):",
        "    for S_k_1_m in range(4):",
        "        S(S_vi = S_i_m, S_k_1_v = reduce(S_k_1_m))",
    ]
    (partial,) = done.locals
    assert partial.shape == (4, 4)


def test_rfactor_with_a_remainder_fills_every_lane() -> None:
    done = check(row_sum(columns=5), Split("S_k", (None, 8)), Rfactor("S", "S_k_1"), Vectorize("S_k_1"))
    assert find_block(done, "S_rf").predicate is TRUE


def test_rfactor_of_fma_merges_by_addition() -> None:
    done = check(matmul(DType.F32), Split("C_k", (None, 2)), Rfactor("C", "C_k_1"))
    assert "fma" in print_func(done)
    assert find_block(done, "C").init is not None


def test_rfactor_of_one_of_several_reduce_loops() -> None:
    done = check(conv(), Reorder(("Y_c", "Y_o")), Rfactor("Y", "Y_s"))
    kinds = {it.var.name: it.kind for it in find_block(done, "Y_rf").iters}
    assert kinds["Y_s_v_rf"] is IterKind.SPATIAL
    assert kinds["Y_c_v_rf"] is IterKind.REDUCE
    assert kinds["Y_r_v_rf"] is IterKind.REDUCE


def test_rfactor_after_partition_and_decomposition() -> None:
    check(
        row_sum(columns=11),
        LoopPartition("S_k", (8,)),
        Split("S_k_p0", (None, 4)),
        Rfactor("S_p0", "S_k_p0_1"),
        Vectorize("S_k_p0_1"),
        DecomposeReduction("S_p0_rf", "S_k_p0_0"),
    )


def test_rfactor_in_a_loop_shared_with_a_consumer_stays_in_it() -> None:
    b = FuncBuilder("f")
    x = b.param("X", (4, 8), DType.I32)
    s = b.reduce("S", (4,), (8,), lambda i, k: x[i, k])
    func = b.finish(b.compute("Y", (4, 8), lambda i, k: x[i, k] - s[i]))
    done = check(
        func, ReverseComputeAt("Y", "S_i"), Split("S_k", (None, 4)), Rfactor("S", "S_k_1"), Vectorize("S_k_1")
    )
    assert [type(c) for c in children(done.body)] != [For, For]
    assert isinstance(done.body, For), "one loop over rows holds all three blocks"
    assert [b.name for b in blocks(done.body)] == ["S_rf", "S", "Y"]


def test_parallel_over_a_loop_that_fills_a_buffer_of_its_own() -> None:
    """Each iteration recomputes the halo of its tile in a buffer that nobody else uses."""
    b = FuncBuilder("f")
    x = b.param("X", (9,), DType.I32)
    y = b.compute("Y", (9,), lambda i: x[i] * 2)
    func = b.finish(b.compute("Z", (8,), lambda i: y[i] + y[i + 1]))
    halo = parse_func(
        """
@func
def f(X: i32[9], Z: out(i32[8])):
    Y = alloc(i32[9], "global")
    for t in range(4):
        for r in range(3):
            with block("Y"):
                Y_vi = spatial(9, t * 2 + r)
                Y[Y_vi] = X[Y_vi] * i32(2)
        for s in range(2):
            with block("Z"):
                Z_vi = spatial(8, t * 2 + s)
                Z[Z_vi] = Y[Z_vi] + Y[Z_vi + 1]
""".replace('alloc(i32[9], "global")', print_func(func).split("Y = ")[1].splitlines()[0])
    )
    check(halo, Parallel("t"))
    with pytest.raises(ScheduleError, match="not independent"):
        Vectorize("t").apply(single(halo))


# ------------------------------------------------------------------------------------------------ trace and schedule


def test_every_step_is_in_the_table() -> None:
    found = set[type]()
    for info in pkgutil.iter_modules(steps.__path__):
        module = importlib.import_module(f"{steps.__name__}.{info.name}")
        found |= {c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Step)}
    assert found - {Step, FuncStep} == set(STEPS)


def test_schedule_records_what_it_does() -> None:
    module = single(matmul(relu=True))
    s = Schedule(module)
    i0, i1 = s.split("C_i", (None, 4))
    s.reorder(i0, "C_k", i1, "C_j")
    k = s.fuse(i0, "C_k")
    s.unroll(i1)
    s.vectorize("C_j")
    p = s.loop_partition("D_i", (2,))
    s.parallel(p[0])
    assert parse_trace(str(s)) == s.trace
    assert same_func(replay(module, s.trace).funcs[0], s.module.funcs[0])
    before = s.module
    with pytest.raises(ScheduleError):
        s.vectorize(k)
    assert s.module is before and len(s.trace) == 7


def test_untouched_funcs_keep_their_identity() -> None:
    a, b = matmul(), row_sum()
    module = Module((a, b), single(a).program, (), ())
    done = Split("S_i", (None, 2)).apply(module)
    assert done.funcs[0] is a and done.funcs[1] is not b


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Split('i', (None, 2)", "not in Python syntax"),
        ("x = 1", "one step per line"),
        ("Explode('i')", "Explode is not known"),
        ("Split('i')", "factors"),
        ("Split('i', (None, open('f')))", "open is not known"),
        ("Split('i', (None, 1 + 1))", "is not a value"),
        ("Split('i', **{})", "is not a value"),
    ],
)
def test_a_trace_is_data(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_trace(text)


# ------------------------------------------------------------------------------------------------------- properties


MOVES = [
    "split",
    "reorder",
    "fuse",
    "kind",
    "partition",
    "decompose",
    "rfactor",
    "move",
    "inline",
    "distribute",
]


def _chains(func: Func) -> list[list[str]]:
    """Loops along one way from the top down to a block."""
    return [
        [n.var.name for n in path_to(func.body, b) if isinstance(n, For)] or ["none"]
        for b in blocks(func.body)
    ]


@st.composite
def a_step(draw: st.DrawFn, func: Func) -> Step:
    """Some step on the loops and blocks that there are; often an illegal one."""
    names = [n.var.name for n in loops(func.body)]
    loop = draw(st.sampled_from(names))
    block = draw(st.sampled_from([b.name for b in blocks(func.body)]))
    extent = find_loop(func, loop).extent
    match draw(st.sampled_from(MOVES)):
        case "split":
            return Split(loop, (None, draw(st.integers(1, 5))))
        case "reorder":
            return Reorder(tuple(draw(st.permutations(draw(st.sampled_from(_chains(func)))))))
        case "fuse":
            body = find_loop(func, loop).body
            return Fuse((loop, body.var.name if isinstance(body, For) else draw(st.sampled_from(names))))
        case "kind":
            return draw(st.sampled_from([Parallel, Vectorize, Unroll]))(loop)
        case "partition":
            return LoopPartition(loop, (draw(st.integers(1, max(1, extent - 1))),))
        case "decompose":
            return DecomposeReduction(block, loop)
        case "rfactor":
            return Rfactor(block, loop)
        case "inline":
            return ComputeInline(block)
        case "distribute":
            return Distribute(loop)
        case _:
            return draw(st.sampled_from([ComputeAt, ReverseComputeAt]))(block, loop)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_legal_trace_keeps_the_meaning(data: st.DataObject) -> None:
    func = PROGRAMS[data.draw(st.sampled_from(sorted(PROGRAMS)))]
    s = Schedule(single(func))
    for _ in range(data.draw(st.integers(1, 8))):
        step = data.draw(a_step(s.module.funcs[0]))
        try:
            s.apply(step)
        except ScheduleError as e:
            assert str(e).startswith(str(step))
    check(func, *s.trace)

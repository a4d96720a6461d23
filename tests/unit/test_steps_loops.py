"""Steps on loops: what each one makes of a program, and that the program keeps its meaning."""

import importlib
import inspect
import pkgutil

import pytest
from schedule_programs import check, conv, matmul, outline, row_sum, softmax

from tilewright.ir.dtype import DType
from tilewright.ir.expr import TRUE, Var
from tilewright.schedule import steps
from tilewright.schedule.find import find_block, find_loop
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    STEPS,
    ComputeAt,
    DecomposeReduction,
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
from tilewright.schedule.trace import parse_trace, replay
from tilewright.support.errors import ScheduleError, UserError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.compare import same_func
from tilewright.tir.func import Module, single
from tilewright.tir.parser import parse_func
from tilewright.tir.printer import print_func
from tilewright.tir.stmt import For, IterKind, LoopKind, blocks, children, loops

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


def test_split_with_a_remainder_refuses_a_loop_inside_of_a_block() -> None:
    """There is no predicate there that could leave iterations out."""
    func = parse_func("""
@func
def f(X: f32[4, 7], Y: out(f32[4, 7])):
    for i in range(4):
        with block("Y"):
            vi = spatial(4, i)
            for j in range(7):
                Y[vi, j] = X[vi, j] * f32(2.0)
""")
    with pytest.raises(ScheduleError, match="inside of a block"):
        Schedule(func).split("j", (None, 2))
    Schedule(func).split("j", (None, 7))


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


def test_softmax_with_rows_outside_and_lanes_inside() -> None:
    """Everything under the loop over rows first; then each reduction gets exact tiles and lanes, in place."""
    trace: list[Step] = [ComputeAt(b, "Y_i") for b in ("S", "E", "M")]
    trace.append(Parallel("Y_i"))
    for b in ("S", "M"):
        trace += [
            LoopPartition(f"{b}_1", (8,)),
            Split(f"{b}_1_p0", (None, 4)),
            Rfactor(f"{b}_p0", f"{b}_1_p0_1"),
            Vectorize(f"{b}_1_p0_1"),
            DecomposeReduction(f"{b}_p0_rf", f"{b}_1_p0_0"),
        ]
    done = check(softmax(10), *trace)
    assert isinstance(done.body, For)
    assert outline(done.body)[:11] == [
        "for Y_i in parallel(3):",
        "    for M_0 in range(1):",
        "        for M_1_p0_1_init in vectorized(4):",
        "            M_p0_rf_init(M_vi_p0_rf_init = Y_i, M_1_p0_1_v_rf_init = M_1_p0_1_init)",
        "        for M_1_p0_0 in range(2):",
        "            for M_1_p0_1 in vectorized(4):",
        "                M_p0_rf(M_vi_p0_rf = Y_i, M_1_p0_0_v_rf = reduce(M_1_p0_0), M_1_p0_1_v_rf = M_1_p0_1)",
        "        for M_1_p0_1_m in range(4):",
        "            M_p0(M_vi_p0 = Y_i, M_1_p0_1_v = reduce(M_1_p0_1_m))",
        "        for M_1_p1 in range(2):",
        "            M_p1(M_vi_p1 = Y_i, M_vk_p1 = reduce(M_1_p1 + 8))",
    ]


def test_partial_results_can_be_moved_under_the_rows() -> None:
    """The other way round: lanes first, with a remainder. The loops of the moved block end with the lanes."""
    done = check(
        row_sum(columns=10),
        Split("S_k", (None, 4)),
        Rfactor("S", "S_k_1"),
        ComputeAt("S_rf", "S_i_m"),
        Vectorize("S_rf_2"),
    )
    assert [b.name for b in blocks(done.body)] == ["S_rf", "S"]
    assert isinstance(done.body, For)


def test_parallel_over_a_loop_that_fills_a_buffer_of_its_own() -> None:
    """Each iteration computes the halo of its tile too, in a buffer that nobody else uses."""
    halo = parse_func("""
@func
def f(X: i32[9], Z: out(i32[8])):
    Y = alloc(i32[9])
    for t in range(4):
        for r in range(3):
            with block("Y"):
                vy = spatial(9, t * 2 + r)
                Y[vy] = X[vy] * i32(2)
        for s in range(2):
            with block("Z"):
                vz = spatial(8, t * 2 + s)
                Z[vz] = Y[vz] + Y[vz + 1]
""")
    check(halo, Parallel("t"))
    with pytest.raises(ScheduleError, match="not independent"):
        Vectorize("t").apply(single(halo))


# ------------------------------------------------------------------------------------------------ trace and schedule


def test_every_step_is_in_the_table() -> None:
    found = set[type]()
    for info in pkgutil.iter_modules(steps.__path__):
        module = importlib.import_module(f"{steps.__name__}.{info.name}")
        found |= {c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Step)}
    assert {c for c in found if not inspect.isabstract(c)} == set(STEPS)


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

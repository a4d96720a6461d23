"""blockize: a tile in a block of its own, and what other steps do around it."""

import numpy as np
import pytest
from native import run_native
from schedule_programs import check, check_native, conv, inputs_of, matmul, outline, row_sum, run, softmax

from tilewright.ir.dtype import DType
from tilewright.ir.expr import TRUE, Scope
from tilewright.schedule.find import find_block
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    Annotate,
    Bind,
    Blockize,
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
    Split,
    Unroll,
    Vectorize,
)
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.stmt import IterKind

TILE: tuple[Step, ...] = (
    Split("C_i", (None, 4)),
    Split("C_j", (None, 8)),
    Split("C_k", (None, 2)),
    Reorder(("C_i_0", "C_j_0", "C_k_0", "C_i_1", "C_j_1", "C_k_1")),
)
ROUND = matmul(m=8, n=16, k=6, relu=True)
RAGGED = matmul(m=7, n=18, k=5, relu=True)


def prepared() -> Func:
    """A GEMM of which one operand is computed."""
    b = FuncBuilder("prepared")
    x, y = b.param("X", (8, 6), DType.I32), b.param("B", (6, 16), DType.I32)
    a = b.compute("A", (8, 6), lambda i, k: x[i, k] * 3)
    return b.finish(b.reduce("C", (8, 16), (6,), lambda i, j, k: (a[i, k], y[k, j])))


# ---------------------------------------------------------------------------------------------------- the step


def test_the_tile_of_a_reduction_has_its_init_outside() -> None:
    func = check_native(ROUND, *TILE, Blockize("C_i_1"))
    assert outline(func.body)[3:10] == [
        "            C_o(C_vi_o = C_i_0, C_vj_o = C_j_0, C_vk_o = reduce(C_k_0))",
        "                for C_i_1_init in range(4):",
        "                    for C_j_1_init in range(8):",
        "                        C_init(C_vi_init = C_vi_o * 4 + C_i_1_init, C_vj_init = C_vj_o * 8 + C_j_1_init)",
        "                for C_i_1 in range(4):",
        "                    for C_j_1 in range(8):",
        "                        for C_k_1 in range(2):",
    ]
    outer, inner = find_block(func, "C_o"), find_block(func, "C")
    assert [(it.extent, it.kind) for it in outer.iters] == [
        (2, IterKind.SPATIAL),
        (2, IterKind.SPATIAL),
        (3, IterKind.REDUCE),
    ]
    assert outer.init is not None and inner.init is None


def test_a_reduction_that_is_all_inside_keeps_its_init() -> None:
    func = check_native(ROUND, Split("C_j", (None, 8)), Blockize("C_j_1"))
    assert [line.strip() for line in outline(func.body)][2:6] == [
        "C_o(C_vi_o = C_i, C_vj_o = C_j_0)",
        "for C_j_1 in range(8):",
        "for C_k in range(6):",
        "C(C_vi = C_vi_o, C_vj = C_vj_o * 8 + C_j_1, C_vk = reduce(C_k))",
    ]
    assert find_block(func, "C").init is not None


def test_the_whole_nest() -> None:
    func = check_native(ROUND, Blockize("C_i"))
    assert outline(func.body)[:2] == ["C_o()", "    for C_i in range(8):"]


def test_an_all_spatial_block() -> None:
    func = check_native(ROUND, Split("D_i", (None, 4)), Reorder(("D_j", "D_i_1")), Blockize("D_i_1"))
    assert [line.strip() for line in outline(func.body)][-3:] == [
        "D_o(D_vi_o = D_i_0, D_vj_o = D_j)",
        "for D_i_1 in range(4):",
        "D(D_vi = D_vi_o * 4 + D_i_1, D_vj = D_vj_o)",
    ]


def test_a_decomposed_reduction() -> None:
    func = check_native(ROUND, *TILE, DecomposeReduction("C", "C_k_0"), Blockize("C_i_1"))
    outer = find_block(func, "C_o")
    assert outer.init is None and outer.is_reduction


def test_conditions_go_where_their_loops_are() -> None:
    func = check_native(RAGGED, *TILE, Blockize("C_i_1"))
    lines = [line.strip() for line in outline(func.body)]
    assert (
        "C(C_vi = C_vi_o * 4 + C_i_1, C_vj = C_vj_o * 8 + C_j_1, C_vk = reduce(C_vk_o * 2 + C_k_1)) where "
        "C_vi_o * 4 + C_i_1 < 7 and C_vj_o * 8 + C_j_1 < 18 and C_vk_o * 2 + C_k_1 < 5" in lines
    )
    assert find_block(func, "C_o").predicate is TRUE
    func = check_native(RAGGED, Split("C_i", (None, 4)), Blockize("C_k"))
    assert "where C_i_0 * 4 + C_i_1 < 7" in outline(func.body)[3]


def test_a_split_that_runs_too_far_is_cut_outside() -> None:
    func = check_native(RAGGED, Split("C_i", (3, 4)), Blockize("C_i_1"))
    assert "C_o(C_vi_o = C_i_0) where C_i_0 < 2" in outline(func.body)[1]


def test_outer_loops_of_one_iteration_are_left_out() -> None:
    func = check_native(ROUND, Split("C_j", (None, 16)), Split("C_k", (None, 7)), Blockize("C_j_1"))
    assert [line.strip() for line in outline(func.body)][2] == "C_o(C_vi_o = C_i)"


def test_tiles_in_tiles() -> None:
    func = check_native(ROUND, *TILE, Blockize("C_j_1"), Blockize("C_i_1"))
    assert [line.strip().split("(")[0] for line in outline(func.body) if line.strip().startswith("C")] == [
        "C_o_o",
        "C_o_init",
        "C_init_init",
        "C_o",
        "C",
    ]
    func = check_native(ROUND, *TILE, Blockize("C_i_1"), Blockize("C_k_1", "p"))
    assert [line.strip().split("(")[0] for line in outline(func.body) if line.strip().startswith("C")] == [
        "C_o",
        "C_init",
        "C_p",
        "C",
    ]


def test_parts_of_a_partitioned_loop() -> None:
    check_native(
        RAGGED,
        LoopPartition("C_i", (4,)),
        Blockize("C_j_p0"),
        Blockize("C_j_p1"),
    )


def test_a_part_of_a_reduction_is_valid() -> None:
    s = Schedule(ROUND, debug=True)
    first, _ = s.loop_partition("C_k", (4,))
    _, inner = s.split(first, (None, 2))
    assert s.blockize(inner) == "C_p0_o"


def test_a_window() -> None:
    func = check_native(conv(), Reorder(("Y_c", "Y_r", "Y_s", "Y_o", "Y_h", "Y_v")), Blockize("Y_o"))
    assert outline(func.body)[7].strip().startswith("Y_o(Y_vc_o = reduce(Y_c), Y_vr_o = reduce(Y_r)")


def test_annotations_stay_with_the_inner_block() -> None:
    func = check(ROUND, *TILE, Annotate("C", "note", 1), Annotate("C_i_1", "note", 2), Blockize("C_i_1"))
    assert find_block(func, "C").annotations == (("note", 1),) and find_block(func, "C_o").annotations == ()


def test_floats_agree_to_the_bit() -> None:
    func = check_native(matmul(DType.F32, 7, 9, 11), *TILE, Blockize("C_i_1"), Reorder(("C_k_0", "C_i_0")))
    for a, b in zip(run(func), run_native(func, inputs_of(func)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_schedule_tells_the_name() -> None:
    s = Schedule(single(row_sum()))
    assert s.blockize("S_k") == "S_o"


# ------------------------------------------------------------------------------------------- steps around a tile

AROUND: dict[str, tuple[Step, ...]] = {
    "split": (Split("C_i_0", (None, 1)), Split("C_k_0", (2, 2))),
    "reorder_reduction_outside": (Reorder(("C_k_0", "C_j_0", "C_i_0")),),
    "reorder_spatial": (Reorder(("C_j_0", "C_i_0")),),
    "fuse": (Fuse(("C_i_0", "C_j_0")), Parallel("C_i_0_f")),
    "parallel": (Parallel("C_i_0"),),
    "unroll": (Unroll("C_k_0"), Unroll("C_j_0")),
    "bind": (Bind("C_i_0", "block_x"), Bind("C_j_0", "thread_x")),
    "partition": (LoopPartition("C_i_0", (1,)),),
    "partition_the_reduction": (LoopPartition("C_k_0", (1,)),),
    "decompose": (DecomposeReduction("C_o", "C_k_0"),),
    "decompose_outside": (DecomposeReduction("C_o", "C_i_0"), Reorder(("C_k_0", "C_i_0"))),
    "cache_of_the_tile": (
        CacheWrite("C_o", "C", Scope.LOCAL),
        ReverseComputeAt("C_o_C_out", "C_j_0"),
        Parallel("C_i_0"),
    ),
    "cache_of_an_operand": (CacheRead("C", "A", Scope.LOCAL), ComputeAt("C_A_in", "C_k_0")),
    "epilogue": (ReverseComputeAt("D", "C_j_0"), Parallel("C_i_0")),
}


@pytest.mark.parametrize("func", [ROUND, RAGGED], ids=["round", "ragged"])
@pytest.mark.parametrize("name", AROUND)
def test_steps_outside(name: str, func: Func) -> None:
    run_it = check if name == "bind" else check_native  # there is no code for thread axes
    run_it(func, *TILE, Blockize("C_i_1"), *AROUND[name])


@pytest.mark.parametrize("name", ["C_j_1", "C_i_1"])
def test_steps_inside(name: str) -> None:
    check_native(ROUND, *TILE, Blockize("C_i_1"), Vectorize(name))
    check_native(ROUND, *TILE, Blockize("C_i_1"), Unroll(name))
    check_native(ROUND, *TILE, Blockize("C_i_1"), Split(name, (None, 3)))
    check_native(ROUND, *TILE, Blockize("C_i_1"), Reorder(("C_k_1", "C_j_1", "C_i_1")))


def test_producers_move_to_loops_around() -> None:
    func = check_native(prepared(), *TILE, Blockize("C_i_1"), ComputeAt("A", "C_k_0"))
    assert [line.strip() for line in outline(func.body)][3:6] == [
        "for A_0 in range(4):",
        "for A_1 in range(2):",
        "A(A_vi = C_i_0 * 4 + A_0, A_vk = C_k_0 * 2 + A_1)",
    ]
    check_native(prepared(), *TILE, Blockize("C_i_1"), ComputeInline("A"))


def test_a_chain_of_reductions() -> None:
    check_native(
        softmax(),
        Blockize("M_k"),
        Blockize("S_k"),
        ReverseComputeAt("E", "M_i"),
        Parallel("M_i"),
        Parallel("S_i"),
    )

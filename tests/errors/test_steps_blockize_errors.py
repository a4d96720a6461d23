"""Tiles that cannot become a block: one test per mistake. And what cannot be done to one."""

import pytest
from test_steps_loops_errors import refused

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Scope
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    Blockize,
    CacheWrite,
    ComputeAt,
    DecomposeReduction,
    Fuse,
    Merge,
    Parallel,
    Reorder,
    ReverseComputeAt,
    Rfactor,
    Split,
    Vectorize,
)
from tilewright.schedule.trace import Trace
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.parser import parse_func


def gemm() -> Func:
    b = FuncBuilder("gemm")
    x, y = b.param("A", (8, 6), DType.F32), b.param("B", (6, 12), DType.F32)
    e = b.compute("E", (8, 6), lambda i, k: x[i, k] + 1.0)
    c = b.reduce("C", (8, 12), (6,), lambda i, j, k: (e[i, k], y[k, j]))
    return b.finish(b.compute("D", (8, 12), lambda i, j: c[i, j] * 2.0))


TILE: Trace = (
    Split("C_i", (None, 4)),
    Split("C_k", (None, 2)),
    Reorder(("C_i_0", "C_k_0", "C_i_1", "C_j", "C_k_1")),
)
DONE: Trace = (*TILE, Blockize("C_i_1"))
CASES: dict[str, tuple[Trace, Step, str]] = {
    "two_blocks_below": (
        (Merge(("C_i", "D_i")),),
        Blockize("C_i"),
        "there is not one block under single loops",
    ),
    "a_fused_loop_that_is_cut_in_two": (
        (Fuse(("C_i", "C_j")), Split("C_i_f", (None, 9))),
        Blockize("C_i_f_1"),
        "depends on loops inside and outside at once",
    ),
    "a_split_of_a_split_that_does_not_divide": (
        (Split("C_j", (None, 6)), Split("C_j_1", (None, 4))),
        Blockize("C_j_1_1"),
        "C_vj is not divided by the loops inside: they take it from 0 to 3, and those outside move it by 2",
    ),
    # what a tile does not do
    "a_tile_over_a_reduction_in_parallel": (
        DONE,
        Parallel("C_k_0"),
        "C_k_0 feeds the reduce iterator C_vk_o",
    ),
    "a_tile_over_a_reduction_vectorized": (
        DONE,
        Vectorize("C_k_0"),
        "C_k_0 feeds the reduce iterator C_vk_o",
    ),
    "a_reduction_inside_in_parallel": (DONE, Parallel("C_k_1"), "C_k_1 feeds the reduce iterator C_vk of C"),
    "a_consumer_in_the_middle_of_the_reduction": (
        DONE,
        ReverseComputeAt("D", "C_k_0"),
        "carries the reduction of block 'C'",
    ),
    "a_producer_moved_inside": (DONE, ComputeAt("E", "C_i_1"), "inside different blocks"),
    "the_tile_itself_moved": (DONE, ComputeAt("C_o", "D_i"), "holds loops or blocks of its own"),
    "the_inside_moved_out": (DONE, ComputeAt("C", "D_i"), "inside different blocks"),
    "init_of_the_inside": (DONE, DecomposeReduction("C", "C_i_1"), "C has no init"),
    "init_of_the_inside_moved_out": (
        (Split("C_j", (None, 4)), Blockize("C_k")),
        DecomposeReduction("C", "C_j_1"),
        "C is inside block C_o, and C_j_1 is outside of that",
    ),
    "rfactor_of_a_tile": (DONE, Rfactor("C_o", "C_k_0"), "the body of C_o is not one update"),
    "rfactor_inside": (DONE, Rfactor("C", "C_k_1"), "reduce iterators of C are bound by a block around it"),
    "a_cache_of_the_inside": (DONE, CacheWrite("C", "C", Scope.LOCAL), "C has two writers"),
    "a_cache_of_updates_without_their_init": (
        (*DONE, DecomposeReduction("C_o", "C_k_0")),
        CacheWrite("C_o", "C", Scope.LOCAL),
        "C has two writers, blocks 'C_o' and 'C_init_init'",
    ),
    "a_cache_of_what_the_tile_does_not_write": (
        DONE,
        CacheWrite("C_o", "E", Scope.LOCAL),
        "block 'C_o' does not write E",
    ),
    "a_loop_inside_and_one_outside_reordered": (
        DONE,
        Reorder(("C_i_1", "C_k_0")),
        "C_i_1 is not perfectly nested in C_k_0",
    ),
    "a_loop_inside_and_one_outside_fused": (DONE, Fuse(("C_k_0", "C_i_1")), "not the whole body of C_k_0"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(name: str) -> None:
    before, step, message = CASES[name]
    assert message in refused(step, *before, func=gemm()).message


def test_a_block_instead_of_a_loop() -> None:
    assert "gemm has no loop 'C'" in refused(Blockize("C"), func=gemm()).message


def test_names_that_are_taken() -> None:
    e = refused(Blockize("C_i_1"), *TILE, DecomposeReduction("C", "C_k_0"), Blockize("C_i_1"), func=gemm())
    assert "the new name" in e.message


TEXT = """
@func
def sums(A: i32[4, 6], S: out(i32[4])):
    for k_0 in range(2):
        for i in range(4):
            for k_1 in range(3):
                with block("S"):
                    vi = spatial(4, i)
                    vk = reduce(6, k_0 * 3 + k_1)
                    with init():
                        S[vi] = 0
                    S[vi] = S[vi] + A[vi, vk]
"""


def test_a_condition_by_way_of_no_iterator() -> None:
    text = TEXT.replace("spatial(4, i)", "spatial(4, 0)").replace("range(4)", "range(1)")
    text = text.replace("k_0 * 3 + k_1)", "k_1)").replace(
        "with init():", "where(k_0 < k_1)\n" + " " * 20 + "with init():"
    )
    e = refused(Blockize("i"), func=parse_func(text))
    assert "the condition k_0 - k_1 < 0 depends on loops inside and outside, and not by way of" in e.message


def test_a_loop_that_feeds_both_kinds_of_iterator() -> None:
    text = TEXT.replace("for i in range(4)", "for i in range(1)").replace("spatial(4, i)", "spatial(4, k_1)")
    e = refused(Blockize("i"), func=parse_func(text))
    assert "k_1 feeds both spatial and reduce iterators of S" in e.message


def test_a_loop_that_repeats_the_updates() -> None:
    text = TEXT.replace("spatial(4, i)", "spatial(4, 0)")
    e = refused(Blockize("i"), func=parse_func(text))
    assert "i runs updates of the same elements again, each time after init" in e.message


def test_a_buffer_that_goes_round_inside_the_tile() -> None:
    text = TEXT.replace("S: out(i32[4])", "S: out(i32[3])").replace("S[vi]", "S[vi % 3]")
    e = refused(Blockize("i"), func=parse_func(text))
    assert "i runs updates of the same elements again, each time after init" in e.message


def test_a_reduction_that_does_not_start_at_zero() -> None:
    text = TEXT.replace("k_0 * 3 + k_1", "k_0 * 3 + 2 - k_1")
    e = refused(Blockize("i"), func=parse_func(text))
    assert "the reduce iterators of S are not all 0 where its loops are" in e.message


def test_an_init_that_reads_what_the_updates_change() -> None:
    text = TEXT.replace("S[vi] = 0", "S[vi] = S[0]")
    e = refused(Blockize("i"), func=parse_func(text))
    assert (
        "the init of S reads elements of S, which depend on how inits and updates of elements take turns"
        in e.message
    )


SCAN = """
@func
def scan(A: i32[6], C: out(i32[8])):
    for i_0 in range(2):
        for k in range(6):
            for i_1 in range(4):
                with block("C"):
                    vi = spatial(8, i_0 * 4 + i_1)
                    vk = reduce(6, k)
                    with init():
                        C[vi] = 1
                    C[vi] = C[vi] + C[max(vi - 1, 0)] * A[vk]
"""
TILED_SCAN = """
@func
def scan(A: i32[6], C: out(i32[8])):
    for i_0 in range(2):
        for k in range(6):
            with block("C_o"):
                wi = spatial(2, i_0)
                wk = reduce(6, k)
                with init():
                    for i_init in range(4):
                        with block("C_init"):
                            ui = spatial(8, wi * 4 + i_init)
                            C[ui] = 1
                for i_1 in range(4):
                    with block("C"):
                        vi = spatial(8, wi * 4 + i_1)
                        vk = reduce(6, wk)
                        C[vi] = C[vi] + C[wi * 4] * A[vk]
"""


def test_updates_that_read_their_neighbours() -> None:
    for step in (Blockize("i_1"), DecomposeReduction("C", "k")):
        e = refused(step, func=parse_func(SCAN))
        assert (
            "C reads elements of C, which depend on how inits and updates of elements take turns" in e.message
        )


def test_a_tile_of_updates_that_read_their_neighbours_keeps_its_place() -> None:
    func = parse_func(TILED_SCAN.replace("C[wi * 4]", "C[max(vi - 1, 0)]"))
    assert "writes in another iteration" in refused(Reorder(("k", "i_0")), func=func).message


def test_a_cache_of_a_tile_that_reads_elsewhere() -> None:
    e = refused(CacheWrite("C_o", "C", Scope.LOCAL), func=parse_func(TILED_SCAN))
    assert "block 'C' reads C where it does not write it" in e.message


def test_a_cache_of_a_tile_that_updates_what_was_there_before() -> None:
    func = parse_func("""
@func
def twice(C: out(i32[8])):
    for i_0 in range(2):
        for i_1 in range(4):
            with block("C"):
                vi = spatial(8, i_0 * 4 + i_1)
                C[vi] = C[vi] * 2
""")
    e = refused(CacheWrite("C_o", "C", Scope.LOCAL), Blockize("i_1"), func=func)
    assert "block 'C' changes C in place" in e.message

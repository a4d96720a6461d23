"""Steps on a block's domain that are refused: one test per mistake."""

import pytest

from tilewright.ir.dtype import DType
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    AddUnitLoop,
    Distribute,
    DropUnitIters,
    FoldPadding,
    FuseIters,
    IterateOver,
    Reindex,
    Split,
)
from tilewright.schedule.trace import replay
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.parser import parse_func


def gemm() -> Func:
    b = FuncBuilder("gemm")
    x, y = b.param("A", (8, 6), DType.F32), b.param("B", (6, 4), DType.F32)
    c = b.reduce("C", (8, 4), (6,), lambda i, j, k: (x[i, k], y[k, j]))
    return b.finish(b.compute("D", (8, 4), lambda i, j: c[i, j] * 2.0))


def shifted() -> Func:
    b = FuncBuilder("shifted")
    x = b.param("X", (9,), DType.F32)
    t = b.compute("T", (9,), lambda i: x[i] * 2.0)
    return b.finish(b.compute("D", (8,), lambda i: t[i] + t[i + 1]))


def refused(step: Step, *before: Step, func: Func | None = None) -> str:
    module = replay(single(func or gemm()), before)
    with pytest.raises(ScheduleError) as e:
        step.apply(module)
    return str(e.value)


@pytest.mark.parametrize(
    "step",
    [
        FuseIters("C", ("C_vi", "C_vj")),
        Reindex("C", "B", ("C_vj", "C_vk")),
        AddUnitLoop("C"),
        DropUnitIters("C"),
    ],
)
def test_domain_of_a_tiled_block(step: Step) -> None:
    assert "not alone under plain loops" in refused(step, Split("C_i", (None, 4)))


def test_fuse_iters_of_different_kinds() -> None:
    assert "spatial and reduce iterators do not fuse" in refused(FuseIters("C", ("C_vi", "C_vk")))


def test_fuse_iters_unknown_iterator() -> None:
    assert "C_vi, C_vj, C_vk" in refused(FuseIters("C", ("C_vi", "C_vx")))


def test_fuse_iters_of_one() -> None:
    assert "two or more" in refused(FuseIters("C", ("C_vi",)))


def test_iterate_over_a_reduction() -> None:
    assert "not a single all-spatial store" in refused(IterateOver("C", "A"))


def test_iterate_over_what_is_not_read() -> None:
    assert "in 0 ways" in refused(IterateOver("D", "A"))


def test_iterate_over_what_is_read_twice() -> None:
    assert "in 2 ways" in refused(IterateOver("D", "T"), func=shifted())


def test_iterate_over_a_map_without_inverse() -> None:
    b = FuncBuilder("slice")
    x = b.param("X", (9,), DType.F32)
    t = b.compute("T", (9,), lambda i: x[i] * 2.0)
    func = b.finish(b.compute("D", (4,), lambda i: t[i * 2]))
    assert "not an invertible map" in refused(IterateOver("D", "T"), func=func)


def test_reindex_with_the_wrong_iterators() -> None:
    assert "B is indexed by C_vj, C_vk" in refused(Reindex("C", "B", ("C_vi", "C_vk")))


def test_reindex_of_what_is_not_read() -> None:
    assert "in 0 ways" in refused(Reindex("C", "D", ("C_vi",)))


def test_distribute_a_single_statement() -> None:
    assert "single statement" in refused(Distribute("C_i"))


CARRIED = """
@func
def carried(X: f32[8], D: out(f32[8])):
    T = alloc(f32[8])
    for i in range(8):
        with block("t"):
            tv = spatial(8, i)
            T[tv] = X[tv]
        with block("d"):
            dv = spatial(8, i)
            D[dv] = T[INDEX]
"""


def test_distribute_what_is_carried_between_iterations() -> None:
    assert "not independent" in refused(Distribute("i"), func=parse_func(CARRIED.replace("INDEX", "0")))


def test_distribute_independent_iterations() -> None:
    module = Distribute("i").apply(single(parse_func(CARRIED.replace("INDEX", "dv"))))
    assert module.func_of_loop("i_d1") is not None


def test_drop_unit_iters_of_a_reduction_whose_init_stores_elsewhere() -> None:
    func = parse_func("""
@func
def f(A: f32[4, 1], S: out(f32[5])):
    for i in range(4):
        for k in range(1):
            with block("S"):
                vi = spatial(4, i)
                vk = reduce(1, k)
                with init():
                    S[vi + 1] = 0
                S[vi] = S[vi] + A[vi, vk]
""")
    text = refused(DropUnitIters("S"), func=func)
    assert "the init of block 'S' does not store what its body updates" in text


def test_fold_padding_of_no_such_block() -> None:
    assert "no block is named 'X'" in refused(FoldPadding("X"))

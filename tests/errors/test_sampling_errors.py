"""Sampling steps that are refused: one test per mistake."""

import pytest

from tilewright.ir.dtype import DType
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    Parallel,
    SampleCategorical,
    SampleComputeLocation,
    SamplePerfectTile,
    Split,
    Unroll,
    Vectorize,
)
from tilewright.schedule.trace import replay
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single


def gemm() -> Func:
    b = FuncBuilder("gemm")
    x, y = b.param("A", (8, 6), DType.F32), b.param("B", (6, 4), DType.F32)
    c = b.reduce("C", (8, 4), (6,), lambda i, j, k: (x[i, k], y[k, j]))
    return b.finish(b.compute("D", (8, 4), lambda i, j: c[i, j] * 2.0))


def refused(step: Step, *before: Step) -> str:
    module = replay(single(gemm()), before)
    with pytest.raises(ScheduleError) as e:
        step.apply(module)
    assert str(e.value).startswith(f"{step}: ")
    assert str(e.value).count(str(step)) == 1
    return str(e.value)


def without_choices(
    step: SamplePerfectTile | SampleCategorical | SampleComputeLocation, *before: Step
) -> str:
    module = replay(single(gemm()), before)
    with pytest.raises(ScheduleError) as e:
        step.choices(module)
    return str(e.value)


@pytest.mark.parametrize(
    "step",
    [SamplePerfectTile("C_i", 2, 8), SampleCategorical(((),)), SampleComputeLocation("C")],
    ids=["tile", "categorical", "location"],
)
def test_nothing_is_decided(step: Step) -> None:
    text = refused(step)
    assert "nothing is decided" in text
    assert "decide(module, trace, rng)" in text


def test_tile_that_does_not_divide() -> None:
    assert "the product of the factors is 9, the extent of C_i is 8" in refused(
        SamplePerfectTile("C_i", 2, 8, (3, 3))
    )


def test_tile_with_too_wide_an_innermost_loop() -> None:
    assert "innermost factor 8 is more than 4" in refused(SamplePerfectTile("C_i", 2, 4, (1, 8)))


def test_tile_with_the_wrong_number_of_factors() -> None:
    assert "3 factors are decided, for 2 parts" in refused(SamplePerfectTile("C_i", 2, 8, (2, 2, 2)))


def test_tile_of_one_part() -> None:
    assert "two or more" in refused(SamplePerfectTile("C_i", 1, 8, (8,)))


def test_tile_of_no_loop() -> None:
    assert "no loop is named 'C_x'" in refused(SamplePerfectTile("C_x", 2, 8, (2, 4)))


def test_tile_of_a_parallel_loop() -> None:
    assert "split loops before that" in refused(SamplePerfectTile("C_i", 2, 8, (2, 4)), Parallel("C_i"))
    assert "split loops before that" in without_choices(SamplePerfectTile("C_i", 2, 8), Parallel("C_i"))


def test_tile_without_choices() -> None:
    assert "no 2 factors of 8 have an innermost of at most 0" in without_choices(
        SamplePerfectTile("C_i", 2, 0)
    )


def test_option_that_is_not_there() -> None:
    assert "there is no option 2; there are 2" in refused(SampleCategorical(((), ()), 2))


def test_option_that_is_refused() -> None:
    step = SampleCategorical(((), (Split("C_i", (None, 2)), Vectorize("C_k"))), 1)
    assert "Vectorize(loop='C_k'): C_k feeds the reduce iterator" in refused(step)


def test_option_with_a_decision_of_its_own() -> None:
    step = SampleCategorical(((SamplePerfectTile("C_i", 2, 8, (2, 4)),), ()), 1)
    assert "has a decision of its own" in refused(step)


def test_no_option_is_legal() -> None:
    assert "C_k feeds the reduce iterator" in without_choices(SampleCategorical(((Vectorize("C_k"),),)))


def test_there_are_no_options() -> None:
    assert "there are no options" in without_choices(SampleCategorical(()))


def test_location_of_no_block() -> None:
    assert "no block is named 'X'" in refused(SampleComputeLocation("X", "root"))
    assert "no block is named 'X'" in without_choices(SampleComputeLocation("X"))


def test_location_that_is_not_legal() -> None:
    assert "is a reduction" in refused(SampleComputeLocation("C", "inline"))
    assert "ComputeAt(block='C', loop='C_i')" in refused(SampleComputeLocation("C", "C_i"), Unroll("D_i"))

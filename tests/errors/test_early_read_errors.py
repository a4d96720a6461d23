"""What cannot be read before the nest of a block is not copied there; sampled tiles are of a sane number."""

import pytest

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    const,
    select,
)
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.schedule.steps import FoldPadding, Reindex, SamplePerfectTile, Split, Stage
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single


def padded() -> Func:
    b = FuncBuilder("padded")
    x = b.param("X", (4,), DType.I32)
    p = b.compute(
        "P",
        (6,),
        lambda i: select(logical_and(const(1) <= i, i < 5), x[(i - 1,)], const(0, DType.I32)),
    )
    return b.finish(b.reduce("S", (6,), (3,), lambda i, k: p[(i,)]))


def refused(step: Step, s: Schedule | None = None) -> str:
    s = s or Schedule(padded())
    before = s.module
    with pytest.raises(ScheduleError) as e:
        s.apply(step)
    assert str(e.value).startswith(str(step)) and s.module is before
    return str(e.value)


def test_a_copy_would_read_where_a_condition_forbids_it() -> None:
    assert "only under a condition" in refused(Reindex("P", "X", ("P_vi",)))
    assert "only under a condition" in refused(Stage("P", (1,), ("P_vi",)))


def test_the_whole_select_can_be_staged() -> None:
    s = Schedule(padded(), debug=True)
    s.apply(Stage("P", (), ("P_vi",)))
    assert len(s.trace) == 1


def test_an_accumulator_is_not_copied() -> None:
    assert "cannot be read beforehand" in refused(Reindex("S", "S", ("S_vi",)))


def test_what_is_written_in_the_same_nest_is_not_copied() -> None:
    b = FuncBuilder("pair")
    x = b.param("X", (4, 3), DType.I32)
    y = b.compute("Y", (4, 3), lambda i, j: x[i, j] + 1)
    s = Schedule(b.finish(b.compute("Z", (4, 3), lambda i, j: y[i, j] * 2)))
    s.compute_at("Y", "Z_i")
    block = Reindex("Z", "Y", ("Z_vi", "Z_vj"))
    refused(block, s)


def test_nor_is_it_where_a_condition_decides_whether_it_is_read() -> None:
    b = FuncBuilder("shifted")
    x = b.param("X", (1, 3), DType.I32)
    total = b.reduce("T", (1,), (3,), lambda i, k: x[i, k])
    late = b.compute("L", (2,), lambda i: select(const(1) <= i, total[(i - 1,)], const(0, DType.I32)))
    s = Schedule(b.finish(late))
    s.reverse_compute_at("L", "T_i")
    assert "cannot be read beforehand" in refused(Stage("L", (), ("L_vi",)), s)


def test_iterators_of_a_block_inside_are_not_the_blocks_own() -> None:
    s = Schedule(padded())
    outer = s.blockize("S_i")
    assert "P is indexed by S_vi" in refused(Reindex(outer, "P", ("S_vi",)), s)


def test_refusals_of_fold_padding_name_the_step() -> None:
    s = Schedule(padded())
    s.apply(Split("P_i", (None, 2)))
    assert "plain loops" in refused(FoldPadding("P"), s)


@pytest.mark.parametrize("parts", [-1, 0, 1000])
def test_the_number_of_sampled_tiles(parts: int) -> None:
    with pytest.raises(ScheduleError, match="a loop is tiled into 1 to 16 parts"):
        SamplePerfectTile("P_i", parts, 4).choices(single(padded()))

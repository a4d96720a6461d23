"""The parallel grain: several iterations of a parallel loop in one part."""

import pytest
from schedule_programs import check_native, matmul, outline

from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps import Coarsen, Parallel
from tilewright.support.errors import ScheduleError


def test_iterations_are_taken_together() -> None:
    func = check_native(matmul(m=12), Parallel("C_i"), Coarsen("C_i", 4))
    assert outline(func.body)[:2] == ["for C_i_0 in parallel(3):", "    for C_i_1 in range(4):"]


@pytest.mark.parametrize(
    ("is_parallel", "grain", "why"),
    [(False, 2, "is not parallel"), (True, 5, "no whole number of parts"), (True, 1, "no whole number")],
)
def test_what_cannot_be_taken_together_is_refused(is_parallel: bool, grain: int, why: str) -> None:
    s = Schedule(matmul(m=12))
    if is_parallel:
        s.parallel("C_i")
    with pytest.raises(ScheduleError, match=why):
        s.coarsen("C_i", grain)

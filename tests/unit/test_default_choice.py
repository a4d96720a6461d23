"""What the default chooses for a Func can be asked for again by name."""

import pytest
from schedule_programs import PROGRAMS

from tilewright.search.default import choose_schedule, schedule_as
from tilewright.support.errors import ScheduleError
from tilewright.target.target import AVX2


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_the_choice_makes_the_same_schedule_again(name: str) -> None:
    func = PROGRAMS[name]
    chosen = choose_schedule(func, AVX2)
    again = schedule_as(func, AVX2, frozenset(), chosen.family, chosen.decisions)
    assert str(again.func) == str(chosen.draft.func)
    assert again.trace == chosen.draft.trace


def test_a_family_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ScheduleError, match="does not fit"):
        schedule_as(next(iter(PROGRAMS.values())), AVX2, frozenset(), "winograd", {})
    with pytest.raises(ScheduleError, match="does not fit"):
        schedule_as(next(iter(PROGRAMS.values())), AVX2, frozenset(), "no such family", {})

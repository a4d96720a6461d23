"""What is wrong is refused: by a ScheduleError that names the step, and never by anything else."""

import random
from collections.abc import Callable, Iterator

import pytest

from tests.fuzz.illegal_steps import RULES
from tests.fuzz.random_funcs import random_func
from tests.fuzz.random_steps import random_step
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.support.errors import ScheduleError, UserError
from tilewright.tir.func import Func
from tilewright.tir.printer import print_func

MOST = 12  # steps that one rule gets on one program


def scheduled(seed: int) -> Func:
    """A random function after some random steps."""
    rng, s = random.Random(seed), Schedule(random_func(seed))
    for _ in range(rng.randint(0, 12)):
        try:
            s.apply(random_step(rng, s.module))
        except UserError:
            continue
    return s.func


def check(rule: Callable[[Func], Iterator[Step]], seeds: range) -> None:
    tried = 0
    for seed in seeds:
        func = scheduled(seed)
        steps = list(rule(func))
        for step in random.Random(seed).sample(steps, min(len(steps), MOST)):
            tried += 1
            s = Schedule(func)
            before = s.module
            context = f"seed {seed}: {step}\n{print_func(func)}"
            try:
                s.apply(step)
            except ScheduleError as e:
                assert str(e).startswith(str(step)), f"the refusal does not name the step: {e}\n{context}"
                assert s.module is before and s.trace == ()
            except Exception as e:
                pytest.fail(f"{type(e).__name__}: {e}\n{context}")
            else:
                pytest.fail(f"was not refused: {context}")
    assert tried, "the rule has found nothing to do"


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.__name__)
def test_illegal_steps_are_refused(rule: Callable[[Func], Iterator[Step]]) -> None:
    check(rule, range(12))


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.__name__)
def test_many_illegal_steps_are_refused(rule: Callable[[Func], Iterator[Step]]) -> None:
    check(rule, range(1000, 1400))

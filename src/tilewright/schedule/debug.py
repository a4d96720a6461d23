"""Debug mode: every step is held to what it promises, right after it was taken.

    Schedule(program, debug=True)           one schedule
    TILEWRIGHT_DEBUG=1                      all of them, those of the default recipes and of the search too

After each step the rules of programs are checked (`tir/verify.py`), all conditions of the Funcs that changed are found
out from nothing (`validate.py`), and compared with what is found with the help of memory; and the step is held to its
own promise (`Step.broken_promise`), such as that streaming rows moves no more than the blocks did. A step that breaks a
rule, or makes a valid program invalid, is a defect of the step: an `InternalError` names it and shows where the program
is wrong. A program that was wrong before the first step is not blamed on one.
"""

import os

from tilewright.schedule.excerpt import excerpt
from tilewright.schedule.step import Step
from tilewright.schedule.validate import Validator, validate
from tilewright.support.errors import InternalError
from tilewright.tir.func import Func, Module
from tilewright.tir.verify import verify_module


def is_debug_mode() -> bool:
    """Does the environment ask for it?"""
    return os.environ.get("TILEWRIGHT_DEBUG", "") not in ("", "0")


class Watch:
    """Looks at a Module after each step. Holds what is remembered of it."""

    def __init__(self) -> None:
        self._known = Validator()

    def check(self, step: Step, before: Module, after: Module) -> None:
        """Raises InternalError if `step`, which took `before` to `after`, did something it must not."""
        try:
            verify_module(after)
        except InternalError as e:
            raise InternalError(f"{step} breaks a rule of programs: {e}") from e
        old = {f.name: f for f in before.funcs}
        for func in after.funcs:
            if func is not old.get(func.name):
                self._check_func(step, old.get(func.name), func)

    def _check_func(self, step: Step, before: Func | None, after: Func) -> None:
        broken = None if before is None else step.broken_promise(before, after)
        if broken is not None:
            raise InternalError(f"{step} {broken}")
        fresh = validate(after)
        remembered = self._known.validate(after)
        if not fresh.same_as(remembered):
            raise InternalError(
                f"after {step} what is remembered of {after.name} is not what is found anew\n"
                f"remembered:\n{remembered.explain()}\nanew:\n{fresh.explain()}"
            )
        if fresh.is_valid or (before is not None and not self._known.validate(before).is_valid):
            return
        problem = fresh.problems[0]
        raise InternalError(
            f"{step} makes {after.name} invalid: {problem.reason}\n  at: {excerpt(after, problem.at)}"
        )

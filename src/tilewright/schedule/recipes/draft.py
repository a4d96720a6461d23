"""A Func being scheduled by a recipe."""

from tilewright.schedule.nest import find_loop
from tilewright.schedule.own_nest import own_nest
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.support.errors import ScheduleError
from tilewright.tir.stmt import Block, For


class Draft(Schedule):
    """A Schedule of a Module with one Func, with what recipes ask of it."""

    def attempt(self, step: Step) -> bool:
        """Apply the step if its preconditions hold."""
        try:
            self.apply(step)
        except ScheduleError:
            return False
        return True

    def is_untouched(self, block: Block) -> bool:
        """Is the block still alone under plain loops, one per iterator?"""
        try:
            own_nest(self.func, block)
        except ScheduleError:
            return False
        return True

    def loop(self, name: str) -> For:
        return find_loop(self.func, name)

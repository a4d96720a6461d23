"""A Func being scheduled by a recipe."""

from tilewright.schedule.find import find_loop
from tilewright.schedule.own_nest import own_nest
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.schedule.trace import Trace
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func, Module
from tilewright.tir.stmt import Block, For

_MOST_KNOWN = 2048


class Draft(Schedule):
    """A Schedule of a Module with one Func, with what recipes ask of it.

    Drafts that branch off from one know what steps made of each other's programs: the schedules of a design space begin
    alike, with the same operands packed in the same way, and part late.
    """

    def __init__(self, program: Func | Module, trace: Trace = (), *, debug: bool | None = None) -> None:
        super().__init__(program, trace, debug=debug)
        self._known: dict[tuple[Module, Step], Module] = {}

    def branch(self) -> "Draft":
        """Another draft that goes on from here."""
        other = Draft(self.module, self.trace)
        other._known = self._known
        return other

    def _after(self, step: Step) -> Module:
        key = self.module, step
        module = self._known.get(key)
        if module is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            module = self._known[key] = super()._after(step)
        return module

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

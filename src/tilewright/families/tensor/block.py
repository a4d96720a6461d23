"""A block that is becoming a tensor intrinsic: what the parts of that work know of it."""

from dataclasses import dataclass

from tilewright.families.tensor.mapping import IterGroup, Mapping
from tilewright.ir.expr import Var
from tilewright.schedule.find import find_block
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.support.errors import ScheduleError
from tilewright.target.intrinsic import Intrinsic
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Store


@dataclass(frozen=True, slots=True)
class RoleAxis:
    """A group as iterators of the block: one after fusing; those of a role that is all free stay apart."""

    group: IterGroup
    iters: tuple[str, ...]


class TensorBlock:
    """The block as it is now, by its name, in a schedule that is being made."""

    def __init__(self, schedule: Schedule, name: str, mapping: Mapping, intrinsic: Intrinsic) -> None:
        self.schedule, self.name, self.mapping, self.intrinsic = schedule, name, mapping, intrinsic

    @property
    def func(self) -> Func:
        func = self.schedule.module.func_of_block(self.name)
        if func is None:
            raise ScheduleError(f"no block is named {self.name!r}", hint="print the module to see its names")
        return func

    @property
    def block(self) -> Block:
        return find_block(self.func, self.name)

    @property
    def store(self) -> Store:
        store = self.block.store
        return store

    def attempt(self, step: Step) -> bool:
        try:
            self.schedule.apply(step)
        except ScheduleError:
            return False
        return True

    def dims(self, operand: int) -> list[Var]:
        """The loops of the intrinsic that index an operand's dimensions."""
        return [v for v in self.intrinsic.dims[operand] if v is not None]


def is_all_free(group: IterGroup) -> bool:
    """Do all loops of the role take any extent, and any number of loops?"""
    return all(n.var in group.role.free for n in group.role.loops)

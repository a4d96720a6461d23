"""Where a buffer lives."""

from enum import Enum, unique


@unique
class Scope(Enum):
    """Where a buffer lives."""

    GLOBAL = "global"  # memory shared by all workers: inputs, outputs, constants, the arena
    LOCAL = "local"  # memory of one worker, for the extent of the loop body that holds all its uses
    REGISTER = "register"  # SSA values: every index is a constant after unrolling, lanes aside

    __hash__ = object.__hash__

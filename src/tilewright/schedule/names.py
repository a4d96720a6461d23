"""Names of loops, blocks and buffers in a Func: which there are, and which are free."""

from collections.abc import Iterable

from tilewright.support.errors import ScheduleError
from tilewright.tir.declared import declared
from tilewright.tir.func import Func
from tilewright.tir.stmt import Stmt


def bound_names(s: Stmt) -> set[str]:
    """Every name that `s` binds: loops, blocks, iterators."""
    found = declared(s)
    return {*found.blocks, *(v.name for v in found.ranges)}


def check_fresh(func: Func, names: Iterable[str]) -> None:
    """Refuse to make a loop, an iterator, a block or a buffer whose name is taken: equal names are equal variables."""
    taken, buffers = func.names, {b.name for b in (*func.params, *func.locals)}
    clash = min((n for n in names if n in taken or n in buffers), default=None)
    if clash is not None:
        raise ScheduleError(
            f"the new name {clash!r} is taken in {func.name}",
            hint="this step was applied to the same loop, block or buffer before; apply it to what it made",
        )

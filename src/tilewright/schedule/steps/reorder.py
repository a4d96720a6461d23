"""reorder: loops of one nest change places.

    for i in range(4):             Reorder(("k", "i"))        for k in range(8):
        for j in range(2):               ─────>                   for j in range(2):
            for k in range(8):                                        for i in range(4):
                block(…)                                                  block(…)

The named loops take the places they have together, in the given order; loops between them that are not named stay
where they are. From the outermost named loop to the innermost each loop's body is the next loop.

A reduction may be summed in another order: that is what reorder means, and floats round differently then. What must
not change is that a block reads what another has written, and that `init` comes before the updates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.schedule.excerpt import refusal
from tilewright.schedule.nest import chain, find_loop, path_to, replace_stmt, starts_at_zero, wrap
from tilewright.schedule.step import FuncStep
from tilewright.support.errors import ScheduleError
from tilewright.tir.analysis.independence import Instance, instances, order_dependence
from tilewright.tir.func import Func
from tilewright.tir.stmt import For, IterKind


@dataclass(frozen=True, slots=True)
class Reorder(FuncStep):
    loops: tuple[str, ...]

    def anchor(self) -> str:
        if not self.loops:
            raise ScheduleError(f"{self}: no loop is named")
        return self.loops[0]

    def rewrite(self, func: Func) -> Func:
        if len(set(self.loops)) != len(self.loops):
            raise ScheduleError("a loop is named twice")
        named = {name: find_loop(func, name) for name in self.loops}
        old = self._nest(func, named)
        order = iter(self.loops)
        new = [named[next(order)] if loop.var.name in named else loop for loop in old]
        _check_order(func, old, new)
        return replace_stmt(func, old[0], wrap(new, old[-1].body))

    def _nest(self, func: Func, named: dict[str, For]) -> list[For]:
        """The loops from the outermost named one to the innermost."""
        by_depth = sorted(named.values(), key=lambda n: len(path_to(func.body, n)))
        inside = chain(by_depth[0])
        for loop in by_depth[1:]:
            if not any(n is loop for n in inside):
                raise refusal(
                    func,
                    loop,
                    f"{loop.var.name} is not perfectly nested in {by_depth[0].var.name}",
                    hint="loops that change places must form one chain, without other statements in between",
                )
        return inside[: 1 + next(d for d, n in enumerate(inside) if n is by_depth[-1])]


def _check_order(func: Func, old: Sequence[For], new: Sequence[For]) -> None:
    body = old[-1].body
    found = list(instances(body))
    for b in found:
        if b.block.init is not None and not _init_stays_first(b, old, new):
            raise refusal(
                func,
                b.block,
                f"the init of {b.block.name} would run after some of its updates, since a loop that feeds both spatial "
                "and reduce iterators changes places",
                hint=f"decompose_reduction first: DecomposeReduction({b.block.name!r}, {old[0].var.name!r})",
            )
    moved = [a.var for a, b in zip(old, new, strict=True) if a is not b]
    conflict = order_dependence(func, old[0], moved)
    if conflict is not None:
        raise refusal(
            func,
            old[0],
            f"{conflict.other} uses elements of {conflict.buffer.name} that {conflict.writer} writes in another "
            "iteration",
            hint="move the blocks into nests of their own before the loops change places",
        )


def _init_stays_first(b: Instance, old: Sequence[For], new: Sequence[For]) -> bool:
    """Does the update whose reduce iterators are all 0 stay the first one of each element?

    It does if the loops that feed reduce iterators keep their order, or if these loops feed nothing else and all start
    with the reduce iterators at 0: then each element sees them count up from 0 in any order.
    """
    feeding = b.loop_vars(IterKind.REDUCE)
    if [n.var for n in old if n.var in feeding] == [n.var for n in new if n.var in feeding]:
        return True
    if not feeding.isdisjoint(b.loop_vars(IterKind.SPATIAL)):
        return False
    return starts_at_zero(b.bindings, b.block)

"""reorder: loops of one nest change places.

    for i in range(4):             Reorder(("k", "i"))        for k in range(8):
        for j in range(2):               ─────>                   for j in range(2):
            for k in range(8):                                        for i in range(4):
                block(…)                                                  block(…)

The named loops take the places they have together, in the given order; loops between them that are not named stay
where they are. From the outermost named loop to the innermost each loop's body is the next loop.

A reduction may be summed in another order: that is what reorder means, and floats round differently then. What must
not change is that a block reads what another has written, and that `init` comes before the updates. So loops that
depend on their own earlier iterations keep their order; past them others may move whose iterations have no element in
common. A vectorized loop does not come to hold a parallel one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.simplify import Simplifier
from tilewright.schedule.edit import replace_stmt, wrap
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import chain, find_loop, path_to, starts_at_zero
from tilewright.schedule.step import FuncStep
from tilewright.support.errors import ScheduleError
from tilewright.tir.analysis.affine import determined
from tilewright.tir.analysis.independence import Instance, crossing, instances, order_dependence
from tilewright.tir.func import Func
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import For, IterKind, LoopKind


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
                raise step_refusal(
                    func,
                    loop,
                    f"{loop.var.name} is not perfectly nested in {by_depth[0].var.name}",
                    hint="loops that change places must form one chain, without other statements in between",
                )
        return inside[: 1 + next(d for d, n in enumerate(inside) if n is by_depth[-1])]


def _check_order(func: Func, old: Sequence[For], new: Sequence[For]) -> None:
    vector = next((d for d, n in enumerate(new) if n.kind is LoopKind.VECTORIZED), len(new))
    for n in new[vector:]:
        if n.kind is LoopKind.PARALLEL or n.kind.is_thread_axis:
            raise step_refusal(
                func,
                n,
                f"the vectorized loop {new[vector].var.name} would hold the {n.kind.value} loop {n.var.name}",
            )
    simplify: Simplifier | None = None
    for b in instances(old[-1].body):
        if b.block.init is None:
            continue
        simplify = simplify or Simplifier(ranges(func.body))
        if not _init_stays_first(b, old, new, simplify):
            raise step_refusal(
                func,
                b.block,
                f"the init of {b.block.name} would run after some of its updates",
                hint=f"make it a block of its own first: DecomposeReduction({b.block.name!r}, …)",
            )
    moved = [a.var for a, b in zip(old, new, strict=True) if a is not b]
    conflict = order_dependence(func, old[0], moved)
    if conflict is not None and not _only_pass(func, old, new):
        raise step_refusal(
            func,
            old[0],
            f"{conflict.other} uses elements of {conflict.buffer.name} that {conflict.writer} writes in another "
            "iteration",
            hint="move the blocks into nests of their own before the loops change places",
        )


def _only_pass(func: Func, old: Sequence[For], new: Sequence[For]) -> bool:
    """Do loops whose iterations have an element in common keep their order? What meets in an element differs in no
    other loop, so it is met in the order of these.
    """
    kept = [n.var for n in old if crossing(func, old[0], n.var) is not None]
    return [n.var for n in new if n.var in kept] == kept


def _init_stays_first(b: Instance, old: Sequence[For], new: Sequence[For], simplify: Simplifier) -> bool:
    """Does the update whose reduce iterators are all 0 stay the first one of each element?

    A loop that feeds reduce iterators counts up from 0 for each element, whatever its place, if it feeds nothing else
    and all is 0 where it starts. Otherwise such loops keep their order. A loop that repeats the whole reduction (its
    iterations have the same iterator values) stays outside of the loops it was outside of.
    """
    feeding = b.loop_vars(IterKind.REDUCE)
    before, after = ([n.var for n in nest] for nest in (old, new))
    kept = [v for v in before if v in feeding] == [v for v in after if v in feeding]
    mixed = not feeding.isdisjoint(b.loop_vars(IterKind.SPATIAL))
    if not kept and (mixed or not starts_at_zero(b.bindings, b.block)):
        return False
    known = determined(b.bindings, simplify)
    repeating = [n.var for n in old if n.extent > 1 and n.var not in known]
    return all(
        feeding.intersection(before[before.index(v) :]) == feeding.intersection(after[after.index(v) :])
        for v in repeating
    )

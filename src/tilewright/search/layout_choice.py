"""Layouts by cost over the whole graph: which images have their channels last.

Each image is a choice of two, and `layout_terms` says what choices cost, alone and in pairs: of what a kernel reads and
what it writes. The cheapest of all choices together is a cut. So a layout is taken up where what it saves is more than
what turning costs at the inputs and outputs, whose layout is given, and wherever else it meets another one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from tilewright.ir.expr import Buffer
from tilewright.search.cut import Table, Two, cheapest
from tilewright.search.labelling import total
from tilewright.search.layout_terms import MUST, LayoutTerm, layout_terms
from tilewright.target.target import Target
from tilewright.tir.func import Module


@dataclass(frozen=True, slots=True)
class Component:
    """Images that hand on to each other in one layout, and the time that depends on it: as chosen, and with all of them
    the other way. Both are estimates, and leave out what is the same for all layouts.
    """

    buffers: tuple[str, ...]
    is_last: bool
    seconds: float
    otherwise: float  # infinite where that cannot be

    def __str__(self) -> str:
        names = ("as stated", "channels last")
        first, more = self.buffers[0], len(self.buffers) - 1
        who = f"{first} and {more} more" if more else first
        chosen, other = names[self.is_last], names[not self.is_last]
        if self.otherwise == inf:
            return f"{who}: {chosen}, {self.seconds * 1e3:.3g} ms; otherwise it cannot be"
        return f"{who}: {chosen}, {self.seconds * 1e3:.3g} ms ({other} {self.otherwise * 1e3:.3g} ms)"


def choose_layouts(
    module: Module, images: Mapping[Buffer, int], target: Target
) -> tuple[dict[Buffer, int], tuple[Component, ...]]:
    """Those of the images that have their channels last, and why."""
    problem = LayoutProblem(tuple(images), layout_terms(module, images, target))
    choice = cheapest(problem.alone, problem.pairs)
    last = {b: at for (b, at), x in zip(images.items(), choice, strict=True) if x}
    return last, problem.components(choice)


class LayoutProblem:
    """The choices by number, in the order of `images`."""

    def __init__(self, images: Sequence[Buffer], terms: Sequence[LayoutTerm]) -> None:
        self.images = images
        number = {b: n for n, b in enumerate(images)}
        self.alone: list[Two] = [(0.0, 0.0)] * len(images)
        self.pairs: dict[tuple[int, int], Table] = {}
        for t in terms:
            at = [number[b] for b in t.buffers]
            if len(at) == 1:
                zero, one = self.alone[at[0]]
                self.alone[at[0]] = zero + t.seconds[0][0], one + t.seconds[1][0]
            else:
                self._add(at[0], at[1], t.seconds)

    def _add(self, u: int, v: int, table: Table) -> None:
        if u > v:
            u, v, table = v, u, ((table[0][0], table[1][0]), (table[0][1], table[1][1]))
        known = self.pairs.get((u, v), ((0.0, 0.0), (0.0, 0.0)))
        (a, b), (c, d) = known
        (e, f), (g, h) = table
        self.pairs[u, v] = (a + e, b + f), (c + g, d + h)

    def components(self, choice: Sequence[int]) -> tuple[Component, ...]:
        """The images in groups of one layout that terms connect."""
        group = list(range(len(choice)))

        def root(n: int) -> int:
            while group[n] != n:
                group[n] = group[group[n]]
                n = group[n]
            return n

        for u, v in self.pairs:
            if choice[u] == choice[v]:
                group[root(v)] = root(u)
        members: dict[int, list[int]] = {}
        for n in range(len(choice)):
            members.setdefault(root(n), []).append(n)
        return tuple(self._component(m, choice) for m in members.values())

    def _component(self, members: Sequence[int], choice: Sequence[int]) -> Component:
        inside = set(members)
        alone = [c if n in inside else (0.0, 0.0) for n, c in enumerate(self.alone)]
        pairs: Mapping[tuple[int, int], Table] = {
            (u, v): t for (u, v), t in self.pairs.items() if u in inside or v in inside
        }
        other = [1 - x if n in inside else x for n, x in enumerate(choice)]
        names = tuple(self.images[n].name for n in members)
        is_last = bool(choice[members[0]])
        otherwise = total(other, alone, pairs)
        return Component(names, is_last, total(choice, alone, pairs), inf if otherwise >= MUST else otherwise)

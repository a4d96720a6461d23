"""Where one kernel ends and the next begins, among groups that memory bounds: a search by estimated time.

It starts from the groups of the rules (`group.py`), so the result is never slower than these, by the estimate. First,
a transpose that a group reads through becomes a group of its own where that pays: what is folded in the order of memory
may gain more than a copy costs. Then two groups become one: a group and a reader of what it makes, or two readers of
the same value. Those with more bytes in common are tried first, as they have more to save; they are merged where the
whole is estimated to take no longer than the parts. There is no margin for errors: an estimate is the longer of
arithmetic and traffic, as if they overlapped perfectly, so what a merge saves of the shorter one comes on top. (Softmax
in pieces, 128 x 768 and 4096 x 1024: estimated at 1.02 times the speed of two kernels, measured at 1.06 and 1.7.)
Groups that are equal but for their values are estimated once, so that a network of many equal layers costs no more than
one layer.

Contractions are left alone: their epilogues are rules, and what joins them is decided by the cost of bands.
"""

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeAlias

from tilewright.graph.external import ExternalRegion
from tilewright.graph.graph import Graph, Value
from tilewright.graph.passes.group import FusionGroup, GroupDraft, Grouped, Grouping
from tilewright.ops.opdef import Kind

Estimate: TypeAlias = Callable[[FusionGroup], float | None]  # seconds; None: of such a group nothing is known

# Of the time of a group that reads through a transpose, what a copy must save: families of different kinds are
# compared, whose estimates do not err alike. Nine of ten are right within a fifth (`docs/results/predicted.md`).
_LEAST_SAVED = 0.2


def search_boundaries(graph: Graph, regions: Sequence[ExternalRegion], estimate: Estimate) -> Grouped:
    """The groups by rules, and then by `estimate`, in an order in which they can run."""
    grouping = Grouping(graph, regions)
    grouping.apply_rules()
    BoundarySearch(grouping, _once_for_equals(graph, estimate)).run()
    return grouping.ordered()


class BoundarySearch:
    def __init__(self, grouping: Grouping, estimate: Estimate) -> None:
        self._grouping, self._estimate = grouping, estimate
        self._seconds: dict[GroupDraft, float | None] = {}
        self._waiting: list[tuple[int, int, GroupDraft, GroupDraft]] = []  # most bytes in common first
        self._tie = count()

    def run(self) -> None:
        for draft in self._grouping.drafts():
            if is_memory_bound(draft):
                self._store_transposes(draft)
        for draft in self._grouping.drafts():
            self._await(draft)
        while self._waiting:
            _, _, first, second = heapq.heappop(self._waiting)
            if not (self._grouping.is_current(first) and self._grouping.is_current(second)):
                continue
            merged = self._try_merge(first, second)
            if merged is not None:
                self._grouping.settle(merged)
                self._await(merged)

    def _store_transposes(self, draft: GroupDraft) -> None:
        """Copy what the group reads through transposes, as far as that pays."""
        for n in self._grouping.transposes_read(draft):
            before = self._seconds_of(draft)
            copy = GroupDraft(Kind.MOVEMENT, [n])
            self._grouping.settle(copy)
            reader, copied = self._asked(draft), self._asked(copy)
            if (
                before is None
                or reader is None
                or copied is None
                or reader + copied > (1 - _LEAST_SAVED) * before
            ):
                self._grouping.dissolve(copy)
            else:
                self._seconds[draft] = reader

    def _await(self, draft: GroupDraft) -> None:
        """Put the moves of a new group in order."""
        if not is_memory_bound(draft):
            return
        for other, nbytes in self._grouping.neighbours(draft).items():
            if is_memory_bound(other):
                heapq.heappush(self._waiting, (-nbytes, next(self._tie), draft, other))

    def _try_merge(self, first: GroupDraft, second: GroupDraft) -> GroupDraft | None:
        """The two as one, if it pays."""
        apart = [self._seconds_of(first), self._seconds_of(second)]
        before = sum(t for t in apart if t is not None)
        merged = None if None in apart else self._grouping.try_merge(first, second)
        after = None if merged is None else self._seconds_of(merged)
        return merged if after is not None and after <= before else None

    def _seconds_of(self, draft: GroupDraft) -> float | None:
        if draft not in self._seconds:
            self._seconds[draft] = self._asked(draft)
        return self._seconds[draft]

    def _asked(self, draft: GroupDraft) -> float | None:
        return self._estimate(self._grouping.finished(draft))


def is_memory_bound(draft: GroupDraft) -> bool:
    return draft.region is None and draft.kind is not Kind.CONTRACTION


def _once_for_equals(graph: Graph, estimate: Estimate) -> Estimate:
    """The same, asked once for groups that are equal but for their values."""
    known: dict[object, float | None] = {}

    def seconds(part: FusionGroup) -> float | None:
        key = _structure(graph, part)
        if key not in known:
            known[key] = estimate(part)
        return known[key]

    return seconds


def _structure(graph: Graph, part: FusionGroup) -> object:
    """Equal for groups that compute the same of values of the same types. Values are numbered as they appear."""
    number: dict[Value, int] = {}
    for v in (*part.inputs, *(v for n in part.nodes for v in n.outputs)):
        number[v] = len(number)
    return (
        tuple((v.type, v in graph.constants) for v in part.inputs),
        tuple((n.op, tuple(number[v] for v in n.inputs)) for n in part.nodes),
        tuple(number[v] for v in part.outputs),
    )

"""Where one kernel ends and the next begins, among groups that memory bounds: a search by estimated time.

It starts from the groups of the rules (`group.py`), so the result is never slower than these, by the estimate. First,
a transpose that a group reads through becomes a group of its own where that pays: what is folded in the order of memory
may gain more than a copy costs; and a group is cut before or behind a fold. Then two groups become one: a group and a
reader of what it makes, or two readers of the same value. Those with more bytes in common are tried first, as they have
more to save; they are merged where the whole is estimated to take no longer than the parts. There is no margin for
errors: an estimate is the longer of arithmetic and traffic, as if they overlapped perfectly, so what a merge saves of
the shorter one comes on top. (Softmax in pieces, 128 x 768 and 4096 x 1024: estimated at 1.02 times the speed of two
kernels, measured at 1.06 and 1.7.) Groups that are equal but for their values are estimated once, so that a network of
many equal layers costs no more than one layer.

At last, a value that several groups read is computed by each of them and stored no more, where all of them are
estimated to take less time so. How often it is computed then counts: in a group of more elements than it has, as often
as these (the inverse root of a channel for each of its pixels), unless the family keeps it for a row. What is dear or
repeated often stays in memory; what a few operations make of something that is read anyway does not.

Contractions are left alone: their epilogues are rules, and what joins them is decided by the cost of bands.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from math import inf
from typing import TypeAlias

from tilewright.graph.external import ExternalRegion
from tilewright.graph.graph import Graph, Value
from tilewright.graph.passes.group import FusionGroup, GroupDraft, Grouped
from tilewright.graph.passes.regroup import Recomputation, Regrouping
from tilewright.ops.opdef import Kind

Estimate: TypeAlias = Callable[[FusionGroup], float | None]  # seconds; None: of such a group nothing is known

# Of the time of a group that is one kernel, what two must save (a copy of what it reads through a transpose; a fold
# apart from what is around it): families of different kinds are compared, whose estimates do not err alike. Nine of ten
# are right within a fifth (`docs/results/predicted.md`).
_LEAST_SAVED = 0.2


def search_boundaries(
    graph: Graph,
    regions: Sequence[ExternalRegion],
    estimate: Estimate,
    whole: Estimate | None = None,
    *,
    eagerness: float = 1.0,
) -> Grouped:
    """The groups by rules, and then by `estimate`, in an order in which they can run. It knows groups that become one
    kernel; `whole`, unless it is the same, those that become several too. One kernel may be estimated to take
    `eagerness` times as long as the several that it stands for: with other values than 1, groups differ where the
    estimates are near to each other.
    """
    grouping = Regrouping(graph, regions)
    grouping.apply_rules()
    known = _once_for_equals(graph, estimate)
    several = known if whole is None else _once_for_equals(graph, whole)
    BoundarySearch(grouping, known, several, eagerness).run()
    return grouping.ordered()


class BoundarySearch:
    def __init__(
        self, grouping: Regrouping, estimate: Estimate, whole: Estimate, eagerness: float = 1.0
    ) -> None:
        self._grouping, self._estimate, self._whole = grouping, estimate, whole
        self._eagerness = eagerness
        self._seconds: dict[GroupDraft, float | None] = {}
        self._waiting: list[tuple[int, int, GroupDraft, GroupDraft]] = []  # most bytes in common first
        self._tie = count()

    def run(self) -> None:
        for draft in self._grouping.drafts():
            if is_memory_bound(draft):
                self._store_transposes(draft)
                self._cut(draft)
        for draft in self._grouping.drafts():
            self._await(draft)
        self._merge()
        for draft in self._grouping.drafts():
            if is_memory_bound(draft) and self._grouping.is_current(draft):
                self._repeat(draft)

    def _merge(self) -> None:
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
                or self._eagerness * (reader + copied) > (1 - _LEAST_SAVED) * before
            ):
                self._grouping.dissolve(copy)
            else:
                self._seconds[draft] = reader

    def _cut(self, draft: GroupDraft) -> None:
        """Make two groups of one, where that saves most, if it pays."""
        before = self._seconds_of(draft)
        best, parts = inf if before is None else (1 - _LEAST_SAVED) * before, None
        for cut in self._grouping.cuts(draft) if before is not None else ():
            for part in cut:
                self._grouping.settle(part)
            seconds = _total(map(self._asked, cut))
            if seconds is not None and self._eagerness * seconds <= best:
                best, parts = self._eagerness * seconds, cut
        for part in parts or (draft,):
            self._grouping.settle(part)

    def _repeat(self, draft: GroupDraft) -> None:
        """What others read of the group, they compute themselves, as far as that pays."""
        for move in list(self._grouping.repeats(draft)):
            if not all(map(is_memory_bound, move.readers)) or not self._pays(move):
                continue
            for d in (draft, *move.readers):
                self._seconds.pop(d, None)
            for d in move.readers:
                self._await(d)
            self._merge()
            if self._grouping.is_current(draft):
                self._repeat(draft)
            return

    def _pays(self, move: Recomputation) -> bool:
        """Take the move if all groups in it take less time than before."""
        others = [d for d in move.readers if d is not move.of]
        before = _total(map(self._asked_whole, (move.of, *others)))
        if before is None:
            return False
        self._grouping.take_repeat(move)
        left = (move.of, *others) if move.of.nodes else others
        after = _total(map(self._asked_whole, left))
        if after is None or after >= before:
            self._grouping.undo_repeat(move)
            return False
        return True

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
        return merged if after is not None and after <= self._eagerness * before else None

    def _seconds_of(self, draft: GroupDraft) -> float | None:
        if draft not in self._seconds:
            self._seconds[draft] = self._asked(draft)
        return self._seconds[draft]

    def _asked(self, draft: GroupDraft) -> float | None:
        return self._estimate(self._grouping.finished(draft))

    def _asked_whole(self, draft: GroupDraft) -> float | None:
        return self._whole(self._grouping.finished(draft))


def _total(seconds: Iterable[float | None]) -> float | None:
    """Of all; None if one of them is not known."""
    found = list(seconds)
    known = [t for t in found if t is not None]
    return sum(known) if len(known) == len(found) else None


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

"""Partition a graph into groups, each of which becomes one Func. How the loops inside fuse is for schedules to decide.

Which nodes share a group, by rules that know no cost; `boundaries.py` moves the boundaries between what memory bounds
where an estimate says that it pays
- Two contractions with reduced rows between them, such as attention, are one group, with the epilogue of the last
  (`attention.py`).
- A contraction takes its epilogue: the elementwise nodes after it whose output has its shape, as far as exactly one
  value leaves the group. `x * sigmoid(x)` and the many nodes of a GELU are such; a residual is an input.
- A reduction takes its epilogue too, and its prologue: elementwise producers of its input. One of them may also be
  needed elsewhere (the residual sum before a norm); it is then a second output.
- The remaining elementwise nodes form groups of equal shape.
- A group whose one result only goes through a reshape or transpose stores it so, if its rows stay contiguous. What
  a contraction's result meets after that (a residual, where windows of an image are put together again) is part of
  its epilogue too.
- Views (movement nodes with at most one input: slices, transposes, ranges) belong to whoever reads them, and are
  repeated for each reader. Other movement nodes (concatenations, gathers) join their only reader unless it is a
  contraction, which would repeat the work; or form a group of their own.

No two groups depend on each other: every merge is checked for a path that leaves it and comes back.
"""

import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.graph.appends import find_appends
from tilewright.graph.external import ExternalRegion
from tilewright.graph.graph import Graph, Node, Value, producers, users
from tilewright.graph.half_weights import widened_weights
from tilewright.graph.passes.attention import contraction_chains
from tilewright.ops.core.movement import Reshape, Transpose
from tilewright.ops.opdef import Kind
from tilewright.support.errors import InternalError, UserError

MOST_NODES = 64  # of one group; keeps kernels small and grouping linear


@dataclass(frozen=True, slots=True, eq=False)
class FusionGroup:
    """`nodes` in graph order, repeated views included; `own` are those that no other group repeats. `outputs` are the
    values that others need. `repeated` are nodes beside views that others repeat too.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    own: tuple[Node, ...]
    repeated: tuple[Node, ...] = ()

    @property
    def value(self) -> Value:
        """What it is named after: the last value that it makes for others."""
        return self.outputs[-1]


Grouped: TypeAlias = tuple[FusionGroup | ExternalRegion, ...]


def group(graph: Graph, regions: Sequence[ExternalRegion] = ()) -> Grouped:
    """The groups by rules, and the given external regions between them, in an order in which they can run."""
    grouping = Grouping(graph, regions)
    grouping.apply_rules()
    return grouping.ordered()


class GroupDraft:
    """A group in the making: its nodes without the views that are repeated."""

    __slots__ = ("kind", "nodes", "region")

    def __init__(self, kind: Kind, nodes: Iterable[Node], region: ExternalRegion | None = None) -> None:
        self.kind, self.nodes, self.region = kind, list(nodes), region


class Grouping:
    """Groups in the making: `apply_rules` makes all; or `take` some, and `finish` makes the rest."""

    def __init__(self, graph: Graph, regions: Sequence[ExternalRegion]) -> None:
        self._graph = graph
        self._index = {n: i for i, n in enumerate(graph.nodes)}
        self._producer, self._users = producers(graph), users(graph)
        self._results = set(graph.outputs)
        # Who reads these must come after their group: they are stored to inputs (`graph/appends.py`).
        self._appended = frozenset(v for n in find_appends(graph) for v in n.outputs)
        self._draft: dict[Node, GroupDraft] = {}
        self._repeated: set[Node] = set(widened_weights(graph))
        # Groups with several ends, as spans of node indices: see `_comes_back`.
        self._wide: list[tuple[int, int]] = []
        for region in regions:
            self.settle(GroupDraft(Kind.MOVEMENT, region.nodes, region))

    def apply_rules(self) -> None:
        for chain in contraction_chains(self._graph):
            if all(n not in self._draft for n in chain.nodes):
                self.settle(self._with_epilogue(GroupDraft(Kind.CONTRACTION, chain.nodes), chain.matmul))
        for n in self._of_kind(Kind.CONTRACTION):
            self.settle(self._past_views(self._with_epilogue(GroupDraft(Kind.CONTRACTION, [n]), n)))
        for n in self._of_kind(Kind.REDUCTION):
            draft = self._with_epilogue(GroupDraft(Kind.REDUCTION, [n]), n)
            self.settle(self._with_prologue(draft, n))
        for n in self._of_kind(Kind.ELEMENTWISE):
            self._join_elementwise(n)
        for draft in self.drafts():
            if draft.region is None:
                self._take_trailing_views(draft)
        for n in reversed(self._of_kind(Kind.MOVEMENT)):
            self._place_movement(n)

    def repeat(self, nodes: Iterable[Node]) -> None:
        """These nodes are in no group, as views are: whoever reads them computes them again."""
        self._repeated.update(nodes)

    def take(self, nodes: Sequence[Node]) -> None:
        """These nodes are a group."""
        taken = next((n for n in nodes if n in self._draft or n in self._repeated), None)
        if taken is not None:
            raise UserError(f"{taken!r} is in another group already, or repeated by its readers")
        if self._comes_back(self._with_repeated_views(nodes)):
            raise UserError(
                "a value leaves the group and comes back into it",
                hint="take the nodes on its way into the group, or divide the group there",
            )
        self.settle(GroupDraft(Kind.MOVEMENT, nodes))

    def _with_repeated_views(self, nodes: Sequence[Node]) -> set[Node]:
        """The nodes, and the views of their results that are in no group: whoever reads these repeats them, so what
        comes back through them has not left.
        """
        found, stack = set(nodes), list(nodes)
        while stack:
            for u in (u for v in stack.pop().outputs for u in self._users[v]):
                if u not in found and u not in self._draft and self._is_repeated(u):
                    found.add(u)
                    stack.append(u)
        return found

    def finish(self) -> Grouped:
        """The groups that were taken. A node in none of them has one of its own, or is repeated by its readers."""
        for n in reversed(self._graph.nodes):
            if n not in self._draft and not (
                self._is_repeated(n) and not self._is_in_memory(n, self._readers(n))
            ):
                self.settle(GroupDraft(n.op.kind, [n]))
        return self.ordered()

    # ------------------------------------------------------------------------------------------- growing groups

    def _with_epilogue(self, draft: GroupDraft, head: Node) -> GroupDraft:
        shape = head.outputs[0].shape
        nodes, inside, best = list(draft.nodes), set(draft.nodes), len(draft.nodes)
        queue = self._queue(u for v in head.outputs for u in self._users[v])
        while queue and len(nodes) < MOST_NODES:
            n = self._graph.nodes[heapq.heappop(queue)]
            if (
                n in inside
                or not self._is_free(n, Kind.ELEMENTWISE)
                or any(v.shape != shape for v in n.outputs)
            ):
                continue
            if self._comes_back({*inside, n}):
                continue
            nodes.append(n)
            inside.add(n)
            for v in n.outputs:
                for u in self._users[v]:
                    heapq.heappush(queue, self._index[u])
            if len(self._leaving(inside)) == 1:
                best = len(nodes)
        return GroupDraft(draft.kind, nodes[:best])

    def _past_views(self, draft: GroupDraft) -> GroupDraft:
        """The draft with elementwise nodes that come only after views, and with these."""
        nodes = list(draft.nodes)
        while (n := self._trailing_view(nodes)) is not None:
            nodes.append(n)
        wider = self._with_epilogue(GroupDraft(draft.kind, nodes), nodes[-1])
        return wider if len(wider.nodes) > len(nodes) > len(draft.nodes) else draft

    def _with_prologue(self, draft: GroupDraft, head: Node) -> GroupDraft:
        if not head.inputs:
            return draft
        taken, given = head.inputs[0].shape, head.outputs[0].shape
        nodes, inside, shared = list(draft.nodes), set(draft.nodes), False
        # Latest first, so that all users of a node have been decided on before it is.
        queue = self._queue((self._producer[v] for v in head.inputs if v in self._producer), sign=-1)
        while queue and len(nodes) < MOST_NODES:
            n = self._graph.nodes[-heapq.heappop(queue)]
            if (
                n in inside
                or not self._is_free(n, Kind.ELEMENTWISE)
                or any(v.shape != taken for v in n.outputs)
            ):
                continue
            wider = {*inside, n}
            leaves = any(v in self._leaving(wider) for v in n.outputs)
            if (leaves and (shared or taken != given)) or self._comes_back(wider):
                continue
            shared |= leaves
            nodes.append(n)
            inside = wider
            for v in n.inputs:
                if v in self._producer:
                    heapq.heappush(queue, -self._index[self._producer[v]])
        return GroupDraft(draft.kind, nodes)

    def _join_elementwise(self, n: Node) -> None:
        """Start a group, or join and merge the elementwise groups that `n` reads from."""
        if not self._is_free(n, Kind.ELEMENTWISE):
            return
        nodes = [n]
        for p in dict.fromkeys(self._producer[v] for v in n.inputs if v in self._producer):
            before = self._draft.get(p)
            if before is None or before.kind is not Kind.ELEMENTWISE or p in nodes:
                continue
            same = p.outputs[0].shape == n.outputs[0].shape
            merged = [*before.nodes, *nodes]
            if same and len(merged) <= MOST_NODES and not self._comes_back(set(merged)):
                nodes = merged
        self.settle(GroupDraft(Kind.ELEMENTWISE, nodes))

    def _take_trailing_views(self, draft: GroupDraft) -> None:
        while (n := self._trailing_view(draft.nodes)) is not None:
            draft.nodes.append(n)
            self.settle(draft)

    def _trailing_view(self, nodes: Sequence[Node]) -> Node | None:
        """The view through which alone the one result of these nodes is read, if it can be stored so."""
        leaving = self._leaving(set(nodes))
        if len(leaving) != 1 or leaving[0] in self._results or len(self._users[leaving[0]]) != 1:
            return None
        (n,) = self._users[leaving[0]]
        return n if self._is_free(n, Kind.MOVEMENT) and _keeps_rows(n) else None

    def _place_movement(self, n: Node) -> None:
        """Later movement nodes are placed already. A view stays unplaced, unless somebody needs it in memory."""
        if n in self._draft:
            return
        readers = self._readers(n)
        if self._is_in_memory(n, readers) or (
            not is_view(n) and (len(readers) != 1 or readers[0].kind is Kind.CONTRACTION)
        ):
            self.settle(GroupDraft(Kind.MOVEMENT, [n]))
        elif not is_view(n):
            readers[0].nodes.append(n)
            self.settle(readers[0])

    def _is_in_memory(self, n: Node, readers: Sequence[GroupDraft]) -> bool:
        """Does somebody outside of native kernels need it?"""
        return any(v in self._results for v in n.outputs) or any(r.region is not None for r in readers)

    def _readers(self, n: Node) -> list[GroupDraft]:
        """The groups that read `n`, directly or through views."""
        return list(dict.fromkeys(d for v in n.outputs for d in self._readers_of(v)))

    def _readers_of(self, value: Value) -> list[GroupDraft]:
        """Likewise, of one value."""
        found: dict[GroupDraft, None] = {}
        stack, seen = [value], {value}
        while stack:
            for u in self._users[stack.pop()]:
                if u in self._draft:
                    found[self._draft[u]] = None
                    continue
                more = [v for v in u.outputs if v not in seen]
                seen.update(more)
                stack += more
        return list(found)

    # ---------------------------------------------------------------------------------------------- questions

    def _of_kind(self, kind: Kind) -> list[Node]:
        return [n for n in self._graph.nodes if self._is_free(n, kind)]

    def _is_repeated(self, n: Node) -> bool:
        """Is it computed by whoever reads it, unless it is in a group?"""
        return is_view(n) or n in self._repeated

    def _is_free(self, n: Node, kind: Kind) -> bool:
        return n.op.kind is kind and n not in self._draft and n not in self._repeated

    def _leaving(self, inside: Collection[Node]) -> list[Value]:
        """The values made inside that are needed outside."""
        return [
            v
            for n in inside
            for v in n.outputs
            if v in self._results or any(u not in inside for u in self._users[v])
        ]

    def _comes_back(self, inside: set[Node]) -> bool:
        """Is there a path between groups that leaves `inside` and returns to it?

        Searched backwards from what `inside` reads. What lies before its first node in graph order cannot depend on it,
        but for groups with several ends: one end may lie before that node, and another one after it. The search goes
        on to where such groups begin.
        """
        floor = min(self._index[n] for n in inside)
        moved = True
        while moved:
            moved = False
            for first, last in self._wide:
                if first < floor <= last:
                    floor, moved = first, True
        stack = [n for n in self._before(inside) if n not in inside]
        seen: set[Node] = set()
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            unit = self._draft[n].nodes if n in self._draft else [n]
            seen.update(unit)
            if max(self._index[m] for m in unit) < floor:
                continue
            for p in self._before(unit):
                if p in inside:
                    return True
                if p not in seen:
                    stack.append(p)
        return False

    def _before(self, nodes: Iterable[Node]) -> list[Node]:
        return [self._producer[v] for n in nodes for v in n.inputs if v in self._producer]

    def _queue(self, nodes: Iterable[Node], sign: int = 1) -> list[int]:
        queue = [sign * self._index[n] for n in dict.fromkeys(nodes)]
        heapq.heapify(queue)
        return queue

    def drafts(self) -> list[GroupDraft]:
        return list(dict.fromkeys(self._draft[n] for n in self._graph.nodes if n in self._draft))

    # ---------------------------------------------------------------------------------------------- the result

    def settle(self, draft: GroupDraft) -> None:
        draft.nodes.sort(key=self._index.__getitem__)
        for n in draft.nodes:
            self._draft[n] = draft
        inside = set(draft.nodes)
        leaving = set(self._leaving(inside))
        ends = [
            n
            for n in draft.nodes
            if any(v in leaving for v in n.outputs)
            or not any(u in inside for v in n.outputs for u in self._users[v])
        ]
        if len(ends) > 1:
            self._wide.append((self._index[draft.nodes[0]], self._index[draft.nodes[-1]]))

    def ordered(self) -> Grouped:
        """Run order: a group as soon as its inputs are there, earlier nodes first."""
        drafts = self.drafts()
        made: dict[Value, GroupDraft] = {v: d for d in drafts for n in d.nodes for v in n.outputs}
        groups = {d: d.region or self.finished(d) for d in drafts}
        position = {d: i for i, d in enumerate(drafts)}
        waiting: dict[GroupDraft, int] = {}
        readers: dict[GroupDraft, list[GroupDraft]] = {d: [] for d in drafts}
        for d, g in groups.items():
            needs = {made[v] for v in g.inputs if v in made}
            waiting[d] = len(needs)
            for need in needs:
                readers[need].append(d)
        ready = [position[d] for d in drafts if not waiting[d]]
        out: list[FusionGroup | ExternalRegion] = []
        while ready:
            d = drafts[heapq.heappop(ready)]
            out.append(groups[d])
            for r in readers[d]:
                waiting[r] -= 1
                if not waiting[r]:
                    heapq.heappush(ready, position[r])
        if len(out) < len(drafts):
            stuck = next(d for d in drafts if waiting[d])
            raise InternalError(f"groups depend on each other: {', '.join(map(repr, stuck.nodes))}")
        return tuple(g for g in out if g.outputs)

    def finished(self, draft: GroupDraft) -> FusionGroup:
        inside = set(draft.nodes)
        outputs = self._leaving(inside)
        stack = list(draft.nodes)
        while stack:  # take the views that the group reads
            for p in self._before([stack.pop()]):
                if p not in inside and p not in self._draft:
                    inside.add(p)
                    stack.append(p)
        nodes = tuple(sorted(inside, key=self._index.__getitem__))
        made = {v for n in nodes for v in n.outputs}
        inputs = dict.fromkeys(v for n in nodes for v in n.inputs if v not in made)
        order = {v: i for i, v in enumerate(v for n in nodes for v in n.outputs)}
        return FusionGroup(
            nodes,
            tuple(inputs),
            tuple(sorted(outputs, key=order.__getitem__)),
            tuple(draft.nodes),
            tuple(n for n in nodes if n in self._repeated and n not in self._draft),
        )


def is_view(n: Node) -> bool:
    return n.op.kind is Kind.MOVEMENT and len(n.inputs) <= 1


def _keeps_rows(n: Node) -> bool:
    """A reshape, or a transpose that leaves the last axis in place: storing through it stays contiguous."""
    match n.op:
        case Reshape():
            return True
        case Transpose(perm=perm):
            return len(perm) == 0 or perm[-1] == len(perm) - 1
        case _:
            return False

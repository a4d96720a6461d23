"""Groups whose boundaries can be moved: the moves of `boundaries.py`, and which of them there are.

    merge       two groups become one
    copy        a transpose that a group reads through becomes a group of its own
    repeat      what several groups read is stored no more: each of them computes it
    cut         a group becomes two

None of them makes groups that wait for each other.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tilewright.graph.graph import Node, Value
from tilewright.graph.passes.group import MOST_NODES, GroupDraft, Grouping, is_view
from tilewright.ops.core.movement import Transpose
from tilewright.ops.opdef import Kind


class Recomputation(NamedTuple):
    """Nodes of the group `of` that the groups `readers` could compute again, each for itself."""

    of: GroupDraft
    nodes: tuple[Node, ...]
    readers: tuple[GroupDraft, ...]


class Regrouping(Grouping):
    """Groups in the making that are made by rules, and then changed."""

    def try_merge(self, first: GroupDraft, second: GroupDraft) -> GroupDraft | None:
        """Both as one, with the views between them that nobody else reads; None if that is too large, or a value would
        leave it and come back.
        """
        nodes = [*first.nodes, *second.nodes]
        nodes += self._views_within(nodes)
        if (
            self._reads_appended(nodes)
            or len(nodes) > MOST_NODES
            or self._comes_back(self._with_repeated_views(nodes))
        ):
            return None
        nodes.sort(key=self._index.__getitem__)
        return GroupDraft(_kind_of((first.kind, second.kind)), nodes)

    def _reads_appended(self, nodes: Sequence[Node]) -> bool:
        """Does one of the nodes append to an input, and another one read it?"""
        makers = [n for n in nodes if self._appended.intersection(n.outputs)]
        return bool(makers) and self._reads([n for n in nodes if n not in makers], makers)

    def transposes_read(self, draft: GroupDraft) -> list[Node]:
        """Transposes in no group that this group alone reads. Not those that put channels last of what another group
        makes: it may be given that layout (`search/layouts.py`), and then they cost nothing.
        """
        stack, found = self._before(draft.nodes), list[Node]()
        while stack:
            n = stack.pop()
            if n in self._draft:
                continue
            stack += self._before([n])
            if n not in found and isinstance(n.op, Transpose) and self._readers(n) == [draft]:
                found += [n] if n.inputs[0] not in self._producer or not _puts_channels_last(n.op) else []
        return found

    def dissolve(self, draft: GroupDraft) -> None:
        """Its nodes are in no group any more."""
        for n in draft.nodes:
            del self._draft[n]

    def is_current(self, draft: GroupDraft) -> bool:
        """Has it not become part of another one, nor been left without nodes?"""
        return bool(draft.nodes) and self._draft.get(draft.nodes[0]) is draft

    def _views_within(self, nodes: Sequence[Node]) -> list[Node]:
        """Views in no group of what these nodes make, all of whose readers are among the nodes."""
        inside = set(nodes)
        found = sorted(self._with_repeated_views(nodes) - inside, key=self._index.__getitem__, reverse=True)
        taken: list[Node] = []
        for n in found:  # the last first: its readers are decided on
            read = [u for v in n.outputs for u in self._users[v]]
            if read and inside.issuperset(read) and not any(v in self._results for v in n.outputs):
                inside.add(n)
                taken.append(n)
        return taken

    def neighbours(self, draft: GroupDraft) -> dict[GroupDraft, int]:
        """The groups with which this one has values in common, each with the bytes of these: makers of what it reads,
        readers of what it makes, and of the other readers of what it reads the next and the last before it.
        """
        inside = set(draft.nodes)
        common: dict[GroupDraft, int] = {}

        def add(others: Iterable[GroupDraft], value: Value) -> None:
            for d in others:
                if d is not draft:
                    common[d] = common.get(d, 0) + value.bytes

        for v in (v for n in draft.nodes for v in n.outputs):
            add(self._readers_of(v), v)
        for v in self._read_by(draft):
            maker = self._producer.get(v)
            if maker in inside:
                continue
            if maker is not None:
                add([self._draft[maker]], v)
            readers = sorted(self._readers_of(v), key=self._end)
            at = readers.index(draft)
            add([*readers[max(at - 1, 0) : at], *readers[at + 1 : at + 2]], v)
        return common

    def _read_by(self, draft: GroupDraft) -> list[Value]:
        """The values in memory that a group reads, directly or through views, but for constants."""
        stack = [v for n in draft.nodes for v in n.inputs]
        found: dict[Value, None] = {}
        while stack:
            v = stack.pop()
            maker = self._producer.get(v)
            if maker is not None and maker not in self._draft:
                stack += maker.inputs
            elif v not in self._graph.constants:
                found[v] = None
        return list(found)

    def _end(self, draft: GroupDraft) -> int:
        return self._index[draft.nodes[-1]]

    # ---------------------------------------------------------------------------------------------------- repeating

    def repeats(self, draft: GroupDraft) -> Iterator[Recomputation]:
        """What others read of a group, and is made of elements alone: each of its values with all that it is made of in
        the group. There are several readers, the rest of the group among them if it needs it.
        """
        seen: set[tuple[Node, ...]] = set()
        for value in self._leaving(set(draft.nodes)):
            nodes = tuple(self._made_of([self._producer[value]], draft))
            if nodes in seen:
                continue
            seen.add(nodes)
            made = [v for n in nodes for v in n.outputs]
            if any(v in self._results for v in made) or not all(map(_is_elements, nodes)):
                continue
            readers = dict.fromkeys(r for v in made for r in self._readers_of(v))
            if not self._reads([n for n in draft.nodes if n not in nodes], nodes):
                readers.pop(draft, None)
            if len(readers) > 1 and any(not is_view(n) for n in nodes):
                yield Recomputation(draft, nodes, tuple(readers))

    def _reads(self, nodes: Sequence[Node], makers: Sequence[Node]) -> bool:
        """Do some nodes read what others make, directly or through views?"""
        stack = self._before(nodes)
        while stack:
            n = stack.pop()
            if n in makers:
                return True
            stack += self._before([n]) if n not in self._draft else []
        return False

    def take_repeat(self, move: Recomputation) -> None:
        for n in move.nodes:
            del self._draft[n]
        self.repeat(move.nodes)
        move.of.nodes[:] = [n for n in move.of.nodes if n not in move.nodes]
        if move.of.nodes:
            self.settle(move.of)

    def undo_repeat(self, move: Recomputation) -> None:
        self._repeated.difference_update(move.nodes)
        move.of.nodes += move.nodes
        self.settle(move.of)

    # ------------------------------------------------------------------------------------------------------ cutting

    def cuts(self, draft: GroupDraft) -> list[tuple[GroupDraft, GroupDraft]]:
        """Ways to make two groups of one: before and behind each of its folds. Nodes over equal elements stay together,
        as there is nothing to gain.
        """
        found: dict[frozenset[Node], None] = {}
        for n in draft.nodes:
            if n.op.kind is Kind.REDUCTION:
                first = self._made_of([n], draft)
                found[frozenset(first)] = found[frozenset(m for m in first if m is not n)] = None
        cut: list[tuple[GroupDraft, GroupDraft]] = []
        for nodes in found:
            parts = [n for n in draft.nodes if n in nodes], [n for n in draft.nodes if n not in nodes]
            if all(parts):
                cut.append((_draft_of(parts[0]), _draft_of(parts[1])))
        return cut

    def _made_of(self, nodes: Sequence[Node], draft: GroupDraft) -> list[Node]:
        """The nodes of a group that these nodes of it need, with themselves."""
        found, stack = set(nodes), list(nodes)
        while stack:
            for p in self._before([stack.pop()]):
                if p not in found and self._draft.get(p) is draft:
                    found.add(p)
                    stack.append(p)
        return [n for n in draft.nodes if n in found]


def _draft_of(nodes: Sequence[Node]) -> GroupDraft:
    return GroupDraft(_kind_of(n.op.kind for n in nodes), nodes)


def _kind_of(kinds: Iterable[Kind]) -> Kind:
    found = set(kinds)
    return next(k for k in (Kind.REDUCTION, Kind.ELEMENTWISE, Kind.MOVEMENT) if k in found)


def _is_elements(n: Node) -> bool:
    return n.op.kind is Kind.ELEMENTWISE or is_view(n)


def _puts_channels_last(op: Transpose) -> bool:
    rank = len(op.perm)
    return rank > 2 and op.perm == (0, *range(2, rank), 1)

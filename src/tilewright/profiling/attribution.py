"""Which nodes of the model a kernel's time belongs to.

Passes rewrite a graph: a Conv takes a BatchNormalization in, three MatMuls become one, five nodes become a Gelu. Nodes
that they make keep the name of one that they stand for, and the others must be found:

- a node whose name some node of the final graph has is computed there, by those of the same operator if there are any;
- one whose name is gone flows into nodes that are left. It is computed by the nearest node of the same operator between
  what it read and those, or else by those themselves.

The time of a call is shared among all nodes that it computes by their work: floating-point operations and elements
written, counted when a node is lowered alone. What is computed of constants alone costs nothing when the model runs.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.graph.graph import Graph, Node, producers, users
from tilewright.graph.passes.group import FusionGroup
from tilewright.graph.passes.lower import lower_alone
from tilewright.profiling.flops import count_flops
from tilewright.schedule.steps.join_funcs import JoinFuncs
from tilewright.support.errors import TilewrightError
from tilewright.support.sizes import SizeError

_FAR = 24  # nodes between one that is gone and what it became: more are another part of the model

FOLDED = "computed when the model was compiled"
UNUSED = "nothing that is asked for needs it"
TAKEN_OUT = "rewritten away: it costs no time of its own"


@dataclass(frozen=True, slots=True)
class Attribution:
    """`nodes` are those of the imported graph; `computed_by` says for each node of the final graph which of them it
    computes, and `absent` why a node is computed by none.
    """

    nodes: tuple[Node, ...]
    computed_by: Mapping[Node, tuple[Node, ...]]
    absent: Mapping[Node, str]
    _work: "_Work" = field(repr=False)

    def shares(self, final: Iterable[Node]) -> dict[Node, float]:
        """How the time of a call that computes these nodes of the final graph is shared; the sum is one, or there is
        nothing if it computes no node of the model.
        """
        weights: dict[Node, float] = {}
        for n in final:
            for origin in self.computed_by.get(n, ()):
                weights[origin] = max(weights.get(origin, 0.0), float(self._work.of(origin)))
        total = sum(weights.values())
        if not total:
            return dict.fromkeys(weights, 1 / len(weights)) if weights else {}
        return {n: w / total for n, w in weights.items()}

    def shares_among(self, nodes: Sequence[Node]) -> dict[Node, float]:
        """The same of nodes of the imported graph, which somebody else runs."""
        weights = {n: float(self._work.of(n)) for n in nodes}
        total = sum(weights.values())
        return {n: w / total if total else 1 / len(weights) for n, w in weights.items()}


def attribute_time(imported: Graph, final: Graph) -> Attribution:
    by_name: dict[str, list[Node]] = {}
    for n in final.nodes:
        by_name.setdefault(n.name, []).append(n)
    flow = _Flow(imported, final, by_name)
    computed: dict[Node, list[Node]] = {n: [] for n in final.nodes}
    absent: dict[Node, str] = {}
    for n in imported.nodes:
        places = flow.places(n)
        if not places:
            absent[n] = flow.reason(n)
        for p in places:
            computed[p].append(n)
    named = {n.name: n for n in imported.nodes}
    for n, found in computed.items():
        if not found and n.name in named:
            found.append(named[n.name])
    taken = {n for found in computed.values() for n in found}
    return Attribution(
        imported.nodes,
        {n: tuple(found) for n, found in computed.items()},
        {n: why for n, why in absent.items() if n not in taken},
        _Work(imported),
    )


def joined_funcs(lowered: Iterable[str], joins: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The Funcs of the program, each with those that were joined to make it."""
    found = {name: [name] for name in lowered}
    for first, second in joins:
        found[JoinFuncs(first, second).name] = [*found.pop(first, ()), *found.pop(second, ())]
    return found


class _Flow:
    """What became of nodes whose names are gone."""

    def __init__(self, imported: Graph, final: Graph, by_name: Mapping[str, Sequence[Node]]) -> None:
        self._by_name = by_name
        self._made, self._users = producers(imported), users(imported)
        self._made_finally = producers(final)
        self._outputs = set(imported.outputs)
        given = set(imported.inputs)
        self._depends: set[Node] = set()  # on what is given when the model runs
        for n in imported.nodes:
            if any(v in given or self._made.get(v) in self._depends for v in n.inputs):
                self._depends.add(n)

    def places(self, n: Node) -> list[Node]:
        """The nodes of the final graph that compute it."""
        if n not in self._depends and n.name not in self._by_name:
            return []
        alike = self._alike(n, self._by_name.get(n.name, ()))
        if alike:
            return alike
        if n.name in self._by_name:
            return [*self._by_name[n.name]]
        ends = [*self._nearest(n, self._readers)]
        before = {e.name for e in self._nearest(n, self._sources)}
        for end in ends:
            found = self._between(n, self._by_name[end.name], before)
            if found is not None:
                return [found]
        return [p for end in ends[:1] for p in self._by_name[end.name]]

    def reason(self, n: Node) -> str:
        if n not in self._depends:
            return FOLDED
        is_needed = any(v in self._outputs or self._users[v] for v in n.outputs)
        return TAKEN_OUT if is_needed else UNUSED

    def _alike(self, n: Node, found: Iterable[Node]) -> list[Node]:
        return [p for p in found if type(p.op) is type(n.op)]

    def _between(self, n: Node, ends: Sequence[Node], before: set[str]) -> Node | None:
        """The nearest of its operator on the way back from `ends`, but not beyond what it read."""
        queue, seen = deque(ends), set(ends)
        while queue and len(seen) < _FAR:
            p = queue.popleft()
            if p.name in before:
                continue
            if type(p.op) is type(n.op):
                return p
            for v in p.inputs:
                source = self._made_finally.get(v)
                if source is not None and source not in seen:
                    seen.add(source)
                    queue.append(source)
        return None

    def _readers(self, n: Node) -> Iterator[Node]:
        return (u for v in n.outputs for u in self._users[v])

    def _sources(self, n: Node) -> Iterator[Node]:
        return (self._made[v] for v in n.inputs if v in self._made)

    def _nearest(self, n: Node, following: Callable[[Node], Iterator[Node]]) -> Iterator[Node]:
        """The nodes next to it whose names are left, through those whose are not."""
        queue, seen = deque([n]), {n}
        while queue and len(seen) < _FAR * 4:
            for other in following(queue.popleft()):
                if other in seen:
                    continue
                seen.add(other)
                if other.name in self._by_name:
                    yield other
                else:
                    queue.append(other)


class _Work:
    """Operations of nodes, each kind lowered once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[tuple[str, ...], int] = {}

    def of(self, n: Node) -> int:
        key = (repr(n.op), *(str(v.type) for v in n.inputs))
        if key not in self._known:
            self._known[key] = self._counted(n)
        return self._known[key]

    def _counted(self, n: Node) -> int:
        written = sum(v.size for v in n.outputs)
        group = FusionGroup((n,), tuple(dict.fromkeys(n.inputs)), n.outputs, (n,))
        try:
            module = lower_alone(self._graph, group)
        except (TilewrightError, SizeError, NotImplementedError):  # an operator that only a plugin knows
            return int(written)
        return int(written) + sum(count_flops(f.body) for f in module.funcs)

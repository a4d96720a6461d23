"""Which parts of a graph a plugin could take: units, its answers, and regions as large as they can be.

The graph is as it was imported: what passes would take apart or put together is still whole (`graph.origin`).

1. Units. Matches of the plugin's patterns, in its order of priority; nodes of the model that the importer wrote as
   several; single nodes. Where a whole is refused, its parts are asked for one by one.
2. Regions. In graph order, each unit that is taken joins the regions that it reads from, unless that would make two
   parts of the program wait for each other.

Every refusal is kept with its reason.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.graph.external import Answer, No, Part, Plugin, Region, Unit
from tilewright.graph.graph import Graph, Node
from tilewright.graph.origin import Origin
from tilewright.graph.segments import subgraph
from tilewright.graph.surroundings import Surroundings
from tilewright.ops.outside import Outside
from tilewright.support.errors import UserError

# Operators of two inputs that may be exchanged.
_SYMMETRIC = frozenset({"Add", "Mul", "Max", "Min", "And", "Or", "Xor", "Equal"})


@dataclass(frozen=True, slots=True, eq=False)
class Refusal:
    """A unit that a plugin does not take, and why."""

    unit: Unit
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """What a plugin would take of a graph."""

    plugin: Plugin
    regions: tuple[Region, ...]
    refusals: tuple[Refusal, ...]


def offer(
    graph: Graph, plugin: Plugin, others: Sequence[Region] = (), among: Collection[Node] | None = None
) -> Offer:
    """The regions of `graph` that the plugin takes, and what it refuses. It is asked about the nodes in `among` (None:
    all), but not about what `others` have taken.
    """
    around = Surroundings(graph)
    taken = {n for r in others for n in r.graph.nodes}
    asking = _Asking(around, plugin, {n for n in graph.nodes if among is None or n in among} - taken)
    regions: list[Region] = []
    for members in _Regions(around, asking.units(), others).merged():
        region = make_region(around, f"{plugin.name}:{len(regions)}", members, plugin)
        answer = _idle(region) or _answer(lambda region=region: plugin.accepts(region))
        if isinstance(answer, No):
            asking.refusals += [Refusal(u, answer.reason) for u in members]
        else:
            regions.append(region)
    return Offer(plugin, tuple(regions), tuple(asking.refusals))


def make_region(around: Surroundings, key: str, units: Sequence[Unit], plugin: Plugin) -> Region:
    """A region of these units, with a graph of its own. Values keep their names and identity."""
    nodes = {n for u in units for n in u.nodes}
    graph = subgraph(around, key, around.ordered(nodes))
    return Region(key, graph, tuple(units), plugin.order, plugin.dtypes)


def _idle(region: Region) -> No | None:
    """Why nobody has to run a region, if that is so."""
    if not region.graph.outputs:
        return No("nothing needs what it gives")
    if not region.graph.inputs and not any(isinstance(n.op, Outside) for n in region.graph.nodes):
        return No("it has no inputs: native code has it done when the model is compiled")
    return None


def name_of(graph: Graph, node: Node) -> str:
    """The operator of a node as the model spells it, or as we do."""
    origin = graph.origins.get(node)
    return type(node.op).__name__ if origin is None else origin.op_type


def unit_of(graph: Graph, node: Node) -> Unit:
    """A node by itself."""
    return Unit(name_of(graph, node), graph, (node,), node.inputs, node.outputs, graph.origins.get(node))


def _answer(ask: Callable[[], Answer]) -> Answer:
    """A plugin's answer; one that fails to give it has said no."""
    try:
        return ask()
    except UserError as e:
        return No(e.message)
    except Exception as e:  # whatever a plugin does, the compiler goes on
        return No(f"the plugin failed to answer ({type(e).__name__}: {e})")


# ----------------------------------------------------------------------------------------------------------- units


@dataclass(slots=True)
class _Asking:
    around: Surroundings
    plugin: Plugin
    among: Collection[Node]
    taken: dict[Node, Unit] = field(default_factory=dict[Node, Unit])
    refusals: list[Refusal] = field(default_factory=list[Refusal])

    def units(self) -> list[Unit]:
        """What the plugin takes, in graph order."""
        graph = self.around.graph
        for pattern in self.plugin.patterns():
            for nodes in self._matches(pattern.root):
                self._ask(pattern.name, nodes, None, pattern.check)
        for whole, nodes in self._wholes().items():
            self._ask(whole.op_type, nodes, whole, self.plugin.supports)
        for node in graph.nodes:
            self._ask(name_of(graph, node), (node,), graph.origins.get(node), self.plugin.supports)
        index = self.around.index
        return sorted(dict.fromkeys(self.taken.values()), key=lambda u: index[u.nodes[-1]])

    def _ask(
        self, name: str, nodes: Sequence[Node], origin: Origin | None, ask: Callable[[Unit], Answer]
    ) -> None:
        if any(n in self.taken or n not in self.among for n in nodes):
            return
        around = self.around
        unit = Unit(
            name, around.graph, around.ordered(nodes), around.inputs(nodes), around.outputs(nodes), origin
        )
        answer = _answer(lambda: ask(unit))
        if isinstance(answer, No):
            self.refusals.append(Refusal(unit, answer.reason))
        else:
            self.taken.update(dict.fromkeys(nodes, unit))

    def _wholes(self) -> Mapping[Origin, Sequence[Node]]:
        """The nodes of the model that stand for several of the graph, if nothing from inside is needed outside."""
        parts: dict[Origin, list[Node]] = {}
        for n, origin in self.around.graph.origins.items():
            if origin.whole is not None:
                parts.setdefault(origin.whole, []).append(n)
        return {
            whole: nodes
            for whole, nodes in parts.items()
            if set(self.around.outputs(nodes)) <= set(whole.results) and self.around.is_convex(nodes)
        }

    def _matches(self, root: Part) -> Iterator[tuple[Node, ...]]:
        around = self.around
        for last in reversed(around.graph.nodes):
            found = self._match(root, last)
            if found is None:
                continue
            inside = set(found)
            inner = [v for n in found if n is not last for v in n.outputs]
            if not any(around.escapes(v, inside) for v in inner) and around.is_convex(inside):
                yield tuple(inside)

    def _match(self, part: Part, node: Node) -> tuple[Node, ...] | None:
        """The nodes of the pattern that ends with `node`."""
        name = name_of(self.around.graph, node)
        if name not in part.operators or len(part.inputs) > len(node.inputs):
            return None
        orders = [part.inputs]
        if name in _SYMMETRIC and len(part.inputs) == 2:
            orders.append(part.inputs[::-1])
        for inputs in orders:
            found = self._match_inputs(inputs, node)
            if found is not None:
                return (node, *found)
        return None

    def _match_inputs(self, parts: Sequence[Part | None], node: Node) -> tuple[Node, ...] | None:
        found: list[Node] = []
        for part, value in zip(parts, node.inputs, strict=False):
            if part is None:
                continue
            producer = self.around.producers.get(value)
            inner = None if producer is None else self._match(part, producer)
            if inner is None:
                return None
            found += inner
        return tuple(found)


# --------------------------------------------------------------------------------------------------------- regions


class _Regions:
    """Units on their way to become regions, among the regions of others. What no unit has is a group of its own."""

    def __init__(self, around: Surroundings, units: Sequence[Unit], others: Sequence[Region]) -> None:
        self._around, self._units, self._others = around, units, others
        self._group: dict[Node, list[Unit]] = {n: g for u in units for g in ([u],) for n in u.nodes}
        self._group.update((n, g) for r in others for g in (list(r.units),) for n in r.graph.nodes)

    def merged(self) -> list[list[Unit]]:
        fixed = {n for r in self._others for n in r.graph.nodes}
        for unit in self._units:
            for value in unit.inputs:
                producer = self._around.producers.get(value)
                source = None if producer is None or producer in fixed else self._group.get(producer)
                own = self._group[unit.nodes[0]]
                if source is not None and source is not own and not self._comes_back(source, own):
                    source += own
                    for n in self._nodes(own):
                        self._group[n] = source
        return list({id(g): g for u in self._units for g in (self._group[u.nodes[0]],)}.values())

    def _comes_back(self, source: list[Unit], target: list[Unit]) -> bool:
        """Is there a path from one group to the other through nodes of neither? Groups on the way are passed as a
        whole: they wait for all that goes into them.
        """
        ends = {*self._nodes(source), *self._nodes(target)}
        index = self._around.index
        last = max(index[n] for n in self._nodes(target))
        todo = [u for n in ends for u in self._readers(n) if u not in ends]
        seen: set[Node] = set()
        while todo:
            n = todo.pop()
            if n in seen:
                continue
            group = self._nodes(self._group[n]) if n in self._group else [n]
            seen.update(group)
            for member in group:
                for u in self._readers(member):
                    if u in ends:
                        return True
                    if u not in seen and (index[u] < last or u in self._group):
                        todo.append(u)
        return False

    def _readers(self, node: Node) -> Iterator[Node]:
        for v in node.outputs:
            yield from self._around.users[v]

    @staticmethod
    def _nodes(group: Sequence[Unit]) -> list[Node]:
        return [n for u in group for n in u.nodes]

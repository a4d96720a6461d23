"""How long native code takes for the nodes of a graph: an estimate, without compiling or running anything.

The graph is lowered as compilation does it, up to the layouts, and each Func costs what the cheapest point of its
design space does (`families.space`), which is what its default schedule was chosen by. Where no rule spans a space, it
costs what its blocks do, each by itself (`cost.work`). Several threads share what is worth sharing.

The time of a Func belongs to the nodes that it was made from. Passes take nodes apart and put them together; but values
keep their names, so a Func has the nodes that lead to what it stores and that no Func before it has. It is divided
among them by their work. So any part of the graph has an estimate, and the parts add up.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tilewright.cost.parallel import ENOUGH_PARTS, least_shared, shared_seconds
from tilewright.cost.stream import moving_seconds
from tilewright.cost.work import block_seconds
from tilewright.driver.decisions import Join
from tilewright.driver.passes import PassContext, ProgramState, run_passes
from tilewright.families.gemm.space import gemm_space
from tilewright.families.recurrent.match import recurrent_nests
from tilewright.families.space import Space
from tilewright.families.winograd.recipe import find_stages
from tilewright.graph.external import ExternalRegion, make_external_region
from tilewright.graph.graph import Graph, Node, Value, producers, users
from tilewright.graph.passes.fold_natively import without_values
from tilewright.graph.passes.group import FusionGroup
from tilewright.graph.segments import work
from tilewright.graph.work import multiplications
from tilewright.ir.expr import loads
from tilewright.ops.accuracy import DEFAULT, Accuracy
from tilewright.ops.outside import Outside
from tilewright.schedule.steps.join_funcs import JoinFuncs
from tilewright.search.algorithms import algorithm_seconds
from tilewright.search.default import make_request, spaces
from tilewright.support.errors import ScheduleError, UserError
from tilewright.support.sizes import capacity
from tilewright.target.target import Target
from tilewright.tir.digest import func_digest
from tilewright.tir.func import Func, Module
from tilewright.tir.stmt import Block, Store, blocks, stmt_exprs, walk_stmts

_OF_PEAK = 0.5  # what a GEMM reaches of which nothing is known but its size, of any size that takes its time


@dataclass(slots=True, eq=False)
class Estimated:
    """The time of any nodes of a graph. It is worked out when it is asked first."""

    graph: Graph
    target: Target
    threads: int
    accuracy: Accuracy = DEFAULT
    _seconds: dict[Node, float] | None = field(default=None, init=False)

    def __call__(self, nodes: Iterable[Node]) -> float:
        if self._seconds is None:
            self._seconds = node_seconds(self.graph, self.target, self.threads, self.accuracy)
        return sum(self._seconds.get(n, 0.0) for n in nodes)


def node_seconds(
    graph: Graph, target: Target, threads: int, accuracy: Accuracy = DEFAULT
) -> dict[Node, float]:
    """The time of each node. What native code does not know takes none."""
    try:
        return _Attribution(graph, target, threads, accuracy).run()
    except UserError:  # something in it cannot be lowered
        return {n: _rough_seconds(n, target) / threads for n in graph.nodes}


def func_seconds(func: Func, target: Target, constants: frozenset[str]) -> float:
    """Of a Func on one core; `constants` names the params whose values are known at compile time."""
    try:
        if find_stages(func) is not None:
            return algorithm_seconds(func, target)
        for space in _spaces(func, target, constants):
            _, costs = space.ranked()
            if len(costs):
                return float(costs[0])
    except ScheduleError:
        pass
    lanes = target.lanes(4)
    return sum(
        block_seconds(b, lanes, target.machine) for b in blocks(func.body) if not _is_constant(b, constants)
    )


def _spaces(func: Func, target: Target, constants: frozenset[str]) -> Iterator[Space]:
    """The design spaces of a Func. Of a single GEMM the first will do: others take long to be spanned."""
    if not recurrent_nests(func) and sum(b.is_reduction for b in blocks(func.body)) == 1:
        gemm = gemm_space(make_request(func, target, constants))
        if gemm is not None:
            yield gemm
    yield from spaces(func, target, constants)


def _is_constant(block: Block, constants: frozenset[str]) -> bool:
    """Is it computed from constants alone, once and for all?"""
    stored = {s.buffer for s in walk_stmts(block.body) if isinstance(s, Store)}
    read = {ld.buffer for s in walk_stmts(block.body) for e in stmt_exprs(s) for ld in loads(e)} - stored
    return bool(read) and all(b.name in constants for b in read)


def _rough_seconds(node: Node, target: Target) -> float:
    """By size alone, on one core."""
    if isinstance(node.op, Outside):
        return 0.0
    m = target.machine
    nbytes = capacity(sum(v.bytes for v in (*node.inputs, *node.outputs)))
    peak = target.lanes(4) * m.fma_per_cycle * m.hertz
    return max(multiplications(node) / (_OF_PEAK * peak), moving_seconds(nbytes, m))


def _outside(graph: Graph) -> list[ExternalRegion]:
    """Every node that others run, as a region of its own."""
    return [make_external_region(graph, n.op.name, (n,)) for n in graph.nodes if isinstance(n.op, Outside)]


class _Attribution:
    """Lowers a graph, and says whose the time of each Func is."""

    def __init__(self, graph: Graph, target: Target, threads: int, accuracy: Accuracy) -> None:
        self._graph, self._target, self._threads, self._accuracy = graph, target, threads, accuracy
        self._producers = producers(graph)
        self._made = {v.name: n for n in graph.nodes for v in n.outputs}
        self._taken: set[Node] = set()

    def run(self) -> dict[Node, float]:
        context = PassContext(
            self._target, self._accuracy.allows, run_constants=without_values, regions=_outside
        )
        state = run_passes(ProgramState(self._graph), context, until="layouts")
        readers = users(state.graph)
        owners: dict[str, list[Node]] = {}
        for name, at in state.owners.items():
            whole = state.groups[at]
            assert isinstance(whole, FusionGroup)
            owners[name] = self._nodes_of(whole, readers)
        for d in state.trace.sections["joins"]:
            assert isinstance(d, Join)
            owners[JoinFuncs(d.first, d.second).name] = owners.pop(d.first, []) + owners.pop(d.second, [])
        return self._divided(state.current, owners)

    def _divided(self, module: Module, owners: dict[str, list[Node]]) -> dict[Node, float]:
        """The times of the Funcs, divided among their nodes by work; what has no nodes among all."""
        constants = {c.buffer for c in module.constants}
        names = frozenset(b.name for b in constants)
        known: dict[str, float] = {}  # Funcs that are equal but for their names take equally long
        out: dict[Node, float] = {}
        loose = 0.0
        for func in module.funcs:
            key = func_digest(func, [f"constant {n}" for n, p in enumerate(func.params) if p in constants])
            if key not in known:
                known[key] = self._shared(func_seconds(func, self._target, names))
            nodes = owners.get(func.name, [])
            total = sum(map(work, nodes))
            if not total:
                loose += known[key]
                continue
            for n in nodes:
                out[n] = out.get(n, 0.0) + known[key] * work(n) / total
        assigned = sum(out.values())
        return {n: t * (1 + loose / assigned) for n, t in out.items()} if assigned else out

    def _shared(self, alone: float) -> float:
        m = self._target.machine
        return shared_seconds(alone, ENOUGH_PARTS if alone >= least_shared(m) else 1, self._threads, m)

    def _nodes_of(self, whole: FusionGroup, readers: dict[Value, list[Node]]) -> list[Node]:
        """The nodes of the graph that lead to what a group stores, and that no group before it has. Where there are
        none, those that make what it stores.
        """
        ends = self._ends(whole.outputs, readers)
        found: list[Node] = []
        todo = list(ends)
        while todo:
            n = todo.pop()
            if n not in self._taken and not isinstance(n.op, Outside):
                self._taken.add(n)
                found.append(n)
                todo += [self._producers[v] for v in n.inputs if v in self._producers]
        return found or ends

    def _ends(self, values: Sequence[Value], readers: dict[Value, list[Node]]) -> list[Node]:
        """Who makes these values in the graph; of one that only passes know, what comes of it."""
        found: dict[Node, None] = {}
        seen: set[Value] = set()
        todo = list(values)
        while todo:
            v = todo.pop()
            if v in seen:
                continue
            seen.add(v)
            if v.name in self._made:
                found[self._made[v.name]] = None
            else:
                todo += [o for n in readers.get(v, ()) for o in n.outputs]
        return list(found)

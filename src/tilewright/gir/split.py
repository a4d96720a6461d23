"""Rows that are divided among workers: each folds a part, and the parts are put together afterwards.

    s[r] = sum over j of exp(x[r, j] - m[r])          s_parts[p, r] = sum over the j of part p, with its own maximum
                                             ──>      s[r] = sum over p of s_parts[p, r] · exp(m_parts[p, r] - m[r])

For few rows there would be fewer parts than workers; and where lanes are rows, a worker that has all of them reads
memory in order. What a part folded with its own results is repaired (`gir/repair.py`) to those of all.
"""

from dataclasses import replace

from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.repair import Algebra, Recentre
from tilewright.ir.expr import Buffer, Expr, Load, Var, loads
from tilewright.ir.rewrite import replace_loads, substitute
from tilewright.support.errors import ScheduleError


def split_folds(graph: FlowGraph, parts: int) -> tuple[FlowGraph, ...]:
    """Graphs that are run one after the other: the folds of parts, those of all, and what is made of them, in parts."""
    return _Splitting(graph, parts).graphs()


class _Splitting:
    def __init__(self, graph: FlowGraph, parts: int) -> None:
        if not any(n.is_fold for n in graph.nodes):
            raise ScheduleError(f"{graph.name} folds nothing that could be folded in parts")
        if any(n.is_scan for n in graph.nodes):
            raise ScheduleError(f"{graph.name} has a scan, which goes on from part to part")
        axis = graph.inner[0]
        if graph.extents[axis] % parts:
            raise ScheduleError(f"{graph.name}: {graph.extents[axis]} elements are not {parts} equal parts")
        self._graph, self._parts = graph, parts
        self._part, self._own = Var(f"{axis.name}_part"), Var(f"{axis.name}_own")
        size = graph.extents[axis] // parts
        self._axis, self._at = axis, {axis: self._part * size + self._own}
        self._extents = {self._part: parts, **{a: e for a, e in graph.extents.items() if a is not axis}}
        self._extents[self._own] = size
        self._folds = [n for n in graph.nodes if n.is_fold]
        self._values = {n: self._opened(n.value) for n in self._folds}
        self._read_later: set[Buffer] = set()  # of what all parts fold: what the rest reads
        self._partial = {
            n.out: Buffer(f"{n.name}_parts", (parts, *n.out.shape), n.out.dtype, n.out.scope)
            for n in self._folds
        }

    def graphs(self) -> tuple[FlowGraph, ...]:
        rest = self._rest()
        self._read_later = {ld.buffer for n in rest.nodes for ld in loads(n.value)}
        made = (self._of_parts(), self._of_all(), rest)
        return tuple(g for g in made if g.nodes)

    def _opened(self, e: Expr) -> Expr:
        """Over memory and results of folds."""

        def inside(ld: Load) -> Expr | None:
            node = self._graph.makers.get(ld.buffer)
            return None if node is None or node.is_fold else self._opened(node.value)

        return replace_loads(e, inside, {})

    def _axes(self, axes: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(self._own if a is self._axis else a for a in axes)

    def _graph_of(self, name: str, nodes: list[FlowNode], extents: dict[Var, int]) -> FlowGraph:
        made = {n.out for n in nodes}
        memory = [ld.buffer for n in nodes for ld in loads(n.value) if ld.buffer not in made]
        results = [
            b for b in made if b in self._graph.params or b in self._read_later or b in self._partial.values()
        ]
        params = tuple(dict.fromkeys((*memory, *results)))
        return FlowGraph(f"{self._graph.name}_{name}", params, extents, tuple(nodes))

    def _of_parts(self) -> FlowGraph:
        nodes = [
            FlowNode(
                f"{n.name}_parts",
                self._partial[n.out],
                (self._part, *n.indices),
                (self._part, *n.axes),
                substitute(self._in_part(self._values[n], self._part), self._at),
                self._axes(n.over),
                n.combine,
            )
            for n in self._folds
        ]
        return self._graph_of("parts", nodes, self._extents)

    def _in_part(self, e: Expr, part: Var) -> Expr:
        """With the results of a part."""

        def inside(ld: Load) -> Expr | None:
            partial = self._partial.get(ld.buffer)
            return None if partial is None else Load(partial, (part, *ld.indices))

        return replace_loads(e, inside, {})

    def _of_all(self) -> FlowGraph:
        graph, part = self._graph, Var(f"{self._axis.name}_parts")
        algebra = Algebra(graph.inner, self._partial)
        nodes: list[FlowNode] = []
        for n in graph.nodes:
            if n.is_fold:
                value: Expr = Load(self._partial[n.out], (part, *n.indices))
                if algebra.has_result(self._values[n]):
                    repair = algebra.find_repair(self._values[n], n.combine, n.start)
                    if repair is None or isinstance(repair, Recentre):
                        raise ScheduleError(f"{n.name} cannot be put together of parts")
                    value = repair.repaired(value, lambda e: self._in_part(e, part), lambda e: e)
                nodes.append(replace(n, value=value, over=(part,)))
            elif graph.is_scalar(n) and n in graph.outputs:
                nodes.append(replace(n, value=self._opened(n.value)))
        extents = {a: graph.extents[a] for n in nodes for a in n.axes} | {part: self._parts}
        return self._graph_of("all", nodes, extents)

    def _rest(self) -> FlowGraph:
        graph = self._graph
        nodes: list[FlowNode] = []
        for n in graph.nodes:
            if n.is_fold or (graph.is_scalar(n) and n in graph.outputs):
                continue
            axes = self._axes(n.axes)
            axes = (self._part, *axes)
            indices = tuple(substitute(i, self._at) for i in n.indices)
            nodes.append(replace(n, axes=axes, indices=indices, value=substitute(n.value, self._at)))
        if not any(n in graph.outputs and not graph.is_scalar(n) and not n.is_fold for n in graph.nodes):
            nodes = []
        return self._graph_of("rest", nodes, self._extents)

"""Flow graphs as text: Python syntax, one node a line, read back by `gir/parser.py` to an equal graph and plan.

    @flow
    def softmax(x: f32[8, 16], y: out(f32[8, 16])):
        r, j = axes(8, 16)
        rows(r)
        m[r]: f32[8] = max[j](x[r, j])
        e[r, j]: f32[8, 16] = exp(x[r, j] - m[r])
        s[r]: f32[8] = sum[j](e[r, j])
        y[r, j] = e[r, j] / s[r]
        plan(lanes=[j], width=8, grain=1, kept=["e"])

- `max[j](…)` is a fold over j; `sum`, `min` and `prod` are the others. What follows `:` is the type of the buffer that
  a node makes, unless it is one of the parameters; `f32[8] @ "register"` is one of another scope than memory.
- `max[k](x[i + k - 1], where=1 <= i + k)` takes up only what the predicate holds for.
- `cummax[j](…)` is a scan along j, with `exclusive=True` and `reverse=True` if it is that; `cumsum`, `cummin` and
  `cumprod` are the others.
- `rows` is derived from the nodes and there for the reader; the parser skips it. `swept` is not: it names the inner
  axes of a graph without folds. `b = around(16)` is the value of a loop that the graph stands in.
- `with node("name", axes=[r, j]):` around a node says what does not follow from its line: a name that is not its
  buffer's, axes in another order than its indices have them, and whatever fields are not at their defaults.
- Expressions, abbreviations (`t0 = …`) and `names(…)` are those of TIR (`tir/printer.py`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any, cast

from tilewright.ir.expr import TRUE, Buffer, Expr, Indices, Scope, Var
from tilewright.support.errors import InternalError
from tilewright.tir.expr_printer import ExprPrinter, TextNames, expr_names, quoted, type_text

if TYPE_CHECKING:  # graphs and plans print themselves, with what is here
    from tilewright.gir.flow_graph import FlowGraph, FlowNode
    from tilewright.gir.plan import Plan

IN_LINE = frozenset(
    {"name", "out", "indices", "axes", "value", "over", "combine", "where", "along", "exclusive", "reverse"}
)  # fields with a place of their own

SCAN_WAYS = ("exclusive", "reverse")  # fields of scans that are said after their values


def print_flow_graph(graph: "FlowGraph", plan: "Plan | None" = None) -> str:
    p = _FlowPrinter(TextNames(_graph_names(graph, plan), [graph.name]))
    p.graph(graph, plan)
    return "\n".join(p.lines) + "\n"


def print_flow_node(node: "FlowNode") -> str:
    """The line of a node; lines `t0 = …` for shared parts come before it."""
    p = _FlowPrinter(TextNames(_node_names(node)))
    p.node(node, 0, declared=True)
    return "\n".join(p.lines)


def print_plan(plan: "Plan") -> str:
    return _FlowPrinter(TextNames(_plan_names(plan))).plan(plan)


def indexed_axes(indices: Indices) -> tuple[Var, ...]:
    """The axes of a node as its indices have them, from left to right."""
    return tuple(dict.fromkeys(v for i in indices for v in _variables(i)))


def _variables(e: Expr) -> Iterator[Var]:
    if isinstance(e, Var):
        yield e
    for c in e.children():
        yield from _variables(c)


def _graph_names(graph: "FlowGraph", plan: "Plan | None") -> list[Var | Buffer]:
    nodes = [name for n in graph.nodes for name in _node_names(n)]
    axes = (*graph.extents, *graph.swept, *graph.around)
    return [*graph.params, *axes, *nodes, *(_plan_names(plan) if plan else ())]


def _node_names(node: "FlowNode") -> list[Var | Buffer]:
    return [node.out, *node.axes, *node.over, *expr_names([*node.indices, node.value, node.where])]


def _plan_names(plan: "Plan") -> list[Var]:
    values: list[object] = [getattr(plan, f.name) for f in fields(plan)]
    return [e for v in values for e in _elements(v) if isinstance(e, Var)]


def _elements(value: object) -> tuple[object, ...]:
    return (*cast("Iterable[object]", value),) if isinstance(value, tuple | frozenset) else ()


class _FlowPrinter(ExprPrinter):
    def graph(self, graph: "FlowGraph", plan: "Plan | None") -> None:
        made = {n.out for n in graph.nodes}
        params = [
            f"{self.names[b]}: {f'out({_scoped(b)})' if b in made else _scoped(b)}" for b in graph.params
        ]
        self.lines += ["@flow", f"def {self.names.function(graph.name)}({', '.join(params)}):"]
        self.declare(1)
        if graph.extents:
            extents = ", ".join(map(str, graph.extents.values()))
            self.line(1, f"{self._listed(graph.extents)} = axes({extents})")
        if graph.nodes and graph.rows:
            self.line(1, f"rows({self._listed(graph.rows)})")
        if graph.swept:
            self.line(1, f"swept({self._listed(graph.swept)})")
        if graph.around:
            extents = ", ".join(map(str, graph.around.values()))
            self.line(1, f"{self._listed(graph.around)} = around({extents})")
        for n in graph.nodes:
            self.node(n, 1, declared=n.out in graph.params)
        if not graph.nodes:
            self.line(1, "pass")
        if plan is not None:
            self.line(1, self.plan(plan))

    def node(self, node: "FlowNode", depth: int, *, declared: bool) -> None:
        """`declared`: whether the type of its buffer is known already."""
        notes = self._given(f for f in _changed(node) if f[0].name not in IN_LINE)
        if node.axes != indexed_axes(node.indices):
            notes.insert(0, f"axes={self._literal(node.axes)}")
        if notes or node.name != node.out.name:
            self.line(depth, f"with node({', '.join([quoted(node.name), *notes])}):")
            depth += 1
        shared = self.share([*node.indices, node.value, node.where], depth)
        made, value = self.access(node.out, node.indices, shared), self.expr(node.value, shared)
        kind = "" if declared else f": {_scoped(node.out)}"
        combined = node.over if node.along is None else (node.along,)
        said = [value] if node.where is TRUE else [value, f"where={self.expr(node.where, shared)}"]
        said += [f"{w}=True" for w in SCAN_WAYS if getattr(node, w)]
        if combined:
            value = f"{node.combination}[{self._listed(combined)}]({', '.join(said)})"
        self.line(depth, f"{made}{kind} = {value}")

    def plan(self, plan: "Plan") -> str:
        return f"plan({', '.join(self._given(_changed(plan)))})"

    def _listed(self, axes: Iterable[Var]) -> str:
        return ", ".join(self.names[a] for a in axes)

    def _given(self, changed: Iterable[tuple[Field[Any], object]]) -> list[str]:
        return [f"{f.name}={self._literal(value)}" for f, value in changed]

    def _literal(self, value: object) -> str:
        """A field of a plan or node, by what it is: the parser knows its type."""
        if isinstance(value, tuple | frozenset):
            found = [self._literal(e) for e in _elements(cast("object", value))]
            return f"[{', '.join(sorted(found) if isinstance(value, frozenset) else found)}]"
        match value:
            case Expr():
                return self.expr(value, {})
            case str():
                return quoted(value)
            case bool() | int() | float() | None:
                return repr(value)
            case _:
                raise InternalError(f"{type(value).__name__} has no text in a flow graph")


def _changed(value: Any) -> list[tuple[Field[Any], object]]:
    """The fields that are not at their defaults."""
    found = [(f, getattr(value, f.name)) for f in fields(value)]
    return [(f, v) for f, v in found if f.default is MISSING or v != f.default]


def _scoped(b: Buffer) -> str:
    return type_text(b) if b.scope is Scope.GLOBAL else f'{type_text(b)} @ "{b.scope.value}"'

"""Reading the text of flow graphs that `gir/printer.py` writes, or that a person does: `parse(print(x))` is `x` again.

Errors are `UserError`s with the line and a caret. Names, shapes and types are checked here, and that a node reads what
is there; what else a plan needs of a graph, those check who lower it.
"""

import ast
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Union, get_args, get_origin, get_type_hints

from tilewright.gir.flow_graph import COMBINATIONS, FlowGraph, FlowNode
from tilewright.gir.plan import Plan
from tilewright.gir.printer import IN_LINE, SCAN_WAYS, indexed_axes
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Scope, Var
from tilewright.tir.expr_parser import ExprParser, Scoped, near, number_of

_FOLDS = {word: op for op, word in COMBINATIONS.items()}
_SCANS = {f"cum{word}": op for op, word in COMBINATIONS.items()}
_SCOPES = {s.value: s for s in Scope}


def parse_flow_graph(text: str) -> FlowGraph:
    return parse_flow(text)[0]


def parse_flow(text: str) -> tuple[FlowGraph, Plan | None]:
    """A graph and, if the text has one, the plan it is printed with."""
    p = _FlowParser(text)
    match p.statements():
        case [ast.FunctionDef(decorator_list=[ast.Name(id="flow")]) as d]:
            return p.graph(d)
        case _:
            p.fail(None, "one @flow function is expected")


class _FlowParser(ExprParser):
    language = "flow graph"

    def graph(self, d: ast.FunctionDef) -> tuple[FlowGraph, Plan | None]:
        names, body = self.stand_ins(d.body)
        scope: dict[str, Scoped] = {}
        for a in d.args.args:
            kind = a.annotation
            match kind:
                case ast.Call(func=ast.Name(id="out"), args=[inner]):
                    kind = inner
                case _:
                    pass
            scope[a.arg] = self._buffer(a if kind is None else kind, names.get(a.arg, a.arg))
        params = tuple(b for b in scope.values() if isinstance(b, Buffer))
        extents: dict[Var, int] = {}
        around: dict[Var, int] = {}
        swept: tuple[Var, ...] = ()
        nodes: list[FlowNode] = []
        plan: Plan | None = None
        for s in body:
            match s:
                case ast.Pass() | ast.Expr(value=ast.Call(func=ast.Name(id="rows"))):
                    pass
                case ast.Assign(targets=[target], value=ast.Call(func=ast.Name(id="axes"), args=sizes)):
                    extents |= self._extents(target, sizes, scope, names)
                case ast.Assign(targets=[target], value=ast.Call(func=ast.Name(id="around"), args=sizes)):
                    around |= self._extents(target, sizes, scope, names)
                case ast.Expr(value=ast.Call(func=ast.Name(id="swept"), args=args)):
                    swept = self._axes(args, scope)
                case ast.Expr(value=ast.Call(func=ast.Name(id="plan"), keywords=words) as call):
                    plan = self._plan(call, words, scope)
                case ast.With(
                    items=[ast.withitem(context_expr=ast.Call(func=ast.Name(id="node")) as call)],
                    body=[*lets, last],
                ):
                    nodes.append(self._node(last, self._shared(lets, scope), scope, names, call))
                case ast.AnnAssign() | ast.Assign(targets=[ast.Subscript()]):
                    nodes.append(self._node(s, scope, scope, names))
                case _:
                    self.let(s, scope)
        return FlowGraph(names.get(d.name, d.name), params, extents, tuple(nodes), swept, around), plan

    def _buffer(self, node: ast.AST, name: str) -> Buffer:
        match node:
            case ast.BinOp(left=kind, op=ast.MatMult(), right=ast.Constant(value=str(word))) if (
                word in _SCOPES
            ):
                where = _SCOPES[word]
            case ast.BinOp(op=ast.MatMult(), right=right):
                self.fail(right, "a scope is expected", f"one of {', '.join(map(repr, _SCOPES))}")
            case kind:
                where = Scope.GLOBAL
        dtype, shape = self.type(kind)
        return Buffer(name, shape, dtype, where)

    def _extents(
        self,
        target: ast.expr,
        sizes: Sequence[ast.expr],
        scope: dict[str, Scoped],
        names: Mapping[str, str],
    ) -> dict[Var, int]:
        words = [e.id for e in _listed(target) if isinstance(e, ast.Name)]
        if len(words) != len(sizes):
            self.fail(target, f"{len(sizes)} extents are given for {len(words)} axes")
        found = {Var(names.get(w, w)): self.integer(e) for w, e in zip(words, sizes, strict=True)}
        scope.update(zip(words, found, strict=True))
        return found

    def _axes(self, nodes: Sequence[ast.expr], scope: Mapping[str, Scoped]) -> tuple[Var, ...]:
        return tuple(self._axis(n, scope) for n in nodes)

    def _axis(self, node: ast.expr, scope: Mapping[str, Scoped]) -> Var:
        found = self.lookup(node, node.id, scope) if isinstance(node, ast.Name) else None
        if not isinstance(found, Var):
            self.fail(node, "an axis is expected")
        return found

    def _shared(self, lets: Sequence[ast.stmt], scope: dict[str, Scoped]) -> dict[str, Scoped]:
        inside = dict(scope)
        for s in lets:
            self.let(s, inside)
        return inside

    # ------------------------------------------------------------------------------------------------------- nodes

    def _node(
        self,
        s: ast.stmt,
        inside: Mapping[str, Scoped],
        scope: dict[str, Scoped],
        names: Mapping[str, str],
        call: ast.Call | None = None,
    ) -> FlowNode:
        """`inside` has the abbreviations of the node too; what it makes is added to `scope`."""
        match s:
            case ast.AnnAssign(
                target=ast.Subscript(value=ast.Name(id=word)) as target,
                annotation=kind,
                value=ast.expr() as e,
            ):
                scope[word] = self._buffer(kind, names.get(word, word))
                inside = {**inside, word: scope[word]}
            case ast.Assign(targets=[ast.Subscript() as target], value=e):
                pass
            case _:
                self.fail(s, "a node is expected", "write it as m[r]: f32[8] = max[j](x[r, j])")
        out, indices = self.access(target, inside)
        value, combined = self._combined(e, inside, out)
        name, given = self._notes(call, inside) if call else (out.name, {})
        axes = given.pop("axes", indexed_axes(indices))
        along = combined.get("along")
        if along is not None and along not in axes:
            self.fail(e, f"{name} is a scan along an axis that it does not have")
        return FlowNode(name, out, indices, axes, value, **combined, **given)

    def _combined(self, e: ast.expr, scope: Mapping[str, Scoped], out: Buffer) -> tuple[Expr, dict[str, Any]]:
        """What a node combines, and the fields that say how."""
        match e:
            case ast.Call(
                func=ast.Subscript(value=ast.Name(id=word), slice=named), args=[value], keywords=words
            ):
                axes = self._axes(_listed(named), scope)
                if word in _FOLDS:
                    fold = {"over": axes, "combine": _FOLDS[word], **self._where(e, words, scope)}
                    return self.expr(value, scope, out.dtype), fold
                if word not in _SCANS:
                    self.fail(e, f"there is no fold or scan {word!r}", near(word, (*_FOLDS, *_SCANS)))
                if len(axes) != 1:
                    self.fail(e, "a scan is along one axis")
                scan = {"along": axes[0], "combine": _SCANS[word], **self._scan_ways(words)}
                return self.expr(value, scope, out.dtype), scan
            case _:
                return self.expr(e, scope, out.dtype), {}

    def _where(
        self, e: ast.expr, words: Sequence[ast.keyword], scope: Mapping[str, Scoped]
    ) -> dict[str, Expr]:
        match words:
            case []:
                return {}
            case [ast.keyword(arg="where", value=cond)]:
                return {"where": self.expr(cond, scope, DType.BOOL)}
            case _:
                self.fail(e, "a fold takes a value and `where`", "write it as max[k](x[k], where=k < 3)")

    def _scan_ways(self, words: Sequence[ast.keyword]) -> dict[str, bool]:
        found: dict[str, bool] = {}
        for w in words:
            match w.value:
                case ast.Constant(value=bool(given)) if w.arg in SCAN_WAYS:
                    found[w.arg] = given
                case _:
                    self.fail(w.value, f"a scan is {' or '.join(SCAN_WAYS)}, True or False")
        return found

    def _notes(self, call: ast.Call, scope: Mapping[str, Scoped]) -> tuple[str, dict[str, Any]]:
        match call.args:
            case [ast.Constant(value=str(name))]:
                pass
            case _:
                self.fail(call, "node takes a name, and fields", 'write it as node("m", axes=[r])')
        hidden = IN_LINE - {"axes"}
        return name, self._fields(call, FlowNode, [w for w in call.keywords if w.arg not in hidden], scope)

    # ------------------------------------------------------------------------------------------------------ fields

    def _plan(self, call: ast.Call, words: Sequence[ast.keyword], scope: Mapping[str, Scoped]) -> Plan:
        given = self._fields(call, Plan, words, scope)
        missing = [f.name for f in fields(Plan) if f.default is MISSING and f.name not in given]
        if missing:
            self.fail(call, f"a plan needs {', '.join(missing)}")
        return Plan(**given)

    def _fields(
        self, call: ast.Call, of: type, words: Sequence[ast.keyword], scope: Mapping[str, Scoped]
    ) -> dict[str, Any]:
        types_of = {k: t for k, t in get_type_hints(of).items() if k in {f.name for f in fields(of)}}
        found: dict[str, Any] = {}
        for w in words:
            if w.arg is None or w.arg not in types_of:
                hint = near(w.arg or "", types_of)
                self.fail(w.value, f"{of.__name__} has no field {w.arg!r}", hint)
            found[w.arg] = self._field(w.value, types_of[w.arg], scope)
        if len(found) < len(call.keywords):
            self.fail(call, "a field is given that its line says, or twice")
        return found

    def _field(self, node: ast.expr, kind: Any, scope: Mapping[str, Scoped]) -> Any:
        """A value of the type that the field declares."""
        origin, args = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            is_none = isinstance(node, ast.Constant) and node.value is None
            return None if is_none else self._field(node, next(a for a in args if a is not type(None)), scope)
        if origin in (tuple, frozenset):
            if not isinstance(node, ast.List):
                self.fail(node, "a list is expected")
            kinds = [args[0]] * len(node.elts) if origin is frozenset or args[-1] is ... else args
            values = [self._field(e, k, scope) for e, k in zip(node.elts, kinds, strict=True)]
            return frozenset(values) if origin is frozenset else tuple(values)
        if kind is Var:
            return self._axis(node, scope)
        if isinstance(kind, type) and issubclass(kind, Expr):
            return self.expr(node, scope)
        value = number_of(node) if not isinstance(node, ast.Constant) else node.value
        if type(value) is not kind:
            self.fail(node, f"a value of type {kind.__name__} is expected")
        return value


def _listed(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]

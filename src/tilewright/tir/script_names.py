"""Names of the Python scope around a tensor program, replaced by what they stand for.

A number becomes a literal, a tuple of numbers a tuple of literals, a word or type of the language its plain name:
`tw.f32[M, K]` is `f32[512, 512]` afterwards. Arithmetic on such numbers (`N // 4`, `1.0 / N`) is done here, by Python's
rules; that of literals alone is left as it is written. A name that is bound anywhere in the function is the function's
own throughout, as in Python.
"""

import ast
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NoReturn, TypeAlias, cast

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Scope
from tilewright.tir.expr_parser import number_of
from tilewright.tir.syntax_tree import at
from tilewright.tir.words import TypeWord, Word

Refuse: TypeAlias = Callable[[ast.AST | None, str, str | None], NoReturn]

_MISSING = object()
_INFIX: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b if abs(b) < 64 else _MISSING,
}


def script_bound_names(func: ast.FunctionDef) -> set[str]:
    """What the function binds: parameters, loop variables, abbreviations, buffers."""
    found = {a.arg for a in func.args.args}
    return found | {n.id for n in ast.walk(func) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def fold_integer(node: ast.expr) -> int | None:
    """The value of integer arithmetic on literals."""
    match node:
        case ast.BinOp(left=a, op=op, right=b) if type(op) in _INFIX:
            x, y = fold_integer(a), fold_integer(b)
            value = None if x is None or y is None else _fold(op, x, y)
        case _:
            value = number_of(node)
    return value if isinstance(value, int) else None


def _fold(op: ast.operator, a: float, b: float) -> float | None:
    try:
        value = _INFIX[type(op)](a, b)
    except ArithmeticError:
        return None
    return value if isinstance(value, int | float) else None


class Resolve(ast.NodeTransformer):
    """Replaces names of `around` in a function whose own names are `bound`."""

    def __init__(self, around: Mapping[str, object], bound: set[str], fail: Refuse) -> None:
        self._around, self._bound, self._fail = around, bound, fail
        self._known: set[ast.AST] = set()  # literals that were names

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        for a in node.args.args:
            if a.annotation is not None:
                a.annotation = self._annotation(a.annotation)
        node.body = [self.visit(s) for s in node.body]
        return node

    def _annotation(self, node: ast.expr) -> ast.expr:
        match node:
            case ast.Constant(value=str(text)):  # written as a string, to please a type checker
                try:
                    inner = ast.parse(text.strip(), mode="eval").body
                except SyntaxError:
                    self._fail(node, "this annotation is not Python syntax", None)
                for n in ast.walk(inner):
                    ast.copy_location(n, node)
                return cast(ast.expr, self.visit(inner))
            case _:
                return cast(ast.expr, self.visit(node))

    def visit_Name(self, node: ast.Name) -> ast.AST:
        value = self._value(node)
        return node if value is _MISSING else self._literal(node, value)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        value = self._value(node)
        if value is _MISSING:
            return self.generic_visit(node)
        return self._literal(node, value)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        value = self._value(node)
        if value is not _MISSING and isinstance(node.ctx, ast.Load):
            return self._literal(node, value)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node.func:
            case ast.Name() as name:
                value = self._value(name)
                if isinstance(value, Word | TypeWord | DType):
                    node.func = cast(ast.expr, self._literal(name, value))
            case _:
                node.func = self.visit(node.func)
        args: list[ast.expr] = []
        for a in node.args:
            match a:
                case ast.Starred(value=inner):
                    parts = self.visit(inner)
                    if not isinstance(parts, ast.Tuple):
                        self._fail(a, "only a tuple from outside the function can be spread out", None)
                    args += parts.elts
                case _:
                    args.append(self.visit(a))
        node.args = args
        for k in node.keywords:
            k.value = self.visit(k.value)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        node.left, node.right = self.visit(node.left), self.visit(node.right)
        a, b = number_of(node.left), number_of(node.right)
        is_known = not self._known.isdisjoint({node.left, node.right})
        if a is None or b is None or not is_known or type(node.op) not in _INFIX:
            if isinstance(node.op, ast.Pow):
                return at(node, ast.Call(ast.Name("pow", ast.Load()), [node.left, node.right], []))
            return node
        value = _fold(node.op, a, b)
        if value is None:
            self._fail(node, f"{ast.unparse(node)} has no value", None)
        return self._literal(node, value)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """`a if cond else b` is a select."""
        parts = [self.visit(n) for n in (node.test, node.body, node.orelse)]
        return at(node, ast.Call(ast.Name("select", ast.Load()), parts, []))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        node.operand = self.visit(node.operand)
        value = number_of(node)
        return self._literal(node, value) if value is not None and node.operand in self._known else node

    # --------------------------------------------------------------------------------------------------- values

    def _value(self, node: ast.expr) -> object:
        """What the expression stands for outside; `_MISSING` if it has to do with the function's own names."""
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if name not in self._bound:
                return self._around.get(name, _MISSING)
            case ast.Attribute(value=base, attr=attr):
                value = self._value(base)
                if value is _MISSING:
                    return _MISSING
                try:
                    return getattr(value, attr)
                except AttributeError:
                    what = value.__name__ if isinstance(value, ModuleType) else type(value).__name__
                    self._fail(node, f"{what} has no {attr!r}", None)
            case ast.Subscript(value=base, slice=index):
                value = self._value(base)
                if not isinstance(value, tuple | list):
                    return _MISSING
                at = self.visit(index)
                number = number_of(at)
                items = cast("tuple[object, ...] | list[object]", value)
                if not isinstance(number, int) or not -len(items) <= number < len(items):
                    self._fail(node, f"{ast.unparse(base)} has no element {ast.unparse(at)}", None)
                return items[number]
            case _:
                return _MISSING

    def _literal(self, node: ast.expr, value: object) -> ast.AST:
        match value:
            case Word() | TypeWord():
                new: ast.expr = ast.Name(value.name, ast.Load())
            case DType():
                new = ast.Name(value.value, ast.Load())
            case Scope():
                new = ast.Constant(value.value)
            case bool() | int() | float() | str():
                new = ast.Constant(value)
            case np.bool_() | np.integer() | np.floating():
                new = ast.Constant(value.item())
            case tuple() | list():
                items = cast("tuple[object, ...] | list[object]", value)
                new = ast.Tuple([cast(ast.expr, self._literal(node, v)) for v in items], ast.Load())
            case ModuleType():
                self._fail(node, f"{ast.unparse(node)} is a module", None)
            case _ if callable(value):
                self._fail(
                    node,
                    f"{ast.unparse(node)} is a Python function, and a tensor program does not run in Python",
                    "tensor programs have functions of their own: tw.exp, tw.max, tw.select, tw.fma, …",
                )
            case _:
                self._fail(
                    node,
                    f"{ast.unparse(node)} is a {type(value).__name__}, which has no meaning in a tensor program",
                    "numbers, tuples of them and types can be taken from the scope around",
                )
        self._known.add(new)
        return ast.copy_location(new, node)

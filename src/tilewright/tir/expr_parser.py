"""Reading expressions. `parser` has functions and modules, and says what the text is like."""

import ast
import difflib
import struct
from collections.abc import Mapping, Sequence
from typing import NoReturn, TypeAlias

from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import (
    FALSE,
    TRUE,
    Binary,
    BinaryOp,
    Bitcast,
    Buffer,
    Cast,
    Const,
    DimSize,
    Expr,
    Fma,
    Load,
    Select,
    Unary,
    UnaryOp,
    Var,
    const,
)
from tilewright.support.errors import UserError

Scoped: TypeAlias = Expr | Buffer  # what a name may stand for

_DTYPES = {d.value: d for d in DType}
_UNARY = {op.value: op for op in UnaryOp}
_CALLED_BINARY = {op.value: op for op in (BinaryOp.MIN, BinaryOp.MAX, BinaryOp.POW)}
_INFIX: dict[type[ast.operator], BinaryOp] = {
    ast.Add: BinaryOp.ADD,
    ast.Sub: BinaryOp.SUB,
    ast.Mult: BinaryOp.MUL,
    ast.Div: BinaryOp.DIV,
    ast.FloorDiv: BinaryOp.FLOORDIV,
    ast.Mod: BinaryOp.MOD,
    ast.BitAnd: BinaryOp.AND,
    ast.BitOr: BinaryOp.OR,
    ast.BitXor: BinaryOp.XOR,
    ast.LShift: BinaryOp.SHL,
    ast.RShift: BinaryOp.SHR,
}
_COMPARE: dict[type[ast.cmpop], tuple[BinaryOp, bool]] = {  # and whether the sides are exchanged
    ast.Eq: (BinaryOp.EQ, False),
    ast.NotEq: (BinaryOp.NE, False),
    ast.Lt: (BinaryOp.LT, False),
    ast.LtE: (BinaryOp.LE, False),
    ast.Gt: (BinaryOp.LT, True),
    ast.GtE: (BinaryOp.LE, True),
}


def parse_expr(text: str, env: Mapping[str, Scoped] | Sequence[Var | Buffer]) -> Expr:
    """An expression over the names of `env`: a mapping, or the variables and buffers themselves."""
    scope: dict[str, Scoped] = dict(env) if isinstance(env, Mapping) else {v.name: v for v in env}
    p = ExprParser(text)
    *lets, last = p.statements() or p.fail(None, "an expression is expected")
    for s in lets:
        p.let(s, scope)
    if not isinstance(last, ast.Expr):
        p.fail(last, "an expression is expected")
    return p.expr(last.value, scope)


class ExprParser:
    """Python's syntax tree of a text, given meaning; errors show the line."""

    language = "TIR"

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._text = text

    # ---------------------------------------------------------------------------------------------------- errors

    def fail(self, node: ast.AST | None, message: str, hint: str | None = None) -> NoReturn:
        if not isinstance(node, ast.expr | ast.stmt | ast.arg):
            raise UserError(f"{self.language} text: {message}", hint=hint)
        end = node.end_col_offset if node.end_lineno == node.lineno else None
        if end is None:
            end = len(self._lines[node.lineno - 1])
        self._raise(message, node.lineno, node.col_offset, end, hint)

    def _raise(self, message: str, line: int, start: int, end: int, hint: str | None = None) -> NoReturn:
        source = self._lines[line - 1] if line <= len(self._lines) else ""
        skip = len(source) - len(source.lstrip())
        caret = " " * max(start - skip, 0) + "^" * max(end - start, 1)
        where = f"line {line}: {source.strip()}\n{' ' * len(f'  at: line {line}: ')}{caret}"
        raise UserError(f"{self.language} text: {message}", where=where, hint=hint)

    def statements(self) -> list[ast.stmt]:
        try:
            return ast.parse(self._text).body
        except SyntaxError as e:
            start = (e.offset or 1) - 1
            self._raise(f"not Python syntax: {e.msg}", e.lineno or 1, start, start + 1)

    def stand_ins(self, body: list[ast.stmt]) -> tuple[dict[str, str], list[ast.stmt]]:
        """What `names(…)` in the first line declares, and the other lines."""
        match body[0]:
            case ast.Expr(value=ast.Call(func=ast.Name(id="names"), keywords=words) as call):
                names: dict[str, str] = {}
                for w in words:
                    if w.arg is None or not isinstance(w.value, ast.Constant):
                        self.fail(call, 'names() takes word="name" arguments')
                    names[w.arg] = str(w.value.value)
                return names, body[1:]
            case _:
                return {}, body

    def let(self, s: ast.stmt, scope: dict[str, Scoped]) -> None:
        """`t0 = expr`: from here on the name stands for the expression."""
        match s:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                scope[name] = self.expr(value, scope)
            case _:
                self.fail(s, "an abbreviation `name = expression` is expected")

    # ------------------------------------------------------------------------------------------------ expressions

    def expr(self, node: ast.expr, scope: Mapping[str, Scoped], want: DType | None = None) -> Expr:
        """`want` is the type that a bare number takes."""
        number = number_of(node)
        if number is not None:
            return self._bare(node, number, want)
        try:
            return self._compound(node, scope, want)
        except TypeError as e:  # the nodes check the types of their operands
            self.fail(node, str(e))

    def _compound(self, node: ast.expr, scope: Mapping[str, Scoped], want: DType | None) -> Expr:
        match node:
            case ast.Constant(value=bool(value)):
                return TRUE if value else FALSE
            case ast.Name(id=name):
                found = self.lookup(node, name, scope)
                if isinstance(found, Buffer):
                    self.fail(node, f"{name} is a buffer", "read an element of it: A[i, j]")
                return found
            case ast.Subscript():
                return Load(*self.access(node, scope))
            case ast.BinOp(left=a, op=op, right=b) if type(op) in _INFIX:
                return Binary(_INFIX[type(op)], *self._operands([a, b], scope, want))
            case ast.Compare(left=a, ops=[op], comparators=[b]) if type(op) in _COMPARE:
                word, swapped = _COMPARE[type(op)]
                x, y = self._operands([a, b], scope, None)
                return Binary(word, y, x) if swapped else Binary(word, x, y)
            case ast.Compare(ops=[_, _, *_]):
                self.fail(node, "comparisons do not chain", "write a < b and b < c")
            case ast.BoolOp(op=op, values=[first, *others]):
                word = BinaryOp.AND if isinstance(op, ast.And) else BinaryOp.OR
                out = self.expr(first, scope)
                for v in others:
                    out = Binary(word, out, self.expr(v, scope))
                return out
            case ast.UnaryOp(op=ast.USub(), operand=a):
                return Unary(UnaryOp.NEG, self.expr(a, scope, want))
            case ast.UnaryOp(op=ast.Not(), operand=a):
                return Unary(UnaryOp.NOT, self.expr(a, scope))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._call(node, name, args, scope, want)
            case _:
                self.fail(node, "this is not an expression of TIR", "docs/ir.md lists them all")

    def _call(
        self, node: ast.expr, name: str, args: list[ast.expr], scope: Mapping[str, Scoped], want: DType | None
    ) -> Expr:
        match name, args:
            case _, [literal] if name in _DTYPES:
                return self._literal(literal, _DTYPES[name])
            case _, [a] if name in _UNARY:
                return Unary(_UNARY[name], self.expr(a, scope, want))
            case _, [a, b] if name in _CALLED_BINARY:
                return Binary(_CALLED_BINARY[name], *self._operands([a, b], scope, want))
            case "fma", [_, _, _]:
                return Fma(*self._operands(args, scope, want))
            case "select", [cond, a, b]:
                return Select(self.expr(cond, scope), *self._operands([a, b], scope, want))
            case "size", [ast.Constant(value=str(dim)), least, most]:
                return DimSize(dim, self.integer(least), self.integer(most))
            case "cast", [ast.Name(id=to), a] if to in _DTYPES:
                return Cast(_DTYPES[to], self.expr(a, scope))
            case "bitcast", [ast.Name(id=to), a] if to in _DTYPES:
                return Bitcast(_DTYPES[to], self.expr(a, scope))
            case _:
                known = [*_DTYPES, *_UNARY, *_CALLED_BINARY, "fma", "select", "cast", "bitcast", "size"]
                if name in known:
                    self.fail(node, f"{name} does not take these arguments")
                self.fail(node, f"there is no function {name!r}", near(name, known))

    def _operands(
        self, nodes: Sequence[ast.expr], scope: Mapping[str, Scoped], want: DType | None
    ) -> list[Expr]:
        """Operands of one type: bare numbers take that of the first operand that has one of its own."""
        typed = {n: self.expr(n, scope, want) for n in nodes if number_of(n) is None}
        dtype = next((e.dtype for e in typed.values()), want)
        return [typed[n] if n in typed else self.expr(n, scope, dtype) for n in nodes]

    def _bare(self, node: ast.expr, value: int | float, want: DType | None) -> Const:
        if isinstance(value, int):
            return const(value, want if want is not None and want is not DType.BOOL else INDEX)
        if want is None or not want.is_float:
            self.fail(node, f"the type of {value} is not clear here", f"write f32({value})")
        return const(value, want)

    def _literal(self, node: ast.expr, dtype: DType) -> Const:
        value = number_of(node)
        if value is not None and (dtype.is_float or isinstance(value, int)):
            return const(value, dtype)
        match node:
            case ast.Name(id="nan" | "inf" as word) if dtype.is_float:
                return const(float(word), dtype)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")) if dtype.is_float:
                return const(-float("inf"), dtype)
            case ast.Call(func=ast.Name(id="nan"), args=[ast.Constant(value=int(bits))]) if dtype.is_float:
                return Const(dtype, struct.unpack("<d", struct.pack("<Q", bits))[0])
            case _:
                self.fail(node, f"not a literal of {dtype}", f"conversion is cast({dtype}, …)")

    def access(self, node: ast.Subscript, scope: Mapping[str, Scoped]) -> tuple[Buffer, tuple[Expr, ...]]:
        buffer = self.named_buffer(node.value, scope)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(parts) != len(buffer.shape):
            self.fail(
                node, f"{buffer} has {len(buffer.shape)} dimensions, and {len(parts)} indices are given"
            )
        return buffer, tuple(self.expr(p, scope, INDEX) for p in parts)

    # ----------------------------------------------------------------------------------------------------- leaves

    def type(self, node: ast.AST) -> tuple[DType, tuple[int, ...]]:
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=dims) if name in _DTYPES:
                parts = dims.elts if isinstance(dims, ast.Tuple) else [dims]
                return _DTYPES[name], tuple(self.integer(p) for p in parts)
            case _:
                self.fail(node, "a type is expected", "write it as f32[8, 16]")

    def open_type(self, node: ast.AST) -> tuple[DType, tuple[int, ...], tuple[Expr | None, ...]]:
        """A type, and the sizes of its open dimensions: open(f32[512, 8], size("rows", 1, 512), None)."""
        match node:
            case ast.Call(func=ast.Name(id="open"), args=[kind, *sizes]):
                found = [
                    None if isinstance(s, ast.Constant) and s.value is None else self.expr(s, {})
                    for s in sizes
                ]
                return *self.type(kind), tuple(found)
            case _:
                return *self.type(node), ()

    def lookup(self, node: ast.expr, name: str, scope: Mapping[str, Scoped]) -> Scoped:
        if name not in scope:
            self.fail(node, f"nothing is called {name!r} here", near(name, scope))
        return scope[name]

    def named_buffer(self, node: ast.expr, scope: Mapping[str, Scoped]) -> Buffer:
        found = self.lookup(node, node.id, scope) if isinstance(node, ast.Name) else None
        if not isinstance(found, Buffer):
            self.fail(node, "a buffer is expected")
        return found

    def buffers(self, node: ast.expr, scope: Mapping[str, Scoped]) -> list[Buffer]:
        parts = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
        return [self.named_buffer(p, scope) for p in parts]

    def integer(self, node: ast.expr) -> int:
        value = number_of(node)
        if not isinstance(value, int):
            self.fail(node, "an integer is expected")
        return value


def number_of(node: ast.expr) -> int | float | None:
    """A bare number, with its sign."""
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int(value) | float(value)):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value) | float(value))) if (
            not isinstance(value, bool)
        ):
            return -value
        case _:
            return None


def near(name: str, known: Mapping[str, object] | Sequence[str]) -> str | None:
    found = difflib.get_close_matches(name, list(known), 3)
    return f"did you mean {' or '.join(found)}?" if found else None

"""Expressions as text, and the identifiers that variables and buffers get in it. `printer` has functions and modules,
and says what the text is like; `gir/printer.py` has flow graphs.
"""

import json
import keyword
import re
from collections.abc import Iterable, Sequence

from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
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
    walk,
)
from tilewright.tir.literals import literal_text
from tilewright.tir.shared_parts import count_uses, is_worth_naming
from tilewright.tir.stmt import LoopKind

INFIX: dict[BinaryOp, tuple[str, int]] = {  # spelling and Python's precedence; all associate to the left
    BinaryOp.EQ: ("==", 4),
    BinaryOp.NE: ("!=", 4),
    BinaryOp.LT: ("<", 4),
    BinaryOp.LE: ("<=", 4),
    BinaryOp.OR: ("|", 5),
    BinaryOp.XOR: ("^", 6),
    BinaryOp.AND: ("&", 7),
    BinaryOp.SHL: ("<<", 8),
    BinaryOp.SHR: (">>", 8),
    BinaryOp.ADD: ("+", 9),
    BinaryOp.SUB: ("-", 9),
    BinaryOp.MUL: ("*", 10),
    BinaryOp.DIV: ("/", 10),
    BinaryOp.FLOORDIV: ("//", 10),
    BinaryOp.MOD: ("%", 10),
}
LOGICAL: dict[BinaryOp, tuple[str, int]] = {BinaryOp.OR: ("or", 1), BinaryOp.AND: ("and", 2)}  # of bools
_NOT, _COMPARISON, _NEG = 3, 4, 11

_WORDS = """
    func module out constant temp alloc block init spatial reduce where reads writes names external inputs outputs
    fma select cast bitcast min max pow nan inf
"""
RESERVED = frozenset(
    (
        *_WORDS.split(),
        *(k.value for k in LoopKind),
        *(d.value for d in DType),
        *(op.value for op in UnaryOp),
        *keyword.kwlist,
        *keyword.softkwlist,
    )
)
_HOIST_HEIGHT = (
    32  # this deep, even what is used once gets a name: neither reader nor Python likes deeper brackets
)


def print_expr(e: Expr) -> str:
    """One line; lines `t0 = …` for shared parts come before it."""
    p = ExprPrinter(TextNames(expr_names([e])))
    shared = p.share([e])
    return "\n".join([*p.lines, p.expr(e, shared)])


# ------------------------------------------------------------------------------------------------------- names


class TextNames:
    """Identifiers for variables and buffers: their own names where possible."""

    def __init__(self, things: Iterable[Var | Buffer], functions: Iterable[str] = ()) -> None:
        self.stand_ins: dict[str, str] = {}
        self._used: set[str] = set()
        self._functions = {f: f for f in functions if _is_plain(f)}  # a function may be called like a buffer
        self._functions |= {f: self._stand_in(f) for f in functions if not _is_plain(f)}
        self._names: dict[Var | Buffer, str] = {}
        for thing in things:
            if thing not in self._names:
                is_free = _is_plain(thing.name) and thing.name not in self._used
                self._names[thing] = thing.name if is_free else self._stand_in(thing.name)
                self._used.add(self._names[thing])

    def __getitem__(self, thing: Var | Buffer) -> str:
        return self._names[thing]

    def function(self, name: str) -> str:
        return self._functions[name]

    def _stand_in(self, name: str) -> str:
        stem = re.sub(r"\W", "_", name, flags=re.ASCII)
        stem = stem if stem[:1].isalpha() else f"n{stem}"
        n = 0
        while f"{stem}_{n}" in self._used or f"{stem}_{n}" in self._functions:
            n += 1
        word = f"{stem}_{n}"
        self._used.add(word)
        self.stand_ins[word] = name
        return word

    def is_used(self, word: str) -> bool:
        return word in self._used


def _is_plain(name: str) -> bool:
    return name.isidentifier() and name.isascii() and name not in RESERVED


def expr_names(exprs: Iterable[Expr]) -> list[Var | Buffer]:
    out: list[Var | Buffer] = []
    for e in exprs:
        for n in walk(e):
            if isinstance(n, Var):
                out.append(n)
            elif isinstance(n, Load):
                out.append(n.buffer)
    return sorted(dict.fromkeys(out), key=lambda t: t.name)


# ---------------------------------------------------------------------------------------------------- the text


class ExprPrinter:
    def __init__(self, names: TextNames) -> None:
        self.names = names
        self.lines: list[str] = []

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def declare(self, depth: int) -> None:
        if self.names.stand_ins:
            self.line(
                depth, f"names({', '.join(f'{w}={quoted(n)}' for w, n in self.names.stand_ins.items())})"
            )

    def share(self, roots: Sequence[Expr], depth: int = 0) -> dict[Expr, str]:
        """Names for what `roots` use more than once, and the lines that define them."""
        uses, size = count_uses(roots)
        shared: dict[Expr, str] = {}
        height: dict[Expr, int] = {}
        for e in size:
            height[e] = 1 + max((height[c] for c in e.children()), default=0)
            is_shared = uses[e] > 1 and is_worth_naming(e, size[e])
            if is_shared or height[e] > _HOIST_HEIGHT:
                n = len(shared)
                while self.names.is_used(f"t{n}") or f"t{n}" in shared.values():
                    n += 1
                text = self.expr(e, shared)
                shared[e] = f"t{n}"
                height[e] = 0
                self.line(depth, f"t{n} = {text}")
        return shared

    def expr(self, e: Expr, shared: dict[Expr, str], level: int = 0) -> str:
        """`e` as text that may stand where Python wants an operand of precedence `level` or above."""
        if e in shared:
            return shared[e]
        match e:
            case Const():
                return literal_text(e)
            case Var():
                return self.names[e]
            case DimSize():
                return f"size({quoted(e.name)}, {e.least}, {e.most})"
            case Load():
                return self.access(e.buffer, e.indices, shared)
            case Unary(op=UnaryOp.NEG) if not isinstance(e.a, Const):
                return _parens(f"-{self.expr(e.a, shared, _NEG)}", _NEG, level)
            case Unary(op=UnaryOp.NOT):
                return _parens(f"not {self.expr(e.a, shared, _NOT)}", _NOT, level)
            case Unary():
                return f"{e.op.value}({self.expr(e.a, shared)})"
            case Binary():
                table = LOGICAL if e.a.dtype is DType.BOOL and e.op in LOGICAL else INFIX
                if e.op not in table:
                    return f"{e.op.value}({self.expr(e.a, shared)}, {self.expr(e.b, shared)})"
                word, at = table[e.op]
                left = self.expr(
                    e.a, shared, at + 1 if at == _COMPARISON else at
                )  # a < b < c is a chain in Python
                return _parens(f"{left} {word} {self.expr(e.b, shared, at + 1)}", at, level)
            case Fma():
                return f"fma({', '.join(self.expr(c, shared) for c in e.children())})"
            case Select():
                return f"select({', '.join(self.expr(c, shared) for c in e.children())})"
            case Cast():
                return f"cast({e.dtype}, {self.expr(e.a, shared)})"
            case Bitcast():
                return f"bitcast({e.dtype}, {self.expr(e.a, shared)})"
            case _:
                raise TypeError(f"{type(e).__name__} has no text")

    def access(self, buffer: Buffer, indices: Sequence[Expr], shared: dict[Expr, str]) -> str:
        return f"{self.names[buffer]}[{', '.join(self.expr(i, shared) for i in indices) or '()'}]"


def _parens(text: str, at: int, level: int) -> str:
    return f"({text})" if at < level else text


def quoted(text: str) -> str:
    return json.dumps(text)


def type_text(b: Buffer) -> str:
    text = f"{b.dtype}[{', '.join(map(str, b.shape)) or '()'}]"
    if not any(size is not None for size in b.sizes):
        return text
    return f"open({', '.join([text, *('None' if s is None else print_expr(s) for s in b.sizes)])})"

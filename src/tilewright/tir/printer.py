"""Tensor programs as text: Python syntax, one statement a line, read back by `parser` to an equal program.

    @func
    def gemm(A: f32[8, 8], B: f32[8, 8], C: out(f32[8, 8])):
        for C_i in range(8):
            for C_j in vectorized(8):
                for C_k in range(8):
                    with block("C"):
                        C_vi = spatial(8, C_i)
                        C_vj = spatial(8, C_j)
                        C_vk = reduce(8, C_k)
                        reads(A[C_vi, C_vk], B[C_vk, C_vj], C[C_vi, C_vj])
                        writes(C[C_vi, C_vj])
                        with init():
                            C[C_vi, C_vj] = f32(0.0)
                        C[C_vi, C_vj] = fma(A[C_vi, C_vk], B[C_vk, C_vj], C[C_vi, C_vj])

- A bare integer is an index; every other literal says its type. Floats have as many digits as it takes to get their
  bits back.
- `reads` and `writes` are derived from the body and there for the reader; the parser skips them.
- A subexpression that is used more than once gets a name before its statement: `t0 = exp(X[i])`. Such a line is an
  abbreviation, not a statement: nothing runs there, the parser puts the expression back. So the text of a DAG is as
  long as the DAG, not as the tree.
- Annotations of a loop or block are further arguments: `for i in range(8, cost=3):`, `with block("C", note="x"):`.
- A name that is no Python identifier, is taken or has a meaning here gets a stand-in, declared by `names(…)` in the
  first line of the body.
- Docs with every node: `docs/ir.md`.
"""

import hashlib
import json
import keyword
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    TRUE,
    Binary,
    BinaryOp,
    Bitcast,
    Buffer,
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Scope,
    Select,
    Unary,
    UnaryOp,
    Var,
    free_vars,
    loads,
)
from tilewright.ir.expr import walk as walk_expr
from tilewright.support.program import Branch, While
from tilewright.tir.analysis.accesses import reads, touched_regions, writes
from tilewright.tir.analysis.regions import BufferRegion
from tilewright.tir.literals import literal_text
from tilewright.tir.program import Call, External, Program
from tilewright.tir.shared_parts import count_uses, is_worth_naming
from tilewright.tir.stmt import (
    Alloc,
    Annotations,
    Block,
    Emit,
    For,
    If,
    Iter,
    LoopKind,
    Repeat,
    Seq,
    Stmt,
    Store,
    children,
    stmt_exprs,
    walk_stmts,
)

if TYPE_CHECKING:  # Func and Module print themselves, with what is here
    from tilewright.tir.func import Func, Module

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
    p = _Printer(_Names(_expr_names([e])))
    shared = p.share([e])
    return "\n".join([*p.lines, p.expr(e, shared)])


def print_stmt(s: Stmt) -> str:
    p = _Printer(_Names(_stmt_names(s)))
    p.stmt(s, 0)
    return "\n".join(p.lines)


def print_head(s: Stmt) -> str:
    """The line that a message quotes to say where it is: the store or the condition, or what opens the body."""
    match s:
        case Block():
            return f"with block({_quote(s.name)}{_notes(s.annotations)}):"
        case Seq() if s.stmts:
            return print_head(s.stmts[0])
        case For() | Alloc() | Emit() | Repeat():
            s = replace(s, body=Seq(()))
        case If():
            s = If(s.cond, Seq(()))
        case Store() | Seq():
            pass
        case _:
            assert_never(s)
    lines = print_stmt(s).splitlines()
    return next(line for line in lines if not re.match(r"t\d+ = ", line))


def print_func(func: "Func") -> str:
    names = _Names([*func.params, *func.locals, *_stmt_names(func.body)], [func.name])
    p = _Printer(names)
    params = [
        f"{names[b]}: out({_type(b)})" if b in func.outputs else f"{names[b]}: {_type(b)}"
        for b in func.params
    ]
    p.lines += ["@func", f"def {names.function(func.name)}({', '.join(params)}):"]
    p.declare(1)
    for b in func.locals:
        p.line(1, f"{names[b]} = {_alloc(b)}")
    p.stmt(func.body, 1)
    if func.outputs != tuple(b for b in func.params if b in func.outputs):
        p.line(1, f"return {', '.join(names[b] for b in func.outputs)}")
    return "\n".join(p.lines) + "\n"


def print_module(module: "Module") -> str:
    """All Funcs, then the program. Of the constants only shape and digest are printed."""
    values = {c.buffer: c.value for c in module.constants}
    known = dict.fromkeys([*module.inputs, *values, *module.temps, *module.outputs])
    names = _Names([*known], [f.name for f in module.funcs])
    p = _Printer(names)
    params: list[str] = []
    for b in known:
        kind = _type(b)
        if b in values:
            kind = f'constant({kind}, "{constant_digest(values[b])}")'
        elif b in module.temps:
            kind = f"temp({kind})"
        elif b not in module.inputs:
            kind = f"out({kind})"
        params.append(f"{names[b]}: {kind}")
    p.lines += ["@module", f"def main({', '.join(params)}):"]
    p.declare(1)
    p.program(module.program, 1)
    p.line(1, f"return {', '.join(names[b] for b in module.outputs)}".rstrip())
    return "\n\n".join([*(print_func(f) for f in module.funcs), "\n".join(p.lines) + "\n"])


def constant_digest(value: NDArray[Any]) -> str:
    """Identifies the contents of a constant in text."""
    return hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]


# ------------------------------------------------------------------------------------------------------- names


class _Names:
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


def _expr_names(exprs: Iterable[Expr]) -> list[Var | Buffer]:
    out: list[Var | Buffer] = []
    for e in exprs:
        for n in walk_expr(e):
            if isinstance(n, Var):
                out.append(n)
            elif isinstance(n, Load):
                out.append(n.buffer)
    return sorted(dict.fromkeys(out), key=lambda t: t.name)


def _stmt_names(s: Stmt) -> list[Var | Buffer]:
    out: list[Var | Buffer] = []
    for n in walk_stmts(s):
        match n:
            case For():
                out.append(n.var)
            case Block():
                out.extend(it.var for it in n.iters)
            case Alloc() | Store():
                out.append(n.buffer)
            case Seq() | If() | Emit() | Repeat():
                pass
            case _:
                assert_never(n)
        out.extend(_expr_names(stmt_exprs(n)))
    return out


# ---------------------------------------------------------------------------------------------------- the text


class _Printer:
    def __init__(self, names: _Names) -> None:
        self._names = names
        self.lines: list[str] = []

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def declare(self, depth: int) -> None:
        if self._names.stand_ins:
            self.line(
                depth, f"names({', '.join(f'{w}={_quote(n)}' for w, n in self._names.stand_ins.items())})"
            )

    def stmt(self, s: Stmt, depth: int) -> None:
        match s:
            case For():
                self.line(
                    depth, f"for {self._names[s.var]} in {s.kind.value}({s.extent}{_notes(s.annotations)}):"
                )
                self.stmt(s.body, depth + 1)
            case Block():
                self._block(s, depth)
            case Seq():
                for c in s.stmts:
                    self.stmt(c, depth)
                if not s.stmts:
                    self.line(depth, "pass")
            case Store():
                shared = self.share([*s.indices, s.value], depth)
                target = self._access(s.buffer, s.indices, shared)
                self.line(depth, f"{target} = {self.expr(s.value, shared)}")
            case If():
                shared = self.share([s.cond], depth)
                self.line(depth, f"if {self.expr(s.cond, shared)}:")
                self.stmt(s.then, depth + 1)
            case Repeat():
                shared = self.share([s.cond], depth)
                self.line(depth, f"while {self.expr(s.cond, shared)}:")
                self.stmt(s.body, depth + 1)
            case Emit():
                places = [f"[{', '.join(self.expr(e, {}) for e in p)}]" for p in s.operands]
                self.line(depth, f"with emit({', '.join([_quote(s.intrinsic), *places])}):")
                self.stmt(s.body, depth + 1)
            case Alloc():
                self.line(depth, f"with {_alloc(s.buffer)} as {self._names[s.buffer]}:")
                self.stmt(s.body, depth + 1)
            case _:
                assert_never(s)

    def _block(self, s: Block, depth: int) -> None:
        shared = self.share([*s.bindings, s.predicate], depth)
        self.line(depth, f"with block({_quote(s.name)}{_notes(s.annotations)}):")
        for it, binding in zip(s.iters, s.bindings, strict=True):
            self.line(depth + 1, self._iter(it, self.expr(binding, shared)))
        if s.predicate is not TRUE:
            self.line(depth + 1, f"where({self.expr(s.predicate, shared)})")
        for word, accesses in zip(("reads", "writes"), self._accesses(s), strict=True):
            if accesses:
                self.line(depth + 1, f"{word}({', '.join(dict.fromkeys(accesses))})")
        if s.init is not None:
            self.line(depth + 1, "with init():")
            self.stmt(s.init, depth + 2)
        self.stmt(s.body, depth + 1)

    def _iter(self, it: Iter, binding: str) -> str:
        return f"{self._names[it.var]} = {it.kind.value}({it.extent}, {binding})"

    def _accesses(self, s: Block) -> tuple[list[str], list[str]]:
        """What the block reads and writes: elements, or boxes of them if there are loops in it."""
        if any(isinstance(n, For | Block) for part in children(s) for n in walk_stmts(part)):
            both = [sorted(boxes.items(), key=lambda b: b[0].name) for boxes in touched_regions(s)]
            read, written = ([self._box(b, spans) for b, spans in boxes] for boxes in both)
            return read, written
        visible = {it.var for it in s.iters}
        return [self._summary(a, visible) for a in reads(s)], [self._summary(a, visible) for a in writes(s)]

    def _box(self, buffer: Buffer, spans: BufferRegion) -> str:
        """A[i * 4:i * 4 + 4, :], with one index where there is one element."""
        parts: list[str] = []
        for span, size in zip(spans, buffer.shape, strict=True):
            if loads(span.min):
                return f"{self._names[buffer]}[...]"
            start = self.expr(span.min, {})
            end = self.expr(span.min + span.extent, {})
            whole = span.extent == size > 1
            parts.append(":" if whole else start if span.extent == 1 else f"{start}:{end}")
        return f"{self._names[buffer]}[{', '.join(parts) or '()'}]"

    def _summary(self, access: Load, visible: set[Var]) -> str:
        """An access in terms of the block's iterators; all of the buffer if it takes more than that to say."""
        simple = all(free_vars(i) <= visible and not loads(i) for i in access.indices)
        return self.expr(access, {}) if simple else f"{self._names[access.buffer]}[...]"

    def program(self, program: Program, depth: int) -> None:
        if not program:
            self.line(depth, "pass")
        for step in program:
            match step:
                case Call():
                    self.line(depth, f"{self._names.function(step.func)}({self._args(step.args)})")
                case External():
                    places = f"inputs=[{self._args(step.inputs)}], outputs=[{self._args(step.outputs)}]"
                    self.line(depth, f"external({_quote(step.key)}, {places})")
                case Branch():
                    self.line(depth, f"if {self._names[step.cond]}:")
                    self.program(step.then, depth + 1)
                    if step.otherwise:
                        self.line(depth, "else:")
                        self.program(step.otherwise, depth + 1)
                case While():
                    self.line(depth, f"while {self._names[step.cond]}:")
                    self.program(step.body, depth + 1)
                case _:
                    assert_never(step)

    def _args(self, buffers: Sequence[Buffer]) -> str:
        return ", ".join(self._names[b] for b in buffers)

    # ------------------------------------------------------------------------------------------------ expressions

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
                while self._names.is_used(f"t{n}") or f"t{n}" in shared.values():
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
                return self._names[e]
            case Load():
                return self._access(e.buffer, e.indices, shared)
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

    def _access(self, buffer: Buffer, indices: Sequence[Expr], shared: dict[Expr, str]) -> str:
        return f"{self._names[buffer]}[{', '.join(self.expr(i, shared) for i in indices) or '()'}]"


def _parens(text: str, at: int, level: int) -> str:
    return f"({text})" if at < level else text


def _quote(text: str) -> str:
    return json.dumps(text)


def _notes(annotations: Annotations) -> str:
    """Arguments `, key=value`; a key that is no word goes into `**{…}`."""
    plain = {k: _quote(v) if isinstance(v, str) else repr(v) for k, v in annotations}
    words = [f"{k}={v}" for k, v in plain.items() if k.isidentifier() and not keyword.iskeyword(k)]
    other = [f"{_quote(k)}: {v}" for k, v in plain.items() if not k.isidentifier() or keyword.iskeyword(k)]
    return "".join(f", {w}" for w in (*words, *([f"**{{{', '.join(other)}}}"] if other else [])))


def _type(b: Buffer) -> str:
    return f"{b.dtype}[{', '.join(map(str, b.shape)) or '()'}]"


def _alloc(b: Buffer) -> str:
    return f"alloc({_type(b)})" if b.scope is Scope.GLOBAL else f'alloc({_type(b)}, "{b.scope.value}")'

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
import keyword
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.expr import TRUE, Buffer, Load, Scope, Var, free_vars, loads
from tilewright.support.program import Branch, While
from tilewright.tir.analysis.accesses import reads, touched_regions, writes
from tilewright.tir.analysis.regions import BufferRegion
from tilewright.tir.expr_printer import ExprPrinter, TextNames, expr_names, print_expr, quoted, type_text
from tilewright.tir.program import Call, External, Program
from tilewright.tir.stmt import (
    Alloc,
    Annotations,
    Block,
    Emit,
    For,
    If,
    Iter,
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

__all__ = ["constant_digest", "print_expr", "print_func", "print_head", "print_module", "print_stmt"]


def print_stmt(s: Stmt) -> str:
    p = _Printer(TextNames(_stmt_names(s)))
    p.stmt(s, 0)
    return "\n".join(p.lines)


def print_head(s: Stmt) -> str:
    """The line that a message quotes to say where it is: the store or the condition, or what opens the body."""
    match s:
        case Block():
            return f"with block({quoted(s.name)}{_notes(s.annotations)}):"
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
    names = TextNames([*func.params, *func.locals, *_stmt_names(func.body)], [func.name])
    p = _Printer(names)
    params = [
        f"{names[b]}: out({type_text(b)})" if b in func.outputs else f"{names[b]}: {type_text(b)}"
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
    names = TextNames([*known], [f.name for f in module.funcs])
    p = _Printer(names)
    params: list[str] = []
    for b in known:
        kind = type_text(b)
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
        out.extend(expr_names(stmt_exprs(n)))
    return out


# ---------------------------------------------------------------------------------------------------- the text


class _Printer(ExprPrinter):
    def stmt(self, s: Stmt, depth: int) -> None:
        match s:
            case For():
                limit = "" if s.limit is None else f", {self.expr(s.limit, {})}"
                head = f"{s.kind.value}({s.extent}{limit}{_notes(s.annotations)})"
                self.line(depth, f"for {self.names[s.var]} in {head}:")
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
                target = self.access(s.buffer, s.indices, shared)
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
                self.line(depth, f"with emit({', '.join([quoted(s.intrinsic), *places])}):")
                self.stmt(s.body, depth + 1)
            case Alloc():
                self.line(depth, f"with {_alloc(s.buffer)} as {self.names[s.buffer]}:")
                self.stmt(s.body, depth + 1)
            case _:
                assert_never(s)

    def _block(self, s: Block, depth: int) -> None:
        shared = self.share([*s.bindings, s.predicate], depth)
        self.line(depth, f"with block({quoted(s.name)}{_notes(s.annotations)}):")
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
        size = "" if it.size is None else f", {self.expr(it.size, {})}"
        return f"{self.names[it.var]} = {it.kind.value}({it.extent}, {binding}{size})"

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
                return f"{self.names[buffer]}[...]"
            start = self.expr(span.min, {})
            end = self.expr(span.min + span.extent, {})
            whole = span.extent == size > 1
            parts.append(":" if whole else start if span.extent == 1 else f"{start}:{end}")
        return f"{self.names[buffer]}[{', '.join(parts) or '()'}]"

    def _summary(self, access: Load, visible: set[Var]) -> str:
        """An access in terms of the block's iterators; all of the buffer if it takes more than that to say."""
        simple = all(free_vars(i) <= visible and not loads(i) for i in access.indices)
        return self.expr(access, {}) if simple else f"{self.names[access.buffer]}[...]"

    def program(self, program: Program, depth: int) -> None:
        if not program:
            self.line(depth, "pass")
        for step in program:
            match step:
                case Call():
                    self.line(depth, f"{self.names.function(step.func)}({self._args(step.args)})")
                case External():
                    places = f"inputs=[{self._args(step.inputs)}], outputs=[{self._args(step.outputs)}]"
                    self.line(depth, f"external({quoted(step.key)}, {places})")
                case Branch():
                    self.line(depth, f"if {self.names[step.cond]}:")
                    self.program(step.then, depth + 1)
                    if step.otherwise:
                        self.line(depth, "else:")
                        self.program(step.otherwise, depth + 1)
                case While():
                    self.line(depth, f"while {self.names[step.cond]}:")
                    self.program(step.body, depth + 1)
                case _:
                    assert_never(step)

    def _args(self, buffers: Sequence[Buffer]) -> str:
        return ", ".join(self.names[b] for b in buffers)

    # ------------------------------------------------------------------------------------------------ expressions


def _notes(annotations: Annotations) -> str:
    """Arguments `, key=value`; a key that is no word goes into `**{…}`."""
    plain = {k: quoted(v) if isinstance(v, str) else repr(v) for k, v in annotations}
    words = [f"{k}={v}" for k, v in plain.items() if k.isidentifier() and not keyword.iskeyword(k)]
    other = [f"{quoted(k)}: {v}" for k, v in plain.items() if not k.isidentifier() or keyword.iskeyword(k)]
    return "".join(f", {w}" for w in (*words, *([f"**{{{', '.join(other)}}}"] if other else [])))


def _alloc(b: Buffer) -> str:
    return (
        f"alloc({type_text(b)})" if b.scope is Scope.GLOBAL else f'alloc({type_text(b)}, "{b.scope.value}")'
    )

"""The digest of a Func up to renaming: equal digests mean the same kernel over other buffers.

Buffers are numbered by their position among params and locals, variables and blocks in order of appearance,
shared subexpressions once. The digest of the *unscheduled* Func keys tuning tasks, schedules and compiled
objects.
"""

import hashlib
from collections.abc import Iterable
from typing import assert_never

from tilewright.ir.expr import Buffer, Const, DimSize, Expr, Load, Var
from tilewright.tir.func import Func
from tilewright.tir.stmt import Alloc, Annotations, Block, Emit, For, If, Repeat, Seq, Stmt, Store


def func_digest(func: Func, marks: Iterable[str] = ()) -> str:
    """Hex digest; `marks` are further facts that distinguish kernels (which params are constants, say)."""
    writer = _Writer(func)
    writer.stmt(func.body)
    text = "\n".join([*writer.lines, *marks])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class _Writer:
    def __init__(self, func: Func) -> None:
        self.lines: list[str] = []
        self._numbers: dict[Expr, str] = {}
        self._buffers: dict[Buffer, str] = {}
        for kind, group in (("p", func.params), ("l", func.locals)):
            for b in group:
                self._buffer(b, kind)

    def _buffer(self, b: Buffer, kind: str = "a") -> str:
        name = self._buffers.get(b)
        if name is None:
            name = f"{kind}{len(self._buffers)}"
            self._buffers[b] = name
            self.lines.append(f"{name} {b.dtype.value}{b.shape} {b.scope.value}")
            for d, size in enumerate(b.sizes):
                if size is not None:
                    self.lines.append(f"of {d}: {self.expr(size)}")
        return name

    def expr(self, e: Expr) -> str:
        name = self._numbers.get(e)
        if name is None:
            children = [self.expr(c) for c in e.children()]
            name = f"e{len(self._numbers)}"
            self._numbers[e] = name
            match e:
                case Var():
                    what = f"var {e.dtype.value}"
                case Const():
                    what = (
                        f"const {e.dtype.value} {float(e.value).hex() if e.dtype.is_float else int(e.value)}"
                    )
                case DimSize():
                    what = f"size {e.name} {e.least} {e.most}"
                case Load():
                    what = f"load {self._buffer(e.buffer)}"
                case _:
                    op = getattr(e, "op", None)
                    what = f"{type(e).__name__} {e.dtype.value} {op.value if op is not None else ''}"
            self.lines.append(f"{name} {what} {' '.join(children)}")
        return name

    def stmt(self, s: Stmt) -> None:
        match s:
            case Store():
                parts = " ".join([self.expr(i) for i in s.indices])
                self.lines.append(f"store {self._buffer(s.buffer)} [{parts}] {self.expr(s.value)}")
            case For():
                limit = "" if s.limit is None else f" {self.expr(s.limit)}"
                self.lines.append(
                    f"for {self.expr(s.var)} {s.extent}{limit} {s.kind.value}{_notes(s.annotations)} {{"
                )
                self.stmt(s.body)
                self.lines.append("}")
            case Seq():
                for c in s.stmts:
                    self.stmt(c)
            case If():
                self.lines.append(f"if {self.expr(s.cond)} {{")
                self.stmt(s.then)
                self.lines.append("}")
            case Repeat():
                self.lines.append(f"while {self.expr(s.cond)} {{")
                self.stmt(s.body)
                self.lines.append("}")
            case Emit():
                places = [f"[{' '.join(map(self.expr, p))}]" for p in s.operands]
                self.lines.append(f"emit {s.intrinsic} {' '.join(places)} {{")
                self.stmt(s.body)
                self.lines.append("}")
            case Alloc():
                self.lines.append(f"alloc {self._buffer(s.buffer)} {{")
                self.stmt(s.body)
                self.lines.append("}")
            case Block():
                for it, binding in zip(s.iters, s.bindings, strict=True):
                    size = "" if it.size is None else f" {self.expr(it.size)}"
                    self.lines.append(
                        f"{self.expr(it.var)} {it.kind.value} {it.extent}{size} = {self.expr(binding)}"
                    )
                self.lines.append(f"block where {self.expr(s.predicate)}{_notes(s.annotations)} {{")
                if s.init is not None:
                    self.stmt(s.init)
                    self.lines.append("} init {")
                self.stmt(s.body)
                self.lines.append("}")
            case _:
                assert_never(s)


def _notes(annotations: Annotations) -> str:
    """`repr` tells 1, 1.0, True and "1" apart."""
    return f" {annotations!r}" if annotations else ""

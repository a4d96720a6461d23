"""Register buffers as SSA values.

A buffer in REGISTER scope is a row of slots, each one vector (or scalar) value. After unrolling every index
into it is a constant plus the lane, so an access names a slot. Loops carry the slots they change as phis;
nothing of a register buffer is ever in memory, and nothing depends on an optimiser to keep it so.
"""

from dataclasses import dataclass, field

from tilewright.ir.expr import Buffer, Indices, Load, Scope, Var, loads
from tilewright.ir.simplify import Simplifier
from tilewright.support.errors import InternalError
from tilewright.tir.stmt import For, LoopKind, Stmt, Store, children, stmt_exprs


@dataclass(slots=True)
class RegisterFile:
    """`slots[n]` holds elements n·width … of the flattened buffer, None before the first store."""

    buffer: Buffer
    width: int
    slots: list[str | None] = field(default_factory=list[str | None])

    def __post_init__(self) -> None:
        self.slots = [None] * -(-self.buffer.size // self.width)


def constant_offset(
    buffer: Buffer, indices: Indices, lane: Var | None, simplify: Simplifier
) -> tuple[int, int]:
    """(constant part, coefficient of the lane) of the flattened index; it has no other part."""
    offset = step = 0
    for i, stride in zip(indices, buffer.strides, strict=True):
        form = simplify.linear(i)
        offset += form.const * stride
        for atom, k in form.terms:
            if atom is not lane:
                raise InternalError(
                    f"register buffer {buffer.name} is indexed by a loop that is not unrolled: {atom}"
                )
            step += k * stride
    return offset, step


def register_width(buffer: Buffer, body: Stmt, simplify: Simplifier) -> int:
    """The widest vector access to the buffer decides the width of its slots."""
    width = 1

    def visit(s: Stmt, lane: For | None) -> None:
        nonlocal width
        if lane is not None:
            accesses: list[Load | Store] = [ld for e in stmt_exprs(s) for ld in loads(e)]
            if isinstance(s, Store):
                accesses.append(s)
            for a in accesses:
                if a.buffer is buffer and constant_offset(buffer, a.indices, lane.var, simplify)[1]:
                    width = max(width, lane.extent)
        for c in children(s):
            visit(c, s if isinstance(s, For) and s.kind is LoopKind.VECTORIZED else lane)

    visit(body, None)
    return width


def stored_slots(
    body: Stmt, files: dict[Buffer, RegisterFile], simplify: Simplifier, lane: For | None = None
) -> dict[Buffer, list[int]]:
    """Which slots of the known register files `body` writes; `lane` is the vectorised loop around it."""
    found: dict[Buffer, set[int]] = {}

    def visit(s: Stmt, lane: For | None) -> None:
        if isinstance(s, Store) and s.buffer.scope is Scope.REGISTER and s.buffer in files:
            offset, step = constant_offset(s.buffer, s.indices, lane.var if lane else None, simplify)
            width = files[s.buffer].width
            lanes = lane.extent if lane and step else 1
            found.setdefault(s.buffer, set()).update((offset + n * step) // width for n in range(lanes))
        for c in children(s):
            visit(c, s if isinstance(s, For) and s.kind is LoopKind.VECTORIZED else lane)

    visit(body, lane)
    return {b: sorted(s) for b, s in found.items()}

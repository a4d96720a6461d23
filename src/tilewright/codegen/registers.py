"""Register buffers as SSA values.

A buffer in REGISTER scope is a row of slots, each one vector (or scalar) value. After unrolling every index
into it is a constant plus the lane, so an access names a slot. Loops carry the slots they change as phis;
nothing of a register buffer is ever in memory, and nothing depends on an optimiser to keep it so.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from tilewright.ir.expr import Buffer, Indices, Var
from tilewright.ir.simplify import Simplifier
from tilewright.support.errors import InternalError
from tilewright.target.intrinsics import find_intrinsic
from tilewright.tir.stmt import Emit, For, LoopKind, Stmt, Store, children, walk_stmts


@dataclass(slots=True)
class RegisterFile:
    """`slots[n]` holds elements n·width … of the flattened buffer, None before the first store. Where intrinsics hold
    the elements in an order of their own, there are as many slots as they say.
    """

    buffer: Buffer
    width: int
    count: int | None = None
    slots: list[str | None] = field(default_factory=list[str | None])

    def __post_init__(self) -> None:
        self.slots = [None] * (self.count or -(-self.buffer.size // self.width))


def register_file(buffer: Buffer, body: Stmt, offsets: "Offsets") -> RegisterFile:
    """Slots for what `body` does with the buffer."""
    emits = (s for s in walk_stmts(body) if isinstance(s, Emit))
    for s in emits:
        own = _own_vectors(s)
        if own is not None and any(place[0].buffer is buffer for place in s.operands):
            return RegisterFile(buffer, width=own[1], count=own[0])
    return RegisterFile(buffer, register_width(buffer, body, offsets))


class Offsets:
    """Where accesses to register buffers go, remembered."""

    def __init__(self, simplify: Simplifier) -> None:
        self._simplify = simplify
        self._known: dict[tuple[Buffer, Indices, Var | None], tuple[int, int]] = {}

    def of(self, buffer: Buffer, indices: Indices, lane: Var | None) -> tuple[int, int]:
        """(constant part, coefficient of the lane) of the flattened index; it has no other part."""
        key = (buffer, indices, lane)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._compute(buffer, indices, lane)
        return found

    def all(self, buffer: Buffer, indices: Indices, loops: Mapping[Var, int]) -> set[int]:
        """The flattened indices that an access in these loops (variable: extent) has."""
        offset, steps = 0, list[range]()
        for i, stride in zip(indices, buffer.strides, strict=True):
            form = self._simplify.linear(i)
            offset += form.const * stride
            for atom, k in form.terms:
                if not isinstance(atom, Var) or atom not in loops:
                    raise InternalError(
                        f"register buffer {buffer.name} is indexed by a loop that is not unrolled: {atom}"
                    )
                steps.append(range(0, k * stride * loops[atom], k * stride))
        return {offset + sum(at) for at in product(*steps)}

    def _compute(self, buffer: Buffer, indices: Indices, lane: Var | None) -> tuple[int, int]:
        offset = step = 0
        for i, stride in zip(indices, buffer.strides, strict=True):
            form = self._simplify.linear(i)
            offset += form.const * stride
            for atom, k in form.terms:
                if atom is not lane:
                    raise InternalError(
                        f"register buffer {buffer.name} is indexed by a loop that is not unrolled: {atom}"
                    )
                step += k * stride
        return offset, step


def register_width(buffer: Buffer, body: Stmt, offsets: Offsets) -> int:
    """The widest vector that is stored to the buffer is the width of its slots. Other accesses take elements out."""
    return _width_below(body, buffer, offsets, None)


def _width_below(s: Stmt, buffer: Buffer, offsets: Offsets, lane: For | None) -> int:
    if isinstance(s, Emit):
        return _emitted_width(s, buffer)
    if isinstance(s, Store):
        wide = lane is not None and s.buffer is buffer and offsets.of(buffer, s.indices, lane.var)[1]
        return lane.extent if lane is not None and wide else 1
    if isinstance(s, For) and s.kind is LoopKind.VECTORIZED:
        lane = s
    return max((_width_below(c, buffer, offsets, lane) for c in children(s)), default=1)


def _emitted_width(s: Emit, buffer: Buffer) -> int:
    """The vector that a tensor intrinsic writes to the buffer: the elements that it wants side by side."""
    intrinsic = find_intrinsic(s.intrinsic)
    if intrinsic is None or s.operands[0][0].buffer is not buffer:
        return 1
    shape, contiguous = intrinsic.meaning.params[0].shape, intrinsic.operands[0].contiguous
    return math.prod(shape[len(shape) - contiguous :])


def _own_vectors(s: Emit) -> tuple[int, int] | None:
    """How many, of how many elements, an operand is whose elements intrinsics hold in an order of their own."""
    intrinsic = find_intrinsic(s.intrinsic)
    return None if intrinsic is None else intrinsic.vectors


def stored_slots(
    body: Stmt,
    files: Mapping[Buffer, RegisterFile],
    offsets: Offsets,
    lane: Var | None = None,
    lanes: int = 1,
) -> dict[Buffer, list[int]]:
    """Which slots of the known register files `body` writes; `lane` is the vectorised loop around it, if any."""
    found: dict[Buffer, set[int]] = {}
    for s, along, width in _with_lanes(body, lane, lanes) if files else ():
        if isinstance(s, Emit) and (own := _own_vectors(s)):
            out = s.operands[0][0].buffer
            if out in files:
                found.setdefault(out, set()).update(range(own[0]))
        elif isinstance(s, Emit):  # its loops are not unrolled: the instructions are for all their iterations
            extents = {n.var: n.extent for n in walk_stmts(s.body) if isinstance(n, For)}
            for n in walk_stmts(s.body):
                if isinstance(n, Store) and n.buffer in files:
                    at = offsets.all(n.buffer, n.indices, extents)
                    size = files[n.buffer].width
                    found.setdefault(n.buffer, set()).update(i // size for i in at)
        elif s.buffer in files:
            offset, step = offsets.of(s.buffer, s.indices, along)
            size = files[s.buffer].width
            found.setdefault(s.buffer, set()).update(
                (offset + n * step) // size for n in range(width if step else 1)
            )
    return {b: sorted(s) for b, s in found.items()}


def _with_lanes(body: Stmt, lane: Var | None, lanes: int) -> Iterator[tuple[Store | Emit, Var | None, int]]:
    """The stores and intrinsics in `body`, in program order, each with the vectorised loop around it."""
    stack = [(body, lane, lanes)]
    while stack:
        s, lane, lanes = stack.pop()
        if isinstance(s, (Store, Emit)):
            yield s, lane, lanes
            continue
        if isinstance(s, For) and s.kind is LoopKind.VECTORIZED:
            lane, lanes = s.var, s.extent
        stack.extend((c, lane, lanes) for c in reversed(children(s)))

"""Tensor intrinsics as LLVM IR: what their emitters write with.

An `Emit` says where its operands are by the element each starts at and that element's neighbours. Both are read off
the lowered statement, whatever passes have made of it, and held against its body: an operand must be exactly the
elements that the body touches. A step that rearranged a buffer after Tensorize is found here, and not in the results.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from random import Random
from typing import TypeAlias

from tilewright.codegen.expressions import ExprEmitter
from tilewright.codegen.registers import RegisterFile
from tilewright.codegen.values import Val, llvm_type, memory_type
from tilewright.ir.expr import Buffer, Const, Expr, Indices, Load, Scope, Var, as_index, free_vars, loads
from tilewright.ir.rewrite import transform
from tilewright.ir.simplify import Linear
from tilewright.support.errors import InternalError
from tilewright.target.intrinsic import EmitContext, Intrinsic
from tilewright.target.intrinsics import find_intrinsic
from tilewright.tir.passes.place_sizes import size_name
from tilewright.tir.stmt import Emit, For, Store, walk_stmts

_Terms: TypeAlias = tuple[tuple[Expr, int], ...]

_SAMPLES = (
    16  # iterations of the loops around, in which places that are written in two ways are compared; judged
)
_LARGEST = 1 << 20  # number of an iteration among them, where it has no bound


def intrinsic_of(s: Emit) -> Intrinsic:
    found = find_intrinsic(s.intrinsic)
    if found is None or found.emitter is None:
        raise InternalError(f"there is no code for the tensor intrinsic {s.intrinsic!r}")
    return found


def write_intrinsic(s: Emit, e: ExprEmitter) -> None:
    """Write the instructions of `s` at the current position."""
    intrinsic = intrinsic_of(s)
    assert intrinsic.emitter is not None
    places = [
        _Place(load, others, p.shape, e)
        for (load, *others), p in zip(s.operands, intrinsic.meaning.params, strict=True)
    ]
    _check_places(s, places, e)
    intrinsic.emitter(_Context(e, places))
    e.known.forget(places[0].buffer)


class _Place:
    """Where the elements of an operand are: at offsets from `base`, in elements of the flattened buffer."""

    def __init__(self, first: Load, neighbours: Sequence[Load], shape: Sequence[int], e: ExprEmitter) -> None:
        self.buffer = first.buffer
        self.base = e.flat_index(first.buffer, first.indices)
        self.strides = [self._distance(n.indices, e) for n in neighbours]
        self.offsets = [
            sum(i * s for i, s in zip(at, self.strides, strict=True))
            for at in product(*(range(n) for n in shape))
        ]

    def _distance(self, indices: Indices, e: ExprEmitter) -> int:
        there = e.flat_index(self.buffer, indices)
        if there.terms != self.base.terms:
            raise InternalError(f"neighbours in {self.buffer.name} are not a fixed distance apart")
        return there.const - self.base.const


def _check_places(s: Emit, places: Sequence[_Place], e: ExprEmitter) -> None:
    """The body touches the elements of the operands, and no others. (Steps may have unrolled its loops.)"""
    extents = {n.var: n.extent for n in walk_stmts(s.body) if isinstance(n, For)}
    accesses: set[tuple[Buffer, Indices]] = set()
    for n in walk_stmts(s.body):
        if isinstance(n, Store):
            accesses.add((n.buffer, n.indices))
            # What indices read are sizes.
            accesses |= {(x.buffer, x.indices) for x in loads(n.value) if size_name(x.buffer) is None}
    wanted: dict[tuple[Buffer, _Terms], set[int]] = {}
    for p in places:
        wanted.setdefault((p.buffer, p.base.terms), set()).update(p.base.const + i for i in p.offsets)
    touched: dict[tuple[Buffer, _Terms], set[int]] = {}
    for buffer, indices in accesses:
        form = e.flat_index(buffer, indices)
        inside = [range(0, k * extents[a], k) for a, k in form.terms if isinstance(a, Var) and a in extents]
        outside = tuple((a, k) for a, k in form.terms if a not in extents)
        touched.setdefault((buffer, outside), set()).update(form.const + sum(x) for x in product(*inside))
    if wanted == touched:
        return
    # One place may be written in two ways, such as (f · 8) // 47 and f // 47 · 8 + (f % 47 · 8) // 47.
    for buffer in dict.fromkeys(key[0] for key in (*wanted, *touched)):
        for around in _samples([*wanted, *touched], e):
            if _elements(wanted, buffer, around) != _elements(touched, buffer, around):
                raise InternalError(
                    f"{s.intrinsic} is to use other elements of {buffer.name} than its body does: a step rearranged "
                    "the buffer or the body after Tensorize"
                )


def _samples(keys: Sequence[tuple[Buffer, _Terms]], e: ExprEmitter) -> Iterator[Mapping[Expr, Expr]]:
    """Some iterations of the loops around, at some sizes of open dimensions."""
    atoms = [a for _, terms in keys for a, _ in terms]
    around = sorted({v for a in atoms for v in free_vars(a)}, key=lambda v: v.name)
    sizes = sorted({ld for a in atoms for ld in loads(a)}, key=lambda ld: ld.buffer.name)
    ends = [
        *((v, 0, e.simplify.bounds(v)) for v in around),
        *((ld, 1, e.simplify.bounds(ld)) for ld in sizes),
    ]
    random = Random(0)
    for _ in range(_SAMPLES):
        yield {
            a: as_index(random.randint(int(max(end.lo, least)), int(min(end.hi, _LARGEST))))
            for a, least, end in ends
        }


def _elements(
    places: Mapping[tuple[Buffer, _Terms], set[int]], buffer: Buffer, around: Mapping[Expr, Expr]
) -> set[int]:
    """The elements of a buffer in one iteration."""
    found: set[int] = set()
    for (b, terms), offsets in places.items():
        if b is buffer:
            base = sum(k * _value(transform(a, around.get)) for a, k in terms)
            found.update(base + i for i in offsets)
    return found


def _value(e: Expr) -> int:
    if not isinstance(e, Const):
        raise InternalError(f"the place of an operand depends on {e}, which is no number")
    return int(e.value)


class _Context(EmitContext):
    def __init__(self, e: ExprEmitter, places: Sequence[_Place]) -> None:
        self._e, self._b, self._places = e, e.b, places

    def op(self, text: str) -> str:
        name = self._b.fresh()
        self._b.line(f"{name} = {text}")
        return name

    def call(self, function: str, type: str, *args: tuple[str, str]) -> str:
        head = self._b.intrinsic(function, type, *(t for t, _ in args))
        return self.op(f"{head}({', '.join(f'{t} {v}' for t, v in args)})")

    def run(self, function: str, *args: tuple[str, str]) -> None:
        head = self._b.intrinsic(function, "void", *(t for t, _ in args))
        self._b.line(f"{head}({', '.join(f'{t} {v}' for t, v in args)})")

    def splat(self, type: str, value: str, lanes: int) -> str:
        t = f"<{lanes} x {type}>"
        one = self.op(f"insertelement {t} poison, {type} {value}, i64 0")
        return self.op(f"shufflevector {t} {one}, {t} poison, <{lanes} x i32> zeroinitializer")

    def vector(self, operand: int, number: int) -> str:
        return self._e.registers[self._places[operand].buffer].slots[number] or "poison"

    def set_vector(self, operand: int, number: int, value: str) -> None:
        self._e.registers[self._places[operand].buffer].slots[number] = value

    def pointer(self, operand: int) -> str:
        place = self._places[operand]
        return self._e.address(place.buffer, place.base).name

    def stride(self, operand: int, dim: int) -> int:
        return self._places[operand].strides[dim]

    # ------------------------------------------------------------------------------------------------- elements

    def get(self, operand: int, start: int, lanes: int) -> str:
        place = self._places[operand]
        offsets = place.offsets[start : start + lanes]
        dtype, consecutive = place.buffer.dtype, _consecutive(offsets)
        if place.buffer.scope is Scope.REGISTER:
            file = self._e.registers[place.buffer]
            slot = self._slot(file, place, offsets)
            if slot is not None:
                return file.slots[slot] or "poison"
        elif consecutive:
            return self.op(
                f"load {memory_type(dtype, lanes)}, ptr {self._at(place, offsets[0])}, align {dtype.bytes}"
            )
        out = "poison"
        for n, offset in enumerate(offsets):
            one = self._element(place, offset)
            if lanes == 1:
                return one.name
            out = self.op(f"insertelement {llvm_type(dtype, lanes)} {out}, {one}, i64 {n}")
        return out

    def put(self, operand: int, start: int, lanes: int, value: str) -> None:
        place = self._places[operand]
        offsets = place.offsets[start : start + lanes]
        dtype, whole = place.buffer.dtype, llvm_type(place.buffer.dtype, lanes)
        if place.buffer.scope is Scope.REGISTER:
            file = self._e.registers[place.buffer]
            slot = self._slot(file, place, offsets)
            if slot is not None:
                file.slots[slot] = value
                return
        elif _consecutive(offsets):
            at = self._at(place, offsets[0])
            self._b.line(f"store {memory_type(dtype, lanes)} {value}, ptr {at}, align {dtype.bytes}")
            return
        for n, offset in enumerate(offsets):
            one = value if lanes == 1 else self.op(f"extractelement {whole} {value}, i64 {n}")
            self._set_element(place, offset, Val(one, dtype))

    def _at(self, place: _Place, offset: int) -> str:
        return self._e.address(place.buffer, Linear(place.base.const + offset, place.base.terms)).name

    def _slot(self, file: RegisterFile, place: _Place, offsets: Sequence[int]) -> int | None:
        """The slot that holds just these elements."""
        start = self._register(place, offsets[0])
        if _consecutive(offsets) and len(offsets) == file.width and start % file.width == 0:
            return start // file.width
        return None

    def _register(self, place: _Place, offset: int) -> int:
        if place.base.terms:
            raise InternalError(
                f"register buffer {place.buffer.name} is indexed by a loop that is not unrolled: "
                f"{place.base.terms[0][0]}"
            )
        return place.base.const + offset

    def _element(self, place: _Place, offset: int) -> Val:
        dtype = place.buffer.dtype
        if place.buffer.scope is not Scope.REGISTER:
            at = self._at(place, offset)
            return self._b.op(f"load {memory_type(dtype)}, ptr {at}, align {dtype.bytes}", dtype)
        return self._e.element(self._e.registers[place.buffer], self._register(place, offset))

    def _set_element(self, place: _Place, offset: int, value: Val) -> None:
        if place.buffer.scope is Scope.REGISTER:
            self._e.set_element(self._e.registers[place.buffer], self._register(place, offset), value)
        else:
            at = self._at(place, offset)
            self._b.line(f"store {value}, ptr {at}, align {place.buffer.dtype.bytes}")


def _consecutive(offsets: Sequence[int]) -> bool:
    return list(offsets) == list(range(offsets[0], offsets[0] + len(offsets)))

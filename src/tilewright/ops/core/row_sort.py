"""Sorting the keys of a row, with the places they came from: of equal keys, the first comes first.

Few are ranked: how many come before each is counted, in vectors. Many are sorted by their digits, the last digit first,
which takes a pass over all of them for each digit and never compares two.
"""

from collections.abc import Callable
from typing import TypeAlias

from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import BinaryOp, Bitcast, Expr, as_index, binary, cast, const, select
from tilewright.ops.core.order_key import worst_key
from tilewright.ops.core.row_program import RowArray, RowProgram
from tilewright.tir.stmt import If, LoopKind, Stmt, seq

Ranked: TypeAlias = Callable[[Expr, Expr], Stmt]  # what is done with an element, by its place and its rank

MOST_RANKED = 256  # elements; of more, digits are quicker
RANKED_TOGETHER = 32  # elements whose ranks are in registers at once
_FEW = (
    1 << 13
)  # elements that are sorted by digits of 8 bits, whose counts stay in the first cache; more take 11


def rank_each(p: RowProgram, keys: RowArray, count: Expr | int, each: Ranked) -> Stmt:
    """`each` for `count` elements. There is room for RANKED_TOGETHER more keys, which are overwritten."""
    dtype, size = keys.buffer.dtype, RANKED_TOGETHER
    ranks = p.registers("ranks", (size,), dtype)
    found = p.array("rank_of", (size,), dtype)
    worst = worst_key(dtype)  # comes last, for it stands behind all others

    def add(start: Expr, is_before: Callable[[Expr, Expr], Expr]) -> Stmt:
        def one(i: Expr) -> Stmt:
            return ranks.put(i, ranks[i] + cast(dtype, is_before(keys[start + i], i)))

        return p.vectors("add", size, dtype, one)

    def together(start: Expr) -> Stmt:
        def before(j: Expr) -> Stmt:
            return add(start, lambda key, _: keys[j] <= key)

        def beside(j: Expr) -> Stmt:
            return add(start, lambda key, i: select(j < i, keys[start + j] <= key, keys[start + j] < key))

        def after(j: Expr) -> Stmt:
            return add(start, lambda key, _: keys[j] < key)

        def use(e: Expr) -> Stmt:
            return If(start + e < as_index(count), each(start + e, cast(INDEX, found[e])))

        return seq(
            p.vectors("none", size, dtype, lambda i: ranks.put(i, const(0, dtype))),
            p.count("before", start, before),
            p.loop("beside", size, beside, LoopKind.UNROLLED),
            p.count("after", count, after, start=start + size),
            p.vectors("keep", size, dtype, lambda i: found.put(i, ranks[i])),
            p.loop("use", size, use),
        )

    return seq(
        p.vectors("pad", size, dtype, lambda i: keys.put(as_index(count) + i, worst)),
        p.count("together", count, together, step=size),
    )


def sort_digits(
    p: RowProgram, count: Expr | int, capacity: int, dtype: DType, key: Callable[[Expr], Expr], each: Ranked
) -> Stmt:
    """`each` for `count` elements, at most `capacity` of them; `key` gives the key of one, of this type."""
    bits = 8 if capacity < _FEW else 11
    shifts = range(0, dtype.bits, bits)
    whole = _Elements(p, dtype, capacity)
    counts = p.array("counts", (len(shifts), 1 << bits), DType.I32)
    parts = (1 << bits) // 8
    running = p.cell("running", DType.I32)

    def clear(part: Expr) -> Stmt:
        def lane(n: Expr) -> Stmt:
            return counts.put((part // parts, part % parts * 8 + n), const(0, DType.I32))

        return p.loop("clear_lane", 8, lane, LoopKind.VECTORIZED)

    def read(i: Expr) -> Stmt:
        number = whole.number(key(i))
        stmts = [whole.put(0, i, number, i)]
        for n, shift in enumerate(shifts):
            digit = _digit(number, shift, bits)
            stmts.append(counts.put((n, digit), counts[n, digit] + const(1, DType.I32)))
        return seq(*stmts)

    def add_up(n: int) -> Stmt:
        # What is stored is where the next element with this digit goes.
        step = p.cell("digit_count", DType.I32)

        def one(v: Expr) -> Stmt:
            return seq(
                step.array.put(0, counts[n, v]),
                counts.put((n, v), running.value),
                running.array.put(0, running.value + step.value),
            )

        return seq(running.array.put(0, const(0, DType.I32)), p.loop("add_up", 1 << bits, one))

    def move(n: int, shift: int) -> Stmt:
        source, is_last = n % 2, n == len(shifts) - 1
        to = p.cell("to", DType.I32)
        rank = cast(INDEX, to.value)

        def one(i: Expr) -> Stmt:
            digit = _digit(whole.stored_number(source, i), shift, bits)
            place = whole.place(source, i)
            return seq(
                to.array.put(0, counts[n, digit]),
                counts.put((n, digit), to.value + const(1, DType.I32)),
                each(place, rank) if is_last else whole.move(source, i, rank),
            )

        return p.count("move", count, one)

    return seq(
        p.loop("clear", len(shifts) * parts, clear),
        p.count("read", count, read),
        *(add_up(n) for n in range(len(shifts))),
        *(move(n, shift) for n, shift in enumerate(shifts)),
    )


def _digit(number: Expr, shift: int, bits: int) -> Expr:
    part = binary(BinaryOp.SHR, number, const(shift, DType.U64))
    return cast(INDEX, binary(BinaryOp.AND, part, const((1 << bits) - 1, DType.U64)))


class _Elements:
    """Keys and places, twice: what a pass reads, and what it makes. A short key and its place are one number."""

    def __init__(self, p: RowProgram, dtype: DType, capacity: int) -> None:
        self._is_packed = dtype.bits == 32
        self._keys = [p.array(f"sorted_{n}", (capacity,), DType.U64) for n in range(2)]
        pair = () if self._is_packed else range(2)
        self._places = [p.array(f"places_{n}", (capacity,), DType.I32) for n in pair]

    def number(self, key: Expr) -> Expr:
        """A key as a number that is not negative."""
        low = binary(BinaryOp.XOR, key, const(-(1 << (key.dtype.bits - 1)), key.dtype))
        return cast(DType.U64, Bitcast(DType.U32 if self._is_packed else DType.U64, low))

    def put(self, side: int, i: Expr, number: Expr, place: Expr) -> Stmt:
        if self._is_packed:
            high = binary(BinaryOp.SHL, number, const(32, DType.U64))
            return self._keys[side].put(i, binary(BinaryOp.OR, high, cast(DType.U64, place)))
        return seq(self._keys[side].put(i, number), self._places[side].put(i, cast(DType.I32, place)))

    def move(self, side: int, i: Expr, to: Expr) -> Stmt:
        moved = [self._keys] if self._is_packed else [self._keys, self._places]
        return seq(*(both[1 - side].put(to, both[side][i]) for both in moved))

    def stored_number(self, side: int, i: Expr) -> Expr:
        stored = self._keys[side][i]
        return binary(BinaryOp.SHR, stored, const(32, DType.U64)) if self._is_packed else stored

    def place(self, side: int, i: Expr) -> Expr:
        if self._is_packed:
            return cast(INDEX, binary(BinaryOp.AND, self._keys[side][i], const((1 << 32) - 1, DType.U64)))
        return cast(INDEX, self._places[side][i])

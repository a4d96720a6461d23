"""How much memory a lowered kernel touches: what it must move at least, however good its caches are."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from tilewright.ir.expr import Buffer, Indices, loads
from tilewright.ir.simplify import Simplifier
from tilewright.tir.func import Func
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Alloc, Block, Emit, For, If, Repeat, Seq, Stmt, Store, stmt_exprs


def count_bytes(func: Func) -> int:
    """Bytes of the params that are read, plus those that are written, each counted once.

    Of a buffer, the elements are those of the smallest box around all accesses, or as many as there are accesses if
    that is less: a gather reaches everything and takes little. Conditions are taken to hold, and a
    `while` to run once.
    """
    simplify = Simplifier(ranges(func.body))
    found: dict[tuple[Buffer, bool], _Touched] = {}
    for buffer, indices, is_write, times in _accesses(func.body, 1):
        if buffer not in func.params:
            continue
        touched = found.get((buffer, is_write))
        if touched is None:
            touched = found[buffer, is_write] = _Touched(
                [math.inf] * len(indices), [-math.inf] * len(indices)
            )
        touched.times += times
        for d, index in enumerate(indices):
            low, high = simplify.bounds(index)
            touched.low[d] = min(touched.low[d], low)
            touched.high[d] = max(touched.high[d], high)
    return sum(t.elements(buffer) * buffer.dtype.bytes for (buffer, _), t in found.items())


@dataclass(slots=True)
class _Touched:
    """The box around the accesses of one kind to a buffer, and how many there are."""

    low: list[int | float]
    high: list[int | float]
    times: int = 0

    def elements(self, buffer: Buffer) -> int:
        box = 1
        for low, high, size in zip(self.low, self.high, buffer.shape, strict=True):
            box *= max(
                0, int(min(high, size - 1)) - int(max(low, 0)) + 1
            )  # a guarded access may leave the buffer
        return min(box, self.times)


def _accesses(s: Stmt, times: int) -> Iterator[tuple[Buffer, Indices, bool, int]]:
    """(buffer, indices, is it a write, how often it happens) of every load and store."""
    for e in stmt_exprs(s):
        for load in loads(e):
            yield load.buffer, load.indices, False, times
    match s:
        case For():
            yield from _accesses(s.body, times * s.extent)
        case Seq():
            for part in s.stmts:
                yield from _accesses(part, times)
        case Alloc() | Emit() | Block() | Repeat():
            yield from _accesses(s.body, times)
        case If():
            yield from _accesses(s.then, times)
        case Store():
            yield s.buffer, s.indices, True, times
        case _:
            assert_never(s)

"""What statements touch while the loops around them stand still: boxes around their accesses, and bytes of lines.

Registers are no memory, and left out. Conditions are taken to hold, and a `while` to run once. Statements are known by
identity, since they compare by all that is in them: a `Footprints` is of one Func, as it is.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tilewright.ir.expr import Buffer, Indices, Scope, Var, loads
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, Stmt, Store, children, stmt_exprs, walk_stmts


class Use(NamedTuple):
    """A buffer that is read, or written."""

    buffer: Buffer
    is_write: bool


@dataclass(slots=True)
class AccessBox:
    """The box around the accesses of one kind to a buffer, and how many there are."""

    low: list[int | float]
    high: list[int | float]
    times: int

    def extents(self, buffer: Buffer) -> list[int]:
        """A guarded access may leave the buffer."""
        spans = zip(self.low, self.high, buffer.shape, strict=True)
        return [max(0, int(min(high, n - 1)) - int(max(low, 0)) + 1) for low, high, n in spans]

    def elements(self, buffer: Buffer) -> int:
        return min(math.prod(self.extents(buffer)), self.times)

    def line_bytes(self, buffer: Buffer, line: int) -> float:
        """Bytes of the lines that it touches: what lies side by side shares them."""
        extents = self.extents(buffer)
        run = 1
        while extents:
            run *= extents[-1]
            if extents.pop() < buffer.shape[len(extents)]:
                break
        lines = -(-run * buffer.dtype.bytes // line)
        return min(math.prod(extents) * lines, self.times) * line


class CountedAccess(NamedTuple):
    use: Use
    indices: Indices
    times: int


class Footprints:
    """The statements of a Func and what they touch, found once each."""

    def __init__(self, func: Func, line: int = 1) -> None:
        self._line = line  # bytes that are moved together
        self._still: dict[Var, Interval] = {}  # loops and iterators, where they are not moved
        for s in walk_stmts(func.body):
            if isinstance(s, For):
                self._still[s.var] = Interval(0, 0)
            elif isinstance(s, Block):
                self._still |= {it.var: Interval(0, 0) for it in s.iters}
        # By identity: statements compare, and hash, by all that is in them.
        self._accesses: dict[int, list[CountedAccess]] = {}
        self._boxes: dict[int, dict[Use, AccessBox]] = {}
        self._footprints: dict[int, float] = {}

    def accesses(self, s: Stmt) -> list[CountedAccess]:
        """What is read and written outside of registers, and how often; equal accesses together."""
        found = self._accesses.get(id(s))
        if found is None:
            counted: dict[tuple[Use, Indices], int] = {}
            for a in (*own_accesses(s), *self._inside(s)):
                counted[a.use, a.indices] = counted.get((a.use, a.indices), 0) + a.times
            found = self._accesses[id(s)] = [CountedAccess(*key, times) for key, times in counted.items()]
        return found

    def _inside(self, s: Stmt) -> Iterator[CountedAccess]:
        times = s.extent if isinstance(s, For) else 1
        values = (
            {it.var: b for it, b in zip(s.iters, s.bindings, strict=True)} if isinstance(s, Block) else None
        )
        for c in children(s):
            for use, indices, n in self.accesses(c):
                at = indices if values is None else tuple(substitute(i, values) for i in indices)
                yield CountedAccess(use, at, n * times)

    def boxes(self, s: Stmt) -> dict[Use, AccessBox]:
        """Around what `s` touches while the loops around it stand still."""
        found = self._boxes.get(id(s))
        if found is None:
            inside = {n.var: Interval(0, n.extent - 1) for n in walk_stmts(s) if isinstance(n, For)}
            simplify = Simplifier({**self._still, **inside})
            found = self._boxes[id(s)] = {}
            for use, indices, times in self.accesses(s):
                bounds = [simplify.bounds(i) for i in indices]
                box = found.get(use)
                if box is None:
                    found[use] = AccessBox([b.lo for b in bounds], [b.hi for b in bounds], times)
                else:
                    box.low = [min(x, b.lo) for x, b in zip(box.low, bounds, strict=True)]
                    box.high = [max(x, b.hi) for x, b in zip(box.high, bounds, strict=True)]
                    box.times += times
        return found

    def footprint(self, s: Stmt) -> float:
        """Bytes of the lines that `s` touches."""
        found = self._footprints.get(id(s))
        if found is None:
            most: dict[Buffer, float] = {}
            for use, volume in self.touched(s).items():
                most[use.buffer] = max(most.get(use.buffer, 0.0), volume)
            found = self._footprints[id(s)] = sum(most.values())
        return found

    def touched(self, s: Stmt) -> dict[Use, float]:
        return {use: box.line_bytes(use.buffer, self._line) for use, box in self.boxes(s).items()}


def own_accesses(s: Stmt) -> Iterator[CountedAccess]:
    """What the expressions of a statement load and what it stores, without what is in it."""
    for e in stmt_exprs(s):
        for ld in loads(e):
            if ld.buffer.scope is not Scope.REGISTER:
                yield CountedAccess(Use(ld.buffer, False), ld.indices, 1)
    if isinstance(s, Store) and s.buffer.scope is not Scope.REGISTER:
        yield CountedAccess(Use(s.buffer, True), s.indices, 1)

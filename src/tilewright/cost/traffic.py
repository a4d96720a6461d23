"""What a kernel moves between the levels of memory, by the footprints of its loops against the sizes of caches.

The model, for one cache of which a kernel finds `room` bytes (`cost/caches.py`):

    footprint(s)    bytes that a statement touches while the loops around it stand still, in whole lines
    moved(for i)    footprint(for i), if one iteration finds room: what the next needs of it is still there
                    extent · moved(body) otherwise
    moved(s; t)     footprint(s; t) if that finds room, otherwise moved(s) + moved(t)

Walking outwards, a loop that a buffer does not depend on costs nothing as long as its body finds room, and from there
on everything again: Chimera's volume of block orders, for any tree of loops. Between registers and the first cache the
rule is what is unrolled: code without loops, but those of lanes and copies, loads an element once.

What all of it finds room in a cache is taken to be there already, from the kernel before: nothing comes from further
away but what is named `cold`, such as the weights of a network that no cache holds. Reads and writes count once each,
a line that is written is not read first, conditions hold, and a `while` runs once.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, assert_never

from tilewright.cost.caches import LINE_BYTES, l1_room, l2_room, l3_room
from tilewright.cost.work import instructions
from tilewright.ir.expr import Buffer, Indices, Scope, Var, loads
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.target.machine import Machine
from tilewright.tir.func import Func
from tilewright.tir.stmt import (
    Alloc,
    Block,
    Emit,
    For,
    If,
    LoopKind,
    Repeat,
    Seq,
    Stmt,
    Store,
    children,
    stmt_exprs,
    walk_stmts,
)

_STRAIGHT = (LoopKind.VECTORIZED, LoopKind.UNROLLED)  # loops of which no loop is left

LEVELS = ("L1", "L2", "L3", "memory")  # where bytes come from, or go to


class Use(NamedTuple):
    """A buffer that is read, or written."""

    buffer: Buffer
    is_write: bool


Volumes: TypeAlias = dict[Use, float]  # bytes


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one call of a kernel."""

    must_move: int  # bytes of what it reads and writes of its params, each once
    moved: tuple[float, ...]  # bytes, by level
    vectors: float  # instructions of arithmetic

    def seconds(self, m: Machine, vector_bytes: int) -> dict[str, float]:
        """What each level needs for its bytes, and arithmetic for its instructions, if nothing else took time. All of
        the machine's threads share the work.
        """
        rates = (
            m.loads_per_cycle * vector_bytes * m.hertz * m.threads,
            m.l2_rate * m.threads,
            m.l3_rate * m.threads,
            m.memory_rate * m.threads,
        )
        found = {level: b / rate for level, b, rate in zip(LEVELS, self.moved, rates, strict=True)}
        return {**found, "arithmetic": self.vectors / (m.fma_per_cycle * m.hertz * m.threads)}


def traffic_of(func: Func, m: Machine, vector_bytes: int, cold: Collection[Buffer] = ()) -> Traffic:
    """Of a kernel, or of any Func: its loops as they are. `cold`: params that are in no cache when it begins."""
    tree = _Tree(func)
    whole = tree.footprint(func.body)
    moved = [sum(_loaded(tree, func.body).values())]
    for room in (l1_room(m), l2_room(m), l3_room(m)):
        volumes = _moved(tree, func.body, room)
        moved.append(sum(v for use, v in volumes.items() if whole > room or use.buffer in cold))
    return Traffic(must_move(func), tuple(moved), _vectors(func.body, 1.0, vector_bytes))


def must_move(func: Func) -> int:
    """Bytes of the params that are read, plus those that are written, each counted once.

    Of a buffer, the elements are those of the smallest box around all accesses, or as many as there are accesses if
    that is less: a gather reaches everything and takes little. Conditions are taken to hold, and a
    `while` to run once.
    """
    boxes = _Tree(func).boxes(func.body)
    return sum(
        b.elements(use.buffer) * use.buffer.dtype.bytes
        for use, b in boxes.items()
        if use.buffer in func.params
    )


# ---------------------------------------------------------------------------------------------------------- footprints


@dataclass(slots=True)
class _Box:
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

    def line_bytes(self, buffer: Buffer) -> float:
        """Bytes of the lines that it touches: what lies side by side shares them."""
        extents = self.extents(buffer)
        run = 1
        while extents:
            run *= extents[-1]
            if extents.pop() < buffer.shape[len(extents)]:
                break
        lines = -(-run * buffer.dtype.bytes // LINE_BYTES)
        return min(math.prod(extents) * lines, self.times) * LINE_BYTES


class _Access(NamedTuple):
    use: Use
    indices: Indices
    times: int


class _Tree:
    """The statements of a Func and what they touch, found once each."""

    def __init__(self, func: Func) -> None:
        self._still: dict[Var, Interval] = {}  # loops and iterators, where they are not moved
        for s in walk_stmts(func.body):
            if isinstance(s, For):
                self._still[s.var] = Interval(0, 0)
            elif isinstance(s, Block):
                self._still |= {it.var: Interval(0, 0) for it in s.iters}
        # By identity: statements compare, and hash, by all that is in them.
        self._accesses: dict[int, list[_Access]] = {}
        self._boxes: dict[int, dict[Use, _Box]] = {}
        self._footprints: dict[int, float] = {}

    def accesses(self, s: Stmt) -> list[_Access]:
        """What is read and written outside of registers, and how often; equal accesses together."""
        found = self._accesses.get(id(s))
        if found is None:
            counted: dict[tuple[Use, Indices], int] = {}
            for a in (*_own(s), *self._inside(s)):
                counted[a.use, a.indices] = counted.get((a.use, a.indices), 0) + a.times
            found = self._accesses[id(s)] = [_Access(*key, times) for key, times in counted.items()]
        return found

    def _inside(self, s: Stmt) -> Iterator[_Access]:
        times = s.extent if isinstance(s, For) else 1
        values = (
            {it.var: b for it, b in zip(s.iters, s.bindings, strict=True)} if isinstance(s, Block) else None
        )
        for c in children(s):
            for use, indices, n in self.accesses(c):
                at = indices if values is None else tuple(substitute(i, values) for i in indices)
                yield _Access(use, at, n * times)

    def boxes(self, s: Stmt) -> dict[Use, _Box]:
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
                    found[use] = _Box([b.lo for b in bounds], [b.hi for b in bounds], times)
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

    def touched(self, s: Stmt) -> Volumes:
        return {use: box.line_bytes(use.buffer) for use, box in self.boxes(s).items()}


def _own(s: Stmt) -> Iterator[_Access]:
    """What the expressions of a statement load and what it stores, without what is in it."""
    for e in stmt_exprs(s):
        for ld in loads(e):
            if ld.buffer.scope is not Scope.REGISTER:
                yield _Access(Use(ld.buffer, False), ld.indices, 1)
    if isinstance(s, Store) and s.buffer.scope is not Scope.REGISTER:
        yield _Access(Use(s.buffer, True), s.indices, 1)


# ------------------------------------------------------------------------------------------------------------- volumes


def _moved(tree: _Tree, s: Stmt, room: float) -> Volumes:
    """Bytes that come to a cache, or go from it."""
    match s:
        case For():
            fits = tree.footprint(s.body) <= room
            return tree.touched(s) if fits else _times(_moved(tree, s.body, room), s.extent)
        case Seq():
            if tree.footprint(s) <= room:
                return tree.touched(s)
            return _sum(_moved(tree, c, room) for c in s.stmts)
        case Store():
            return tree.touched(s)
        case Alloc() | Emit() | Block() | Repeat() | If():
            return _sum([_once(s, LINE_BYTES), *(_moved(tree, c, room) for c in children(s))])
        case _:
            assert_never(s)


def _loaded(tree: _Tree, s: Stmt) -> Volumes:
    """Bytes that are loaded to registers and stored from them: by straight code, which loads nothing twice."""
    if not any(isinstance(n, For) and n.kind not in _STRAIGHT for n in walk_stmts(s)):
        return {
            use: b.elements(use.buffer) * float(use.buffer.dtype.bytes) for use, b in tree.boxes(s).items()
        }
    inside = _sum(_loaded(tree, c) for c in children(s))
    return _times(inside, s.extent) if isinstance(s, For) else _sum([_once(s, 0), inside])


def _once(s: Stmt, least: int) -> Volumes:
    """Bytes of the elements, or of the lines that have `least` bytes, that a statement itself takes."""
    return _sum({a.use: float(max(a.use.buffer.dtype.bytes, least))} for a in _own(s))


def _times(volumes: Volumes, n: int) -> Volumes:
    return {use: n * v for use, v in volumes.items()}


def _sum(parts: Collection[Volumes] | Iterator[Volumes]) -> Volumes:
    out: Volumes = {}
    for part in parts:
        for use, v in part.items():
            out[use] = out.get(use, 0.0) + v
    return out


def _vectors(s: Stmt, times: float, vector_bytes: int) -> float:
    """Instructions of arithmetic: one for a vector."""
    match s:
        case For():
            lanes = 1
            if s.kind is LoopKind.VECTORIZED:
                stored = [n.buffer.dtype.bytes for n in walk_stmts(s.body) if isinstance(n, Store)]
                lanes = min(s.extent, max(vector_bytes // max(stored, default=vector_bytes), 1))
            return _vectors(s.body, times * -(-s.extent // lanes), vector_bytes)
        case Store():
            return times * instructions(s.value)
        case Seq() | Alloc() | Emit() | Block() | Repeat() | If():
            return sum(_vectors(c, times, vector_bytes) for c in children(s))
        case _:
            assert_never(s)

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

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from tilewright.cost.caches import LINE_BYTES, l1_room, l2_room, l3_room
from tilewright.cost.work import instructions
from tilewright.ir.expr import Buffer, Const, loads
from tilewright.target.machine import Machine
from tilewright.tir.analysis.footprints import Footprints, Use, own_accesses
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
from tilewright.tir.touched import touched

_STRAIGHT = (LoopKind.VECTORIZED, LoopKind.UNROLLED)  # loops of which no loop is left

LEVELS = ("L1", "L2", "L3", "memory")  # where bytes come from, or go to


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
    tree = Footprints(func, LINE_BYTES)
    whole = tree.footprint(func.body)
    moved = [sum(_loaded(tree, func.body).values())]
    for room in (l1_room(m), l2_room(m), l3_room(m)):
        volumes = _moved(tree, func.body, room)
        moved.append(sum(v for use, v in volumes.items() if whole > room or use.buffer in cold))
    return Traffic(must_move(func), tuple(moved), _vectors(func.body, 1.0, vector_bytes))


def must_move(func: Func) -> int:
    """Bytes of the params that are read, plus those that are written, each counted once. What a kernel keeps in the
    place of a result until it is known need not come from there.

    Of a buffer, the elements are those of the smallest box around all accesses, or as many as there are accesses if
    that is less: a gather reaches everything and takes little. Conditions are taken to hold, and a
    `while` to run once.
    """
    boxes = Footprints(func).boxes(func.body)
    return sum(
        b.elements(use.buffer) * use.buffer.dtype.bytes
        for use, b in boxes.items()
        if use.buffer in func.params and (use.is_write or not _is_filled_first(func.body, use.buffer))
    )


def _is_filled_first(s: Stmt, buffer: Buffer) -> bool:
    """Is it stored to, whatever conditions say, before anything is read of it? The start of a sum does not count."""
    if any(ld.buffer is buffer for e in stmt_exprs(s) for ld in loads(e)) or isinstance(s, If):
        return False
    if isinstance(s, Store):
        return s.buffer is buffer and not isinstance(s.value, Const)
    below = (s.body,) if isinstance(s, Block) else children(s)
    first = next((c for c in below if buffer in touched(c).reads or buffer in touched(c).writes), None)
    return first is not None and _is_filled_first(first, buffer)


# ------------------------------------------------------------------------------------------------------------- volumes


def _moved(tree: Footprints, s: Stmt, room: float) -> Volumes:
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


def _loaded(tree: Footprints, s: Stmt) -> Volumes:
    """Bytes that are loaded to registers and stored from them: by straight code, which loads nothing twice."""
    if not any(isinstance(n, For) and n.kind not in _STRAIGHT for n in walk_stmts(s)):
        return {
            use: b.elements(use.buffer) * float(use.buffer.dtype.bytes) for use, b in tree.boxes(s).items()
        }
    inside = _sum(_loaded(tree, c) for c in children(s))
    return _times(inside, s.extent) if isinstance(s, For) else _sum([_once(s, 0), inside])


def _once(s: Stmt, least: int) -> Volumes:
    """Bytes of the elements, or of the lines that have `least` bytes, that a statement itself takes."""
    return _sum({a.use: float(max(a.use.buffer.dtype.bytes, least))} for a in own_accesses(s))


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

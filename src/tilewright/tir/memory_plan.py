"""The memory plan: places for the buffers that live between kernels, in one arena.

A buffer lives from the first call that touches it to the last. Largest first, each takes the lowest gap
among the buffers whose lives overlap its own; that keeps the arena near the largest sum alive at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.ir.expr import Buffer

ALIGN = 64


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    offsets: dict[Buffer, int]
    bytes: int


def plan_memory(calls: Sequence[Iterable[Buffer]], buffers: Iterable[Buffer]) -> MemoryPlan:
    """`calls` are the buffers that each kernel touches, in program order; only `buffers` are placed.

    Where dimensions are open, what lies beyond the size in use is computed with now and then, and dropped. It should be
    numbers then: integers, read as floats, are denormal, which processors are slow with. So the two are kept apart.
    """
    wanted = list(buffers)
    if not any(b.sizes for b in wanted):
        return _planned(calls, wanted)
    floats = _planned(calls, [b for b in wanted if b.dtype.is_float])
    others = _planned(calls, [b for b in wanted if not b.dtype.is_float])
    behind = {b: at + floats.bytes for b, at in others.offsets.items()}
    return MemoryPlan(floats.offsets | behind, floats.bytes + others.bytes)


def _planned(calls: Sequence[Iterable[Buffer]], buffers: Iterable[Buffer]) -> MemoryPlan:
    lives: dict[Buffer, tuple[int, int]] = {}
    wanted = set(buffers)
    for time, touched in enumerate(calls):
        for b in touched:
            if b in wanted:
                first, _ = lives.get(b, (time, time))
                lives[b] = (first, time)
    offsets: dict[Buffer, int] = {}
    placed: list[Buffer] = []
    for b in sorted(lives, key=lambda b: (-b.bytes, lives[b], b.name)):
        offsets[b] = _lowest_gap(b, placed, lives, offsets)
        placed.append(b)
    return MemoryPlan(offsets, max((offsets[b] + _aligned(b.bytes) for b in placed), default=0))


def _lowest_gap(
    b: Buffer, placed: list[Buffer], lives: dict[Buffer, tuple[int, int]], offsets: dict[Buffer, int]
) -> int:
    first, last = lives[b]
    neighbours = sorted(
        (offsets[o], offsets[o] + _aligned(o.bytes))
        for o in placed
        if lives[o][0] <= last and first <= lives[o][1]
    )
    at = 0
    for start, end in neighbours:
        if at + _aligned(b.bytes) <= start:
            break
        at = max(at, end)
    return at


def _aligned(n: int) -> int:
    return -(-n // ALIGN) * ALIGN

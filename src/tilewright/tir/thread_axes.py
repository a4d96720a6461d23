"""The axes of a GPU's grid: which loops may run on them, together.

A top-level nest with such loops is one launch: a grid of blocks (`block_x`, `block_y`, `block_z`), each a box of
threads (`thread_x`, …). `vthread` iterations are interleaved inside a thread. A loop on an axis has independent
iterations, like a parallel one, and loops one after the other on one axis share its threads. So

- loops on the same axis in a launch have the same extent, and none is inside another (vthreads may be: they are no axis
  of the hardware);
- an axis is as long as the hardware allows, and a block has at most 1024 threads;
- the loops of a launch belong to the grid: none is for the team of workers (`parallel`), and none is inside a vector.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tilewright.tir.stmt import For, LoopKind, Seq, Stmt, children

LIMITS: dict[LoopKind, int] = {
    LoopKind.BLOCK_X: 2**31 - 1,
    LoopKind.BLOCK_Y: 65535,
    LoopKind.BLOCK_Z: 65535,
    LoopKind.THREAD_X: 1024,
    LoopKind.THREAD_Y: 1024,
    LoopKind.THREAD_Z: 64,
    LoopKind.VTHREAD: 8,
}
MAX_THREADS = 1024  # of one block
_THREADS = (LoopKind.THREAD_X, LoopKind.THREAD_Y, LoopKind.THREAD_Z)


class Misfit(NamedTuple):
    """A loop on an axis that it does not fit, and why."""

    loop: For
    reason: str


def launch_misfit(body: Stmt) -> Misfit | None:
    """What keeps the nests of a Func from being launched, if anything does."""
    nests = body.stmts if isinstance(body, Seq) else (body,)
    found = (_misfit_in_nest(n) for n in nests)
    return next((m for m in found if m is not None), None)


def _misfit_in_nest(nest: Stmt) -> Misfit | None:
    extents: dict[LoopKind, For] = {}
    for loop, around in _axis_loops(nest, ()):
        name, axis = loop.var.name, loop.kind.value
        if loop.extent > LIMITS[loop.kind]:
            return Misfit(
                loop, f"{name} has {loop.extent} iterations, and {axis} has room for {LIMITS[loop.kind]}"
            )
        for other in around:
            if other.kind in (LoopKind.PARALLEL, LoopKind.VECTORIZED):
                return Misfit(
                    loop, f"{name} on {axis} is inside the {other.kind.value} loop {other.var.name}"
                )
            if other.kind is loop.kind and loop.kind is not LoopKind.VTHREAD:
                return Misfit(loop, f"{name} on {axis} is inside {other.var.name} on the same axis")
        below = next((n for n in _loops_below(loop) if n.kind is LoopKind.PARALLEL), None)
        if below is not None:
            return Misfit(loop, f"{name} on {axis} holds the parallel loop {below.var.name}")
        first = extents.setdefault(loop.kind, loop)
        if first.extent != loop.extent and loop.kind is not LoopKind.VTHREAD:
            return Misfit(
                loop,
                f"{name} has {loop.extent} iterations on {axis}, and {first.var.name} has {first.extent} in the "
                "same launch",
            )
    threads = 1
    for axis in _THREADS:
        threads *= extents[axis].extent if axis in extents else 1
    if threads > MAX_THREADS:
        last = next(extents[a] for a in reversed(_THREADS) if a in extents)
        return Misfit(last, f"a block would have {threads} threads, and {MAX_THREADS} is the most")
    return None


def _axis_loops(s: Stmt, around: tuple[For, ...]) -> Iterator[tuple[For, tuple[For, ...]]]:
    """The loops on axes, each with the loops around it."""
    if isinstance(s, For):
        if s.kind.is_thread_axis:
            yield s, around
        around = (*around, s)
    for c in children(s):
        yield from _axis_loops(c, around)


def _loops_below(loop: For) -> Iterator[For]:
    stack: list[Stmt] = [loop.body]
    while stack:
        s = stack.pop()
        if isinstance(s, For):
            yield s
        stack.extend(children(s))

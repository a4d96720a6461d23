"""Concatenations that are read and never stored: what they put together is stored in one buffer from the start.

    Y[c] = relu(select(c < 64, A[c], select(c < 96, B[c - 64], D[c - 96])))     ──>     Y[c] = relu(A[c])

A concatenation that is a kernel of its own spares its copy with `StoreAt`. One that its reader computes on the way has
no buffer that the pieces could be stored in, so they get one: the others are attached behind the first (`Attach`), and
whoever reads several of them in their order reads a range of one buffer. In a block of layers that each read all before
them, the longest concatenation decides, and all the shorter ones are prefixes of it.
"""

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import NamedTuple

from tilewright.ir.expr import Buffer, Expr, Load, Select, loads
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.step import Step
from tilewright.schedule.steps.attach import Attach
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Module
from tilewright.tir.stmt import Block, blocks

# Bytes that a piece has side by side, at least; given: a cache line. Shorter ones would be stored in parts of lines,
# with what is before and behind in between, which takes more than choosing among them when they are read.
_LEAST_RUN = 64
# Bytes of all pieces, at least; given: a first-level cache. To choose among fewer costs little, and small kernels that
# store to buffers of their own may run side by side.
_LEAST_BYTES = 32 << 10


class PieceRow(NamedTuple):
    """Buffers that are read one behind the other in dimension `dim`."""

    dim: int
    pieces: tuple[Buffer, ...]

    @property
    def bytes(self) -> int:
        return sum(b.bytes for b in self.pieces)


def attach_pieces(module: Module, kept: Collection[Buffer]) -> tuple[Module, tuple[Step, ...]]:
    """The module with the pieces of concatenations side by side, but for those in `kept`, and the steps taken.

    The largest come first, and a buffer is a piece of one only: so all that share memory are needed at the same time.
    """
    found = dict.fromkeys(r for f in module.funcs for b in blocks(f.body) for r in find_rows(b))
    free = set(module.temps).difference(kept)
    taken: list[Step] = []
    for row in sorted((r for r in found if r.bytes >= _LEAST_BYTES), key=lambda r: -r.bytes):
        module, steps = _attach(module, row, free)
        taken.extend(steps)
        free.difference_update(row.pieces)
    return module, tuple(taken)


def _attach(module: Module, row: PieceRow, free: Collection[Buffer]) -> tuple[Module, list[Step]]:
    """The pieces behind the first, as far as that can be done; what cannot follow starts a buffer of its own."""
    steps: list[Step] = []
    host: Buffer | None = None
    for piece in row.pieces:
        if host is None or piece not in free:
            host = piece if piece in free else None
            continue
        step = Attach(piece.name, host.name, row.dim)
        try:
            module = step.apply(module)
        except ScheduleError:
            host = piece
            continue
        steps.append(step)
    return module, steps


def find_rows(block: Block) -> Iterator[PieceRow]:
    """What the block reads as a concatenation: an element of one of several buffers, depending on where it is."""
    store = block.try_store
    if store is None:
        return
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    for choice in _choices(store.value, set()):
        row = _row(list(loads(choice)), simplify)
        if row is not None:
            yield row


def _choices(e: Expr, seen: set[Expr]) -> Iterator[Expr]:
    """The outermost parts of an expression that are one of several elements, as they are."""
    if e in seen:
        return
    seen.add(e)
    if isinstance(e, Select) and is_choice(e):
        yield e
    else:
        for c in e.children():
            yield from _choices(c, seen)


def is_choice(e: Expr) -> bool:
    """One of several elements, as it is?"""
    return isinstance(e, Load) or (isinstance(e, Select) and is_choice(e.a) and is_choice(e.b))


def _row(read: list[Load], simplify: Simplifier) -> PieceRow | None:
    """The buffers in the order of their places, if each begins where another ends."""
    first = read[0]
    if len({ld.buffer for ld in read}) < max(2, len(read)):
        return None
    places: dict[int, list[tuple[int, Buffer]]] = {}
    for ld in read[1:]:
        if len(ld.indices) != len(first.indices):
            return None
        shifts = [simplify.constant(i - j) for i, j in zip(first.indices, ld.indices, strict=True)]
        moved = [(d, s) for d, s in enumerate(shifts) if s != 0]
        if len(moved) != 1:
            return None
        dim, shift = moved[0]
        if shift is None:
            return None
        places.setdefault(dim, []).append((shift, ld.buffer))
    if len(places) != 1:
        return None
    ((dim, behind),) = places.items()
    line = sorted([(0, first.buffer), *behind], key=lambda p: p[0])
    fits = all(at + b.shape[dim] == after for (at, b), (after, _) in pairwise(line))
    alike = {(*b.shape[:dim], *b.shape[dim + 1 :]) for _, b in line}
    runs = [_run(b, dim) for _, b in line]
    return (
        PieceRow(dim, tuple([b for _, b in line]))
        if fits and len(alike) == 1 and min(runs) >= _LEAST_RUN
        else None
    )


def _run(b: Buffer, dim: int) -> int:
    """The bytes that the buffer has side by side in another that is longer in dimension `dim`."""
    run = b.dtype.bytes
    for n in b.shape[dim:]:
        run *= n
    return run

"""Scans: each element is made of its neighbour's result, so a loop runs along them in order.

    for i, k in grid(64, 1000):                       for part in parallel(8):
        y[i, k] = select(k == 0, x[i, k],                 for i in unrolled(8): y[part * 8 + i, 0] = x[part * 8 + i, 0]
                         y[i, k - 1] + x[i, k])  ──>      for k in range(999):
                                                              for i in unrolled(8): …

The first element is parted off, so that the rest has no condition. Along the memory several rows are summed at once,
which do not wait for each other; across it, lanes lie side by side, and what was stored for the row before is read
again. Workers share what is independent.
"""

from typing import NamedTuple

from tilewright.cost.parallel import ENOUGH_PARTS
from tilewright.families.gemm.register_tile import loops_of
from tilewright.families.parallel import is_worth_sharing, parallel_prefix
from tilewright.ir.expr import Var, free_vars, loads
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.schedule.steps.add_unit_loop import AddUnitLoop
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.loop_kind import Unroll, Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.split import Split
from tilewright.target.target import Target
from tilewright.tir.stmt import Block

_ROWS = 4  # rows at once, along the memory; counted: as long as a sum takes, in stores
_TOGETHER = 4  # vectors, across the memory; counted likewise
_STRIP = 512  # elements of a row in a part, at least: shorter ones do not come in time; bound


class RunningScan(NamedTuple):
    along: Var  # the iterator whose iterations need each other
    is_contiguous: bool  # does it run along the memory?


def find_scan(block: Block) -> RunningScan | None:
    """The scan that an all-spatial block is: it reads what it has stored a place before."""
    store = block.try_store
    own = [ld for ld in loads(store.value) if ld.buffer is store.buffer] if store is not None else []
    if store is None or not own or block.is_reduction:
        return None
    axes = {d for ld in own for d, (a, b) in enumerate(zip(ld.indices, store.indices, strict=True)) if a != b}
    if len(axes) != 1:
        return None
    axis = axes.pop()
    used = free_vars(store.indices[axis])
    found = next((it.var for it in block.iters if used == frozenset({it.var})), None)
    return None if found is None else RunningScan(found, axis == len(store.indices) - 1)


def schedule_scan(s: Draft, name: str, scan: RunningScan, target: Target) -> None:
    """Schedule a scan that is alone under its loops."""
    block = find_block(s.func, name)
    loops, shared = loops_of(block), is_worth_sharing(1, block)
    along = loops[scan.along]
    others = [n for n in loops.values() if n != along]
    if scan.is_contiguous or not others:
        _along_memory(s, name, along, others, is_shared=shared)
    else:
        lanes = target.lanes(max(block.store.buffer.dtype.bytes, 4))
        _across_memory(s, along, others, lanes, is_shared=shared)


def _along_memory(s: Draft, name: str, along: str, others: list[str], *, is_shared: bool) -> None:
    if len(others) > 1:
        rows = s.apply(Fuse(tuple(others))).name
    else:
        rows = others[0] if others else s.apply(AddUnitLoop(name)).loop
    extent = s.loop(rows).extent
    main = extent // _ROWS * _ROWS
    if main and main < extent:
        pieces = s.apply(LoopPartition(rows, (main,))).names
        nests = [(pieces[0], f"{along}_p0", _ROWS), (pieces[1], f"{along}_p1", extent - main)]
    else:
        nests = [(rows, along, min(_ROWS, extent))]
    for loop, inner, size in nests:
        part, row = s.apply(Split(loop, (None, size))).names
        s.apply(Reorder((inner, row)))
        for n in _part_first(s, inner, row):
            s.apply(Unroll(n))
        if is_shared:
            parallel_prefix(s, (part,))


def _across_memory(s: Draft, along: str, others: list[str], lanes: int, *, is_shared: bool) -> None:
    inner, outer = others[-1], others[:-1]
    extent, parts = s.loop(inner).extent, 1
    for n in outer:
        parts *= s.loop(n).extent
    width = _strip(extent, -(-ENOUGH_PARTS // parts) if is_shared else 1, lanes)
    part, inner = s.apply(Split(inner, (None, width))).names
    s.apply(Reorder((*outer, part, along, inner)))
    for n in _part_first(s, along, inner):
        main = width // lanes * lanes
        if main and main < width:
            n, tail = s.apply(LoopPartition(n, (main,))).names
            s.apply(Vectorize(tail))
        _vectors(s, n, lanes)
    if is_shared:
        parallel_prefix(s, (*outer, part))


def _vectors(s: Draft, loop: str, lanes: int) -> None:
    """Several vectors at a time."""
    vectors, rest = divmod(s.loop(loop).extent, lanes)
    if rest:
        s.apply(Vectorize(loop))
        return
    together = max(n for n in range(1, _TOGETHER + 1) if vectors % n == 0)
    _, several, lane = s.apply(Split(loop, (None, together, lanes))).names
    s.apply(Unroll(several))
    s.apply(Vectorize(lane))


def _part_first(s: Draft, along: str, inner: str) -> list[str]:
    """Part the first element off; what `inner` has become in each part."""
    if s.loop(along).extent < 2:
        return [inner]
    pieces = s.apply(LoopPartition(along, (1,))).names
    return [f"{inner}_p{n}" for n in range(len(pieces))]


def _strip(extent: int, parts: int, lanes: int) -> int:
    """The elements of a row in a part: a divisor, whole vectors if there is one."""
    least = max(_STRIP, -(-extent // parts))
    for step in (lanes, 1):
        fitting = [n for n in range(step, extent + 1, step) if extent % n == 0 and n >= least]
        if fitting:
            return fitting[0]
    return extent

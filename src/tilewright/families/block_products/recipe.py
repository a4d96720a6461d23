"""A tile of rows and panels adds up one block after the other in registers: first what the codes are multiplied with,
then what the block is scaled to.

    for panels, rows in tiles:
        Y = 0
        for b:
            S = 0
            for q: S += x[…] · w[…]         by an instruction or in floats, a vector of columns at a time
            Y += f(S) · scale[…]
        store Y

Tiles at the edges are smaller, so that none has a condition inside; only what is missing in the last panel is not
stored. Panels that are used together are as many streams through memory.
"""

from dataclasses import dataclass

from tilewright.families.block_products.match import BlockProducts, group_count
from tilewright.families.gemm.register_tile import loops_of, row_cuts, take_epilogue
from tilewright.families.parallel import parallel_prefix
from tilewright.ir.expr import Scope
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block, loops_above
from tilewright.schedule.steps.add_unit_loop import AddUnitLoop
from tilewright.schedule.steps.compute_at import ComputeAt
from tilewright.schedule.steps.decompose_reduction import DecomposeReduction
from tilewright.schedule.steps.distribute import Distribute
from tilewright.schedule.steps.loop_kind import Unroll, Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.reverse_compute_at import ReverseComputeAt
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.tensorize import Tensorize
from tilewright.tir.stmt import IterKind

_WRITTEN_OUT = 128  # groups of products of a tile in a step of the loop over them, at most; bound


@dataclass(frozen=True, slots=True)
class BlockTile:
    rows: int
    panels: int


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the tiles, by the names that it has since loops were partitioned."""

    suffix: str
    panel: str  # the loop over those of a tile
    rows: int
    panels: int

    def of(self, name: str) -> str:
        return f"{name}{self.suffix}"


def schedule_block_products(s: Draft, p: BlockProducts, tile: BlockTile) -> None:
    sums, total, made = p.sums.name, p.total.name, p.sums.store.buffer.name
    stored = p.total.store.buffer
    epilogue = take_epilogue(s, total, stored, partial=True)
    whole = _whole_panels(s, epilogue, p)
    loops = loops_of(find_block(s.func, total))
    over, lane = loops[p.over.var], loops[p.lane.var]
    row = s.apply(AddUnitLoop(total)).loop if p.row is None else loops[p.row.var]
    if p.panel is None:
        panel, lane = s.apply(Split(lane, (None, p.lane.extent))).names
    else:
        panel = loops[p.panel.var]
    s.apply(Reorder((panel, row, lane, over)))
    s.apply(ReverseComputeAt(epilogue, lane))
    s.apply(ComputeAt(sums, over))
    s.apply(SetScope(made, Scope.REGISTER))
    names = _Names(sums, total, epilogue, panel, row, lane, over)
    for outside, parts in _parts(s, names, tile, whole):
        rows = [_tile(s, p, names, part) for part in parts]
        parallel_prefix(s, (outside, *rows) if len(rows) == 1 else (outside,))


@dataclass(frozen=True, slots=True)
class _Names:
    sums: str
    total: str
    epilogue: str
    panel: str
    row: str
    lane: str
    over: str


def _whole_panels(s: Draft, epilogue: str, p: BlockProducts) -> int:
    """The panels of which all columns are stored."""
    count = 1 if p.panel is None else p.panel.extent
    return count if find_block(s.func, epilogue).try_store is not None else count - 1


def _parts(s: Draft, n: _Names, tile: BlockTile, whole: int) -> list[tuple[str, list[_Part]]]:
    """Full tiles of panels, those that are left, and the last panel if some of its columns are missing; each with rows
    in tiles of two heights. The loop over tiles of panels, and the parts inside.
    """
    count = s.loop(n.panel).extent
    rest = whole % tile.panels
    panels = [(whole - rest, tile.panels), (whole, rest), (count, count - whole)]
    ends = [(end, size) for at, (end, size) in enumerate(panels) if end > (panels[at - 1][0] if at else 0)]
    rows = row_cuts(s.loop(n.row).extent, tile.rows)
    found: list[tuple[str, list[_Part]]] = []
    for outer, width in _cut(s, n.panel, "", ends):
        outside, panel = s.apply(Split(f"{n.panel}{outer}", (None, width))).names
        s.apply(Reorder((outside, f"{n.row}{outer}", panel)))
        inner = [(suffix.removeprefix(outer), height) for suffix, height in _cut(s, n.row, outer, rows)]
        found.append((outside, [_Part(outer + at, f"{panel}{at}", height, width) for at, height in inner]))
    return found


def _cut(s: Draft, loop: str, suffix: str, cuts: list[tuple[int, int]]) -> list[tuple[str, int]]:
    """Partition a loop where tiles of another size begin: the suffix of each part, and the size."""
    if len(cuts) == 1:
        return [(suffix, cuts[0][1])]
    s.apply(LoopPartition(f"{loop}{suffix}", tuple(end for end, _ in cuts[:-1])))
    return [(f"{suffix}_p{at}", size) for at, (_, size) in enumerate(cuts)]


def _tile(s: Draft, p: BlockProducts, n: _Names, part: _Part) -> str:
    """Write out the tiles of a part; the loop over tiles of rows."""
    rows, row = s.apply(Split(part.of(n.row), (None, part.rows))).names
    lane, over = part.of(n.lane), part.of(n.over)
    inside = (row, part.panel, lane)
    _write_out(s, _distributed(s, inside, "y"))
    s.apply(Reorder((over, *inside)))
    total, scaled = part.of(n.total), _distributed(s, inside, "b")
    s.apply(DecomposeReduction(total, over))
    _write_out(s, _inits(s, total, scaled))
    _write_out(s, scaled)
    _add_up(s, p, part, part.of(n.sums), inside)
    return rows


def _distributed(s: Draft, inside: tuple[str, ...], suffix: str) -> tuple[str, ...]:
    """Part what comes last in a tile from the rest: the loops around it."""
    return tuple(reversed([s.apply(Distribute(name, suffix)).part(1) for name in reversed(inside)]))


def _inits(s: Draft, block: str, inside: tuple[str, ...]) -> tuple[str, ...]:
    """The loops around where sums begin: those that matter to them."""
    around = {n.var.name for n in loops_above(s.func, find_block(s.func, f"{block}_init"))}
    return tuple(name for name in (f"{n}_init" for n in inside) if name in around)


def _write_out(s: Draft, inside: tuple[str, ...]) -> None:
    """Columns in vectors, and all of them next to each other."""
    *others, lane = inside
    for name in others:
        s.apply(Unroll(name))
    s.apply(Vectorize(lane))


def _add_up(s: Draft, p: BlockProducts, part: _Part, sums: str, inside: tuple[str, ...]) -> None:
    """The sums of a block, a few groups at a time for all vectors of the tile."""
    row, panel, lane = inside
    block = find_block(s.func, sums)
    loops = loops_of(block)
    reduced = [loops[it.var] for it in block.iters if it.kind is IterKind.REDUCE]
    *steps, group = reduced
    vectors = part.rows * part.panels
    together: tuple[str, ...] = ()
    if p.intrinsic is not None and group_count(p.intrinsic) > 1:
        step, inner = s.apply(Split(steps[-1], (None, group_count(p.intrinsic)))).names
        steps, together = [*steps[:-1], step], (inner,)
    elif p.intrinsic is None:
        steps, group = reduced, ""
    order = (*steps, row, panel, *together, *((group,) if group else ()), lane)
    s.apply(Reorder(order))
    s.apply(DecomposeReduction(sums, (*steps, *together, group)[0]))
    _write_out(s, _inits(s, sums, inside))
    for name in reversed(steps):
        extent = s.loop(name).extent
        if extent * vectors > _WRITTEN_OUT:
            factor = max(
                f for f in range(1, extent + 1) if (extent % f == 0 and f * vectors <= _WRITTEN_OUT) or f == 1
            )
            if factor > 1:
                s.apply(Unroll(s.apply(Split(name, (None, factor))).names[1]))
            break
        s.apply(Unroll(name))
        vectors *= extent
    s.apply(Unroll(row))
    s.apply(Unroll(panel))
    if p.intrinsic is None:
        s.apply(Vectorize(lane))
    else:
        s.apply(Tensorize((*together, group)[0], p.intrinsic.name))

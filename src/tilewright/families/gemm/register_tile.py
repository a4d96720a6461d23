"""The register tile: rows × columns of a result stay in registers through the whole reduction.

    for … outside …:                                     for … outside, row_0, col_0 …:
        for row, col:                                        for row_1, col_1: acc[…] = 0
        unrolled, vectorized
            for k: acc[row, col] += …            ──>         for k: for row_1, col_1: acc[…] += …
    for …: out[…] = epilogue(acc[…])                         for row_1, col_1: out[…] = epilogue(acc[…])

Loops are partitioned first where sizes do not divide, so that every tile is exact and none has a condition
inside.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tilewright.families.gemm.tiles import RegisterTile, row_tiles
from tilewright.families.inline import single_consumer
from tilewright.families.parallel import is_part, is_worth_sharing, parallel_prefix
from tilewright.ir.expr import Buffer, Scope, Var, free_vars
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import chain, find_block, loops_above, top_level
from tilewright.schedule.steps.annotate import Annotate
from tilewright.schedule.steps.cache_write import CacheWrite
from tilewright.schedule.steps.decompose_reduction import DecomposeReduction
from tilewright.schedule.steps.distribute import Distribute
from tilewright.schedule.steps.iterate_over import IterateOver
from tilewright.schedule.steps.loop_kind import Unroll, Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.reverse_compute_at import ReverseComputeAt
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.tensorize import Tensorize
from tilewright.tir.stmt import PREFETCH, PREFETCH_PANEL, Block, For, LoopKind, blocks

NO_INTRINSICS: Mapping[tuple[int, int], str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ReductionNest:
    """A reduction block under plain loops, and the block that consumes its result, by the names of their
    loops.
    """

    block: str
    epilogue: str
    outside: tuple[str, ...]  # the spatial loops in the order wanted; `row` and `col` are among them
    row: str
    col: str
    # In the order wanted; the innermost is unrolled, and that of dot products is a group of them.
    reduce: tuple[str, ...]


def loops_of(block: Block) -> dict[Var, str]:
    """The loop that each iterator is bound to."""
    return {it.var: b.name for it, b in zip(block.iters, block.bindings, strict=True) if isinstance(b, Var)}


def take_epilogue(s: Draft, block: str, buffer: Buffer, *, partial: bool = False) -> str:
    """The block that stores the result, made to run over `buffer`'s elements; the accumulator is put into
    registers.

    That is the only consumer of `buffer`, where it reads through an index map that has an inverse, and all elements or
    (if `partial`) some; otherwise a copy.
    """
    consumer = single_consumer(s.func, buffer) if buffer in s.func.locals else None
    if (
        consumer is not None
        and not consumer.is_reduction
        and s.attempt(IterateOver(consumer.name, buffer.name, partial))
    ):
        s.apply(SetScope(buffer.name, Scope.REGISTER))
        return consumer.name
    return s.apply(CacheWrite(block, buffer.name, Scope.REGISTER)).copy


def tile_nest(
    s: Draft,
    nest: ReductionNest,
    tile: RegisterTile,
    lanes: int,
    unroll: int,
    intrinsics: Mapping[tuple[int, int], str] = NO_INTRINSICS,
    dots: Mapping[int, str] | None = None,
    *,
    is_shared: bool = True,
    is_joined: bool = False,
    prefetch: int = 0,
    next_panel: int = 0,
) -> None:
    """Cut the nest into register tiles of `tile` and smaller ones at the edges, and divide it among
    workers (if `is_shared`). The epilogue is in its place already if it `is_joined`. At most `unroll` multiply-adds are
    written out in a step of the reduction. `intrinsics` has the register tiles of the target by rows and columns;
    `dots` has dot products by lanes: then the innermost loop of the reduction is a group of them.
    Vectors are prefetched `prefetch` steps of the reduction before they are read, if it is not 0; and, if `next_panel`
    is not 0, the panel of `next_panel` elements behind the one that is read.
    """
    cuts = {
        nest.row: row_cuts(s.loop(nest.row).extent, tile.rows),
        nest.col: _column_cuts(s.loop(nest.col).extent, tile.columns, lanes),
    }
    is_shared = is_shared and is_worth_sharing(lanes, find_block(s.func, nest.block))
    first, second = sorted((nest.row, nest.col), key=nest.outside.index)
    if not is_joined:
        join_epilogue(s, nest)
    whole = _Part(nest.block, nest.epilogue, (*nest.outside, *nest.reduce))
    at, then = whole.order.index(first), whole.order.index(second)
    for outer, size in _cut(s, whole, at, cuts[first]):
        # What is inside a tile of the outer loop goes inside the inner one, so that this can be cut too.
        one = s.apply(Split(outer.order[at], (None, size))).names
        order = (*outer.order[:at], one[0], *outer.order[at + 1 : then + 1], one[1], *outer.order[then + 1 :])
        s.apply(Reorder(order[at : then + 2]))
        parts = _cut(s, _Part(outer.block, outer.epilogue, order), then, cuts[second])
        for n, (inner, other) in enumerate(parts):
            two = s.apply(Split(inner.order[then], (None, other))).names
            tile_loops = {first: (inner.order[then + 1], size), second: (two[1], other)}
            (row, height), (col, width) = tile_loops[nest.row], tile_loops[nest.col]
            if first == nest.row:
                s.apply(Reorder((row, col)))
            reduce = _register_tile(
                s,
                inner,
                (row, col),
                (height, width),
                inner.order[then + 2 :],
                lanes,
                unroll,
                intrinsics,
                dots,
            )
            if prefetch:
                _prefetch(s, reduce, prefetch)
            # The first rows past a panel of columns ask for all of the next one; if rows are outside, any do.
            if next_panel and width == cuts[nest.col][0][1] and (first == nest.row or n == 0):
                _prefetch_panel(s, reduce, next_panel)
    if not is_shared:
        return
    for n in top_level(s.func):
        # Other nests of the Func (padding, packing) are not ours.
        if (
            isinstance(n, For)
            and n.kind is LoopKind.SERIAL
            and any(is_part(b, nest.block) for b in blocks(n))
        ):
            parallel_prefix(s, tuple(x.var.name for x in chain(n)[: len(nest.outside)]))


def join_epilogue(s: Draft, nest: ReductionNest) -> None:
    """Order the loops, and put the epilogue of an element after its reduction."""
    s.apply(Reorder((*nest.outside, *nest.reduce)))
    s.apply(ReverseComputeAt(nest.epilogue, nest.outside[-1]))


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the iteration space by its names: the loops from the outermost in, and where row and column
    are.
    """

    block: str
    epilogue: str
    order: tuple[str, ...]


def _cut(s: Draft, part: _Part, at: int, cuts: list[tuple[int, int]]) -> list[tuple[_Part, int]]:
    """Partition loop number `at`: (part, size of its tiles) for each of `cuts`, which are (end, size)."""
    if len(cuts) == 1:
        return [(part, cuts[0][1])]
    s.apply(LoopPartition(part.order[at], tuple(end for end, _ in cuts[:-1])))
    out: list[tuple[_Part, int]] = []
    for n, (_, size) in enumerate(cuts):
        order = (*part.order[:at], *(f"{name}_p{n}" for name in part.order[at:]))
        out.append((_Part(f"{part.block}_p{n}", f"{part.epilogue}_p{n}", order), size))
    return out


def _column_cuts(extent: int, columns: int, lanes: int) -> list[tuple[int, int]]:
    """(end, width): full tiles, then whole vectors, then what is left of one."""
    cuts: list[tuple[int, int]] = []
    start = 0
    for width in (columns, (extent % columns) // lanes * lanes, extent % columns % lanes):
        end = start + (extent - start) // width * width if width else start
        if end > start:
            cuts.append((end, width))
            start = end
    return cuts


def row_cuts(extent: int, height: int) -> list[tuple[int, int]]:
    cuts: list[tuple[int, int]] = []
    for size, count in row_tiles(extent, height).items():
        cuts.append(((cuts[-1][0] if cuts else 0) + size * count, size))
    return cuts


def _register_tile(
    s: Draft,
    p: _Part,
    tile: tuple[str, str],
    sizes: tuple[int, int],
    reduce: tuple[str, ...],
    lanes: int,
    unroll: int,
    intrinsics: Mapping[tuple[int, int], str],
    dots: Mapping[int, str] | None,
) -> tuple[str, ...]:
    """Part the epilogue from the reduction, turn the reduction inside out, and write the tile out in
    registers; the loops of the reduction as they are now.
    """
    (row, col), (height, width) = tile, sizes
    store_col = s.apply(Distribute(col)).part(1)
    store_row = s.apply(Distribute(row)).part(1)
    vectors = height * -(-width // lanes)
    dot = None if dots is None else dots.get(min(width, lanes))
    if dot is not None:
        *steps, group = reduce
        reduce = _unroll_reduction(s, tuple(steps), vectors, unroll)
        s.apply(Reorder((*reduce, row, col, group)))
        s.apply(DecomposeReduction(p.block, reduce[0]))
        _write_out(s, f"{row}_init" if height > 1 else None, f"{col}_init", width, lanes)
        _add_up(s, row, col, group, width, lanes, dot)
        _store_tile(s, p.epilogue, (store_row, store_col), sizes, lanes)
        return reduce
    reduce = _unroll_reduction(s, reduce, vectors, unroll)
    s.apply(Reorder((*reduce, row, col)))
    if sizes in intrinsics:
        s.apply(DecomposeReduction(p.block, reduce[0]))
        _write_out(s, f"{row}_init" if height > 1 else None, f"{col}_init", width, lanes)
        if not s.attempt(Tensorize(row, intrinsics[sizes])):
            _write_out(
                s, row, col, width, lanes
            )  # rows are not a line through A: the same code without its name
    else:
        _write_out(s, row, col, width, lanes)
        s.apply(DecomposeReduction(p.block, reduce[0]))
    _store_tile(s, p.epilogue, (store_row, store_col), sizes, lanes)
    return reduce


def _store_tile(s: Draft, epilogue: str, loops: tuple[str, str], sizes: tuple[int, int], lanes: int) -> None:
    (row, col), (height, width) = loops, sizes
    if 4 <= height <= lanes and width % lanes == 0 and _is_transposed(s, epilogue, row, col):
        s.apply(Reorder((col, row)))
        s.apply(Unroll(col))
        s.apply(Vectorize(row))
    else:
        _write_out(s, row, col, width, lanes)


def _add_up(s: Draft, row: str, col: str, group: str, width: int, lanes: int, dot: str) -> None:
    """A group of products for each lane, by this instruction."""
    lane = col
    if width > lanes:
        vectors, lane = s.apply(Split(col, (None, lanes))).names
        s.apply(Unroll(vectors))
    s.apply(Unroll(row))
    s.apply(Reorder((group, lane)))
    if not s.attempt(Tensorize(group, dot)):
        s.apply(Unroll(group))
        s.apply(Vectorize(lane))


def _prefetch(s: Draft, reduce: tuple[str, ...], steps: int) -> None:
    """Ask for vectors `steps` of the reduction ahead, in its innermost loop; short ones are over before they come."""
    loops = [s.loop(n) for n in reduce]
    serial = [n for n in loops if n.kind is LoopKind.SERIAL]
    together = math.prod(n.extent for n in loops if n.kind is LoopKind.UNROLLED)
    if serial and math.prod(n.extent for n in loops) > steps:
        s.apply(Annotate(serial[-1].var.name, PREFETCH, max(1, steps // together)))


def _prefetch_panel(s: Draft, reduce: tuple[str, ...], elements: int) -> None:
    """Prefetch the panel of `elements` elements behind this one, in the innermost loop of the reduction."""
    serial = [n for n in reduce if s.loop(n).kind is LoopKind.SERIAL]
    if serial:
        s.apply(Annotate(serial[-1], PREFETCH_PANEL, elements))


def _write_out(s: Draft, row: str | None, col: str, width: int, lanes: int) -> None:
    """Columns in vectors, and all of them next to each other."""
    if row is not None:
        s.apply(Unroll(row))
    if width > lanes:
        vectors = s.apply(Split(col, (None, lanes)))
        s.apply(Unroll(vectors.names[0]))
        s.apply(Vectorize(vectors.names[1]))
    else:
        s.apply(Vectorize(col))


def _is_transposed(s: Draft, epilogue: str, row: str, col: str) -> bool:
    """Does the epilogue store what is next to each other along rows, not along columns?

    Then vectors are transposed in registers before it, instead of stored element by element.
    """
    block = find_block(s.func, epilogue)
    store = block.try_store
    if store is None:
        return False
    bound = {it.var: b for it, b in zip(block.iters, block.bindings, strict=True)}
    simplify = Simplifier({n.var: Interval(0, n.extent - 1) for n in loops_above(s.func, block)})
    form = simplify.weighted([substitute(i, bound) for i in store.indices], store.buffer.strides)
    steps = {atom: k for atom, k in form.terms if isinstance(atom, Var)}
    rest = {v.name for atom, _ in form.terms if not isinstance(atom, Var) for v in free_vars(atom)}
    return steps.get(Var(row)) == 1 and steps.get(Var(col)) != 1 and row not in rest


def _unroll_reduction(s: Draft, loops: tuple[str, ...], work: int, most: int) -> tuple[str, ...]:
    """Write out steps of the innermost loops while the code stays short; the loops as they are now."""
    done: list[str] = []
    for name in reversed(loops):
        extent = s.loop(name).extent
        if extent * work <= most:
            s.apply(Unroll(name))
            work *= extent
            done.insert(0, name)
            continue
        factor = max(u for u in range(1, 9) if extent % u == 0 and (u == 1 or u * work <= most))
        if factor > 1:
            steps = s.apply(Split(name, (None, factor)))
            s.apply(Unroll(steps.names[1]))
            done[:0] = steps.names
        else:
            done.insert(0, name)
        return (*loops[: loops.index(name)], *done)
    return tuple(done)

"""A mapping becomes a schedule: the steps that turn a block into a tensor intrinsic.

    accumulate in registers       CacheWrite, or the block that consumes the result
    fuse groups                   FuseIters, in the block and in what stores its result
    copy what is not in place     Reindex or Stage, laid out in the order in which the intrinsic reads it
    pad to whole tiles            PadEinsum
    cut out the tile              Split, Reorder; the store follows each tile, the init comes before it
    tensorize                     Tensorize on the loops of the tile

Every step checks itself, so a mapping that a step refuses raises ScheduleError and the schedule stays as it was.
"""

import itertools
import math
from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Cast, Const, Expr, Load, Scope, Var, free_vars, loads, walk
from tilewright.ir.layout import Fuse as FuseDims
from tilewright.ir.layout import Layout, Primitive
from tilewright.ir.layout import Reorder as ReorderDims
from tilewright.ir.layout import Split as SplitDim
from tilewright.schedule.nest import find_block, find_loop, loops_above
from tilewright.schedule.own_nest import own_nest
from tilewright.schedule.recipes.inline import single_consumer
from tilewright.schedule.recipes.parallel import ENOUGH_PARTS, PARALLEL_STEPS
from tilewright.schedule.recipes.register_tile import loops_of
from tilewright.schedule.recipes.tiles import tile_time
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.schedule.steps.add_unit_loop import AddUnitLoop
from tilewright.schedule.steps.cache_write import CacheWrite
from tilewright.schedule.steps.compute_inline import ComputeInline
from tilewright.schedule.steps.decompose_reduction import DecomposeReduction
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.fuse_iters import FuseIters
from tilewright.schedule.steps.iterate_over import IterateOver
from tilewright.schedule.steps.loop_kind import Parallel, Unroll, Vectorize
from tilewright.schedule.steps.pad_einsum import PadEinsum
from tilewright.schedule.steps.reindex import Reindex
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.reverse_compute_at import ReverseComputeAt
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.stage import Stage
from tilewright.schedule.steps.tensorize import Tensorize
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.search.mapping import Group, Mapping
from tilewright.search.operand_plan import is_in_place
from tilewright.support.errors import ScheduleError
from tilewright.target.intrinsic import Intrinsic
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, IterKind, LoopKind, Store, blocks

_COPY_LANES = 8
_REGISTERS = 16  # vector registers that every target has
_UNROLLED = 64  # instructions written out in a reduction loop


def apply_mapping(schedule: Schedule, block: str, mapping: Mapping, intrinsic: Intrinsic) -> None:
    """Tensorize `block`, which is still alone under plain loops, as `mapping` says."""
    done = len(schedule.trace)
    try:
        _Materializer(schedule, block, mapping, intrinsic).run()
    except ScheduleError:
        while len(schedule.trace) > done:
            schedule.undo()
        raise


@dataclass(frozen=True, slots=True)
class _Axis:
    """A group as iterators of the block: one after fusing; those of a role that is all free stay apart."""

    group: Group
    iters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Nest:
    """The loops of the block, each list from the outermost in."""

    spatial: list[str]  # around the tiles, with the tiles themselves
    reduce: list[str]  # around the intrinsic, inside the tiles
    copies: list[str]  # of the intrinsic that run side by side, unrolled
    steps: list[str]  # of the intrinsic's reduction
    tile: list[str]  # of the intrinsic's part of the output


class _Materializer:
    def __init__(self, schedule: Schedule, block: str, mapping: Mapping, intrinsic: Intrinsic) -> None:
        self._s, self._name, self._mapping, self._intrinsic = schedule, block, mapping, intrinsic
        # Where the operands are in the stored value. The steps below change indices, never this; an operand that is
        # to be kept in another type is below the cast after that.
        self._positions: list[tuple[int, ...]] = []
        self._narrow: dict[int, DType] = {}
        for n, e in enumerate(mapping.operands):
            if isinstance(e, Cast) and not any(x is e for x in walk(self._store.value)):
                self._narrow[n] = e.dtype
                e = e.a
            self._positions.append(position_of(self._store.value, e))

    def run(self) -> None:
        own_nest(self._func, self._block)
        for g in self._mapping.groups:
            # An index that is always 0 is simplified away, and with it what tells where the padding belongs.
            if g.extent == 1 < g.padded:
                raise ScheduleError(
                    f"{self._mapping}: {g.role.name} would be all padding but for one element",
                    hint="take an intrinsic that is narrower there",
                )
        operands = range(1, len(self._positions))
        copied = {n for n in operands if not is_in_place(n, self._mapping, self._intrinsic, self._block)}
        epilogue = self._accumulate()
        axes = tuple(self._fuse(g) for g in self._mapping.groups)
        if any(g.padded != g.extent for g in self._mapping.groups):
            copied |= {n for n in operands if not _is_plain(self._operand(n))}
            reindexed = [self._copy(n, axes) for n in copied if not _is_plain(self._operand(n))]
            copied |= self._pad(axes, epilogue)
        else:
            reindexed = [self._copy(n, axes) for n in copied]
        for n in sorted(copied):
            self._lay_out(n, axes)
        if self._intrinsic.operands[0].contiguous > 1:
            # Rows of an accumulator that is one register are side by side in it.
            dims = [i.name if isinstance(i, Var) else "" for i in self._store.indices]
            layout = _panels(dims, self._dims(0), self._in_order(0, axes))
            self._s.apply(TransformLayout(self._store.buffer.name, layout))
        # A copy that only feeds a padded copy, and padding that only a copy reads, are made by the last of them.
        for name in reindexed:
            self._inline(name)
        self._tile(self._nest(axes), epilogue)

    @property
    def _func(self) -> Func:
        func = self._s.module.func_of_block(self._name)
        if func is None:
            raise ScheduleError(f"no block is named {self._name!r}", hint="print the module to see its names")
        return func

    @property
    def _block(self) -> Block:
        return find_block(self._func, self._name)

    @property
    def _store(self) -> Store:
        store = self._block.body
        assert isinstance(store, Store)  # it matched the intrinsic
        return store

    def _attempt(self, step: Step) -> bool:
        try:
            self._s.apply(step)
        except ScheduleError:
            return False
        return True

    # ------------------------------------------------------------------------------------------------- the output

    def _accumulate(self) -> str:
        """Let the block accumulate where the intrinsic does; returns the block that stores the result.

        That is the one consumer of the result, if it can follow the tiles; otherwise a copy.
        """
        scopes = self._intrinsic.operands[0].scopes
        scope = next(s for s in (Scope.REGISTER, Scope.LOCAL, Scope.GLOBAL) if s in scopes)
        buffer = self._store.buffer
        consumer = single_consumer(self._func, buffer) if buffer in self._func.locals else None
        if (
            consumer is not None
            and not consumer.is_reduction
            and self._attempt(IterateOver(consumer.name, buffer.name))
        ):
            epilogue = consumer.name
            if buffer.scope is not scope:
                self._s.apply(SetScope(buffer.name, scope))
        else:
            epilogue = self._s.apply(CacheWrite(self._name, buffer.name, scope)).copy
        self._lay_out_output(epilogue)
        return epilogue

    def _lay_out_output(self, epilogue: str) -> None:
        """Dimensions of the accumulator in the order of the intrinsic's, a group's as one; its consumer follows."""
        dim = {i: d for d, i in enumerate(self._store.indices)}
        order = [v for v in self._intrinsic.dims[0] if v is not None]
        groups = sorted(
            (g for g in self._mapping.groups if g.role.character[0]),
            key=lambda g: min(order.index(n.var) for n in g.role.loops),
        )
        dims = [[dim[it.var] for it in g.iters] for g in groups]
        outside = [d for d in range(len(self._store.indices)) if not any(d in ds for ds in dims)]
        iters = [it.var.name for it in find_block(self._func, epilogue).iters]
        wanted = (*outside, *(d for ds in dims for d in ds))
        primitives: list[Primitive] = [] if wanted == tuple(range(len(wanted))) else [ReorderDims(wanted)]
        for at, ds in enumerate(dims, len(outside)):
            if len(ds) > 1:
                primitives.append(FuseDims(at, len(ds)))
                self._s.apply(FuseIters(epilogue, tuple(iters[d] for d in ds)))
        if primitives:
            self._s.apply(TransformLayout(self._store.buffer.name, Layout(tuple(primitives))))

    # ------------------------------------------------------------------------------------------- groups and copies

    def _fuse(self, group: Group) -> _Axis:
        names = tuple(it.var.name for it in group.iters)
        if len(names) > 1 and not _all_free(group):
            return _Axis(group, (self._s.apply(FuseIters(self._name, names)).iter,))
        return _Axis(group, names)

    def _operand(self, operand: int) -> Expr:
        """What stands for an operand of the intrinsic now."""
        e = self._store.value
        for n in self._positions[operand]:
            e = e.children()[n]
        return e

    def _dims(self, operand: int) -> list[Var]:
        return [v for v in self._intrinsic.dims[operand] if v is not None]

    def _in_order(self, operand: int, axes: tuple[_Axis, ...]) -> list[_Axis]:
        """The axes that index an operand, in the order of the dimensions that the intrinsic has them in."""
        dims = self._dims(operand)
        mine = [a for a in axes if a.group.role.character[operand]]
        return sorted(mine, key=lambda a: min(dims.index(n.var) for n in a.group.role.loops))

    def _copy(self, operand: int, axes: tuple[_Axis, ...]) -> str:
        """Copy an operand so that iterators index it, those outside first; returns the block that does it."""
        e = self._operand(operand)
        of_axes = [n for a in self._in_order(operand, axes) for n in a.iters]
        outside = {v.name for v in free_vars(e)}.difference(of_axes)
        iters = (*(it.var.name for it in self._block.iters if it.var.name in outside), *of_axes)
        if isinstance(e, Load) and sum(ld.buffer is e.buffer for ld in loads(self._store.value)) == 1:
            copy = self._s.apply(Reindex(self._name, e.buffer.name, iters)).copy
        else:
            narrow = self._narrow.pop(operand, None)
            copy = self._s.apply(Stage(self._name, self._positions[operand], iters, narrow)).copy
            if narrow is not None:
                self._positions[operand] += (0,)
        for ld in loads(e):
            writers = [b for b in blocks(self._func.body) if ld.buffer in _written(b)]
            if len(writers) == 1 and not writers[0].is_reduction:
                self._inline(writers[0].name)
        return copy

    def _pad(self, axes: tuple[_Axis, ...], epilogue: str) -> set[int]:
        """Pad all groups to whole tiles; returns the operands that were copied for that."""
        before = [self._operand(n) for n in range(len(self._positions))]
        tiles = {n: a.group.role.tile for a in axes for n in a.iters if not _all_free(a.group)}
        step = PadEinsum(self._name, tuple(tiles.get(it.var.name, 1) for it in self._block.iters))
        scope = self._store.buffer.scope
        self._s.apply(step)
        after = [self._operand(n) for n in range(len(self._positions))]
        if after[0] is not before[0]:
            self._s.apply(ComputeInline(step.copy))
            self._s.apply(SetScope(self._store.buffer.name, scope))
        return {n for n in range(1, len(before)) if after[n] is not before[n]}

    def _lay_out(self, operand: int, axes: tuple[_Axis, ...]) -> None:
        """Lay out a copy as [outside, tiles, the intrinsic's dimensions], and write it in that order."""
        e = self._operand(operand)
        assert isinstance(e, Load)
        dims, mine = self._dims(operand), self._in_order(operand, axes)
        writer = next(b for b in blocks(self._func.body) if e.buffer in _written(b))
        assert isinstance(writer.body, Store)
        loops = {
            i.name: loops_of(writer)[w]
            for i, w in zip(e.indices, writer.body.indices, strict=True)
            if isinstance(i, Var) and isinstance(w, Var)
        }
        layout = _panels([i.name if isinstance(i, Var) else "" for i in e.indices], dims, mine)
        if layout.primitives:
            self._s.apply(TransformLayout(e.buffer.name, layout))
        self._write_panels(loops, dims, mine)

    def _write_panels(self, loops: dict[str, str], dims: list[Var], axes: list[_Axis]) -> None:
        """Bring the loops of a copy into the order of its layout, the last one in vectors."""
        tiles: list[str] = []
        inside: dict[Var, list[str]] = {}
        for a in axes:
            role, mine = a.group.role, [loops.pop(n) for n in a.iters]
            if not _all_free(a.group) and 1 < role.tile < a.group.padded:
                counting, *mine = self._s.apply(Split(mine[0], (None, role.tile))).names
                if role.free:
                    mine.insert(0, counting)
                else:
                    tiles.append(counting)
            inside[min((n.var for n in role.loops), key=dims.index)] = mine
        order = [*loops.values(), *tiles, *(n for v in dims for n in inside.get(v, []))]
        if len(order) > 1:
            self._s.apply(Reorder(tuple(order)))
        if order:
            last = find_loop(self._func, order[-1])
            if last.extent % _COPY_LANES == 0 and last.extent > _COPY_LANES:
                self._attempt(Vectorize(self._s.apply(Split(order[-1], (None, _COPY_LANES))).names[1]))
            elif last.extent in (2, 4, 8, 16):
                self._attempt(Vectorize(order[-1]))

    def _inline(self, name: str) -> None:
        """Compute what a block computes where it is used, if that is one place outside of the tile."""
        block = find_block(self._func, name)
        reader = single_consumer(self._func, next(iter(_written(block))))
        if reader is not None and reader.name != self._name:
            self._attempt(ComputeInline(name))

    # --------------------------------------------------------------------------------------------------- the tile

    def _nest(self, axes: tuple[_Axis, ...]) -> _Nest:
        """Cut the groups into tiles."""
        grouped = {n for a in axes for n in a.iters}
        block = self._block
        loops = {v.name: loop for v, loop in loops_of(block).items()}
        left = [it for it in block.iters if it.var.name not in grouped]
        nest = _Nest(
            [loops[it.var.name] for it in left if it.kind is IterKind.SPATIAL],
            [loops[it.var.name] for it in left if it.kind is IterKind.REDUCE],
            [],
            [],
            [],
        )
        if all(g.padded == g.role.tile or _all_free(g) for g in self._mapping.groups) and not nest.spatial:
            nest.spatial.append(self._s.apply(AddUnitLoop(self._name)).loop)
        for a in axes:
            spatial = a.group.role.kind is IterKind.SPATIAL
            tiles, inside = self._cut(a, [loops[n] for n in a.iters])
            (nest.spatial if spatial else nest.reduce).extend(tiles)
            (nest.tile if spatial else nest.steps).extend(inside)
        if self._intrinsic.emitter is not None:
            self._repeat(nest)
        return nest

    def _repeat(self, nest: _Nest) -> None:
        """Let a single instruction run on several accumulators in turn: each waits for its last result.

        The last two loops around the tiles become a block of rows and vectors; that is the one whose steps are the
        quickest of those that divide them.
        """
        rows, vectors = ["", "", *nest.spatial][-2:]
        extents = [find_loop(self._func, n).extent if n else 1 for n in (rows, vectors)]
        fitting = [
            (tile_time(r, v), r, v)
            for r, v in itertools.product(*([d for d in range(1, 9) if n % d == 0] for n in extents))
            if r * v + v + 1 <= _REGISTERS
        ]
        _, r, v = min(fitting)
        for name, factor in ((rows, r), (vectors, v)):
            if factor > 1:
                outer, inner = self._s.apply(Split(name, (None, factor))).names
                nest.spatial[nest.spatial.index(name)] = outer
                nest.copies.append(inner)

    def _cut(self, axis: _Axis, loops: list[str]) -> tuple[list[str], list[str]]:
        """The loops that count tiles of a group, and those inside a tile."""
        role = axis.group.role
        if _all_free(axis.group):
            return [], loops
        fixed = [n.extent for n in role.loops if n.var not in role.free and n.extent > 1]
        whole = axis.group.padded == role.tile
        if not fixed:
            return loops, []
        if whole and len(fixed) == 1:
            return [], loops
        (loop,) = loops
        names = self._s.apply(Split(loop, tuple(fixed) if whole else (None, *fixed))).names
        return ([], list(names)) if whole or role.free else (list(names[:1]), list(names[1:]))

    def _tile(self, nest: _Nest, epilogue: str) -> None:
        work = math.prod(it.extent for it in self._block.iters)
        self._s.apply(Reorder((*nest.spatial, *nest.reduce, *nest.copies, *nest.steps, *nest.tile)))
        self._s.apply(ReverseComputeAt(epilogue, nest.spatial[-1]))
        reduce = (*nest.reduce, *nest.steps)
        if self._block.init is not None:
            init = self._s.apply(DecomposeReduction(self._name, reduce[0])).name
            self._write_out(init)
        self._write_out(epilogue)
        for n in nest.copies:
            self._s.apply(Unroll(n))
        self._unroll(nest)
        inside = (*nest.steps, *nest.tile)
        self._s.apply(Tensorize(inside[0] if inside else self._name, self._intrinsic.name))
        if work >= PARALLEL_STEPS:
            self._share(nest.spatial)

    def _unroll(self, nest: _Nest) -> None:
        """Write out a few steps of a free reduction."""
        if not self._intrinsic.free or not nest.steps:
            return
        size = math.prod(find_loop(self._func, n).extent for n in nest.tile) // self._lanes()
        extent = find_loop(self._func, nest.steps[-1]).extent
        factor = max((u for u in (2, 4, 8) if extent % u == 0 and u * size <= _UNROLLED), default=1)
        if 1 < factor < extent:
            outer, inner = self._s.apply(Split(nest.steps[-1], (None, factor))).names
            self._s.apply(Unroll(inner))
            nest.steps[-1:] = [outer, inner]

    def _share(self, loops: list[str]) -> None:
        """Divide the tiles among workers."""
        taken: list[str] = []
        parts = 1
        for name in loops:
            if parts < ENOUGH_PARTS:
                taken.append(name)
                parts *= find_loop(self._func, name).extent
        if parts > 1:
            self._s.apply(Parallel(self._s.apply(Fuse(tuple(taken))).name if len(taken) > 1 else taken[0]))

    def _write_out(self, name: str) -> None:
        """Init and store of a tile: rows unrolled, columns in vectors, as registers are addressed."""
        block = find_block(self._func, name)
        buffer = self._store.buffer
        if buffer.scope is not Scope.REGISTER:
            return
        last = _last_index(block, buffer)
        own = [n for n in loops_above(self._func, block) if n.var.name not in self._around()]
        feeding = [b for it, b in zip(block.iters, block.bindings, strict=True) if it.var in last]
        columns = {n.var.name for n in own if any(n.var in free_vars(b) for b in feeding)}
        order = sorted(own, key=lambda n: n.var.name in columns)
        if len(order) > 1:
            self._s.apply(Reorder(tuple(n.var.name for n in order)))
        for n in order:
            if n is order[-1] and n.var.name in columns and n.extent > 1:
                self._in_vectors(n)
            elif n.extent > 1:
                self._s.apply(Unroll(n.var.name))

    def _around(self) -> set[str]:
        return {n.var.name for n in loops_above(self._func, self._block)}

    def _in_vectors(self, loop: For) -> None:
        lanes = self._lanes()
        name = loop.var.name
        if loop.extent > lanes:
            outer, name = self._s.apply(Split(name, (None, lanes))).names
            self._s.apply(Unroll(outer))
        self._s.apply(Vectorize(name))

    def _lanes(self) -> int:
        """The width of the vectors that the intrinsic has its columns in."""
        last = self._dims(0)[-1]
        for part in self._intrinsic.body or ():
            if part.loop == last.name and part.kind is LoopKind.VECTORIZED and part.extent is not None:
                return part.extent
        return next(n.extent for n in self._intrinsic.loops if n.var is last)


def position_of(value: Expr, operand: Expr) -> tuple[int, ...]:
    """The way from `value` to `operand` inside it: the number of the child at each node."""
    if value is operand:
        return ()
    for n, child in enumerate(() if isinstance(value, Load) else value.children()):
        if any(e is operand for e in walk(child)):
            return (n, *position_of(child, operand))
    raise KeyError(operand)


def _all_free(group: Group) -> bool:
    return all(n.var in group.role.free for n in group.role.loops)


def _last_index(block: Block, buffer: Buffer) -> set[Var]:
    """The iterators in the last index at which a block reaches `buffer`."""
    store = block.body
    assert isinstance(store, Store)
    reached = [Load(store.buffer, store.indices), *loads(store.value)]
    return set[Var]().union(*(free_vars(ld.indices[-1]) for ld in reached if ld.buffer is buffer))


def _is_plain(e: Expr) -> bool:
    """Is it a load at distinct iterators?"""
    if not isinstance(e, Load):
        return False
    plain = [i for i in e.indices if isinstance(i, Var)]
    return len(set(plain)) == len(plain) and all(isinstance(i, Var | Const) for i in e.indices)


def _written(block: Block) -> set[Buffer]:
    return {block.body.buffer} if isinstance(block.body, Store) else set()


def _panels(have: list[str], dims: list[Var], axes: list[_Axis]) -> Layout:
    """From dimensions with these iterators to [outside, tiles, the dimensions inside a tile]."""
    of_axes = [n for a in axes for n in a.iters]
    first = [*(d for d, n in enumerate(have) if n not in of_axes), *(have.index(n) for n in of_axes)]
    outside = len(have) - len(of_axes)
    splits: list[Primitive] = []
    tiles: list[int] = []  # dimensions that count tiles
    inside: dict[Var, list[int]] = {}  # dimensions of a loop of the intrinsic
    at = outside
    for a in axes:
        role = a.group.role
        if _all_free(a.group):
            inside[role.loops[0].var] = list(range(at, at + len(a.iters)))
            at += len(a.iters)
            continue
        fixed = [n for n in role.loops if n.var not in role.free]
        if a.group.padded > role.tile:
            splits.append(SplitDim(at, role.tile))
            if role.free:
                inside[next(iter(role.free))] = [at]
            else:
                tiles.append(at)
            at += 1
        for n, loop in enumerate(fixed):
            if n:
                splits.append(SplitDim(at, math.prod(x.extent for x in fixed[n:])))
                at += 1
            inside[loop.var] = [at]
        at += 1
    order = [*range(outside), *tiles, *(d for v in dims for d in inside.get(v, []))]
    primitives: list[Primitive] = [] if first == sorted(first) else [ReorderDims(tuple(first))]
    if order != sorted(order):
        primitives += [*splits, ReorderDims(tuple(order))]
    return Layout(tuple(primitives))

"""A mapping becomes a schedule: the steps that turn a block into a tensor intrinsic.

    accumulate in registers       CacheWrite, or the block that consumes the result
    fuse groups                   FuseIters, in the block and in what stores its result
    copy what is not in place     Reindex or Stage, laid out in the order in which the intrinsic reads it
    pad to whole tiles            PadEinsum
    cut out the tile              Split, Reorder; the store follows each tile, the init comes before it
    tensorize                     Tensorize on the loops of the tile

Every step checks itself, so a mapping that a step refuses raises ScheduleError and the schedule stays as it was.
"""

import math

from tilewright.families.gemm.register_tile import loops_of
from tilewright.families.inline import single_consumer
from tilewright.families.tensor.block import RoleAxis, TensorBlock, is_all_free
from tilewright.families.tensor.mapping import IterGroup, Mapping
from tilewright.families.tensor.operand_plan import is_in_place
from tilewright.families.tensor.tile import TensorTile
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Cast, Const, Expr, Load, Scope, Var, free_vars, loads, walk
from tilewright.ir.layout import FuseDims, Layout, LayoutPrimitive, ReorderDims, SplitDim
from tilewright.schedule.find import find_block, find_loop
from tilewright.schedule.own_nest import own_nest
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps.cache_write import CacheWrite
from tilewright.schedule.steps.compute_inline import ComputeInline
from tilewright.schedule.steps.fuse_iters import FuseIters
from tilewright.schedule.steps.iterate_over import IterateOver
from tilewright.schedule.steps.loop_kind import Vectorize
from tilewright.schedule.steps.pad_einsum import PadEinsum
from tilewright.schedule.steps.reindex import Reindex
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.stage import Stage, position_of
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.support.errors import ScheduleError
from tilewright.target.intrinsic import Intrinsic
from tilewright.tir.stmt import Block, blocks

_COPY_LANES = 8  # elements of a vector of 32 bytes; given


def apply_mapping(schedule: Schedule, block: str, mapping: Mapping, intrinsic: Intrinsic) -> None:
    """Tensorize `block`, which is still alone under plain loops, as `mapping` says."""
    with schedule.transaction():
        _Materializer(schedule, block, mapping, intrinsic).run()


class _Materializer:
    def __init__(self, schedule: Schedule, block: str, mapping: Mapping, intrinsic: Intrinsic) -> None:
        self._b = TensorBlock(schedule, block, mapping, intrinsic)
        # Where the operands are in the stored value. The steps below change indices, never this; an operand that is
        # to be kept in another type is below the cast after that.
        self._positions: list[tuple[int, ...]] = []
        self._narrow: dict[int, DType] = {}
        for n, e in enumerate(mapping.operands):
            if isinstance(e, Cast) and not any(x is e for x in walk(self._b.store.value)):
                self._narrow[n] = e.dtype
                e = e.a
            self._positions.append(position_of(self._b.store.value, e))

    def run(self) -> None:
        own_nest(self._b.func, self._b.block)
        for g in self._b.mapping.groups:
            # An index that is always 0 is simplified away, and with it what tells where the padding belongs.
            if g.extent == 1 < g.padded:
                raise ScheduleError(
                    f"{self._b.mapping}: {g.role.name} would be all padding but for one element",
                    hint="take an intrinsic that is narrower there",
                )
        groups, operands = self._b.mapping.groups, range(1, len(self._positions))
        copied = {
            n for n in operands if not is_in_place(n, self._b.mapping, self._b.intrinsic, self._b.block)
        }
        epilogue = self._accumulate()
        axes = tuple(self._fuse(g) for g in groups)
        padded = [g for g in groups if g.padded != g.extent]
        if padded:
            copied |= {n for n in operands if not _is_plain(self._operand(n))}
        # Padding makes a copy itself, of operands that are loads at plain iterators.
        skipped = {
            n for n in copied if _is_plain(self._operand(n)) and any(g.role.character[n] for g in padded)
        }
        reindexed = [self._copy(n, axes) for n in sorted(copied - skipped)]
        if padded:
            copied |= self._pad(axes)
        for n in sorted(copied):
            self._lay_out(n, axes)
        if self._b.intrinsic.operands[0].contiguous > 1:
            # Rows of an accumulator that is one register are side by side in it.
            dims = [i.name if isinstance(i, Var) else "" for i in self._b.store.indices]
            layout = _panels(dims, self._b.dims(0), self._in_order(0, axes))
            self._b.schedule.apply(TransformLayout(self._b.store.buffer.name, layout))
        # A copy that only feeds a padded copy, and padding that only a copy reads, are made by the last of them.
        for name in reindexed:
            self._inline(name)
        TensorTile(self._b, axes, epilogue).run()

    # ------------------------------------------------------------------------------------------------- the output

    def _accumulate(self) -> str:
        """Let the block accumulate where the intrinsic does; returns the block that stores the result.

        That is the one consumer of the result, if it can follow the tiles; otherwise a copy.
        """
        scopes = self._b.intrinsic.operands[0].scopes
        scope = next(s for s in (Scope.REGISTER, Scope.LOCAL, Scope.GLOBAL) if s in scopes)
        buffer = self._b.store.buffer
        consumer = single_consumer(self._b.func, buffer) if buffer in self._b.func.locals else None
        if (
            consumer is not None
            and not consumer.is_reduction
            and self._b.attempt(IterateOver(consumer.name, buffer.name))
        ):
            epilogue = consumer.name
            if buffer.scope is not scope:
                self._b.schedule.apply(SetScope(buffer.name, scope))
        else:
            epilogue = self._b.schedule.apply(CacheWrite(self._b.name, buffer.name, scope)).copy
        self._lay_out_output(epilogue)
        return epilogue

    def _lay_out_output(self, epilogue: str) -> None:
        """Dimensions of the accumulator in the order of the intrinsic's, a group's as one; its consumer follows."""
        dim = {i: d for d, i in enumerate(self._b.store.indices)}
        order = [v for v in self._b.intrinsic.dims[0] if v is not None]
        groups = sorted(
            (g for g in self._b.mapping.groups if g.role.character[0]),
            key=lambda g: min(order.index(n.var) for n in g.role.loops),
        )
        dims = [[dim[it.var] for it in g.iters] for g in groups]
        outside = [d for d in range(len(self._b.store.indices)) if not any(d in ds for ds in dims)]
        iters = [it.var.name for it in find_block(self._b.func, epilogue).iters]
        wanted = (*outside, *(d for ds in dims for d in ds))
        primitives: list[LayoutPrimitive] = (
            [] if wanted == tuple(range(len(wanted))) else [ReorderDims(wanted)]
        )
        for at, ds in enumerate(dims, len(outside)):
            if len(ds) > 1:
                primitives.append(FuseDims(at, len(ds)))
                self._b.schedule.apply(FuseIters(epilogue, tuple(iters[d] for d in ds)))
        if primitives:
            self._b.schedule.apply(TransformLayout(self._b.store.buffer.name, Layout(tuple(primitives))))

    # ------------------------------------------------------------------------------------------- groups and copies

    def _fuse(self, group: IterGroup) -> RoleAxis:
        names = tuple(it.var.name for it in group.iters)
        if len(names) > 1 and not is_all_free(group):
            return RoleAxis(group, (self._b.schedule.apply(FuseIters(self._b.name, names)).iter,))
        return RoleAxis(group, names)

    def _operand(self, operand: int) -> Expr:
        """What stands for an operand of the intrinsic now."""
        e = self._b.store.value
        for n in self._positions[operand]:
            e = e.children()[n]
        return e

    def _in_order(self, operand: int, axes: tuple[RoleAxis, ...]) -> list[RoleAxis]:
        """The axes that index an operand, in the order of the dimensions that the intrinsic has them in."""
        dims = self._b.dims(operand)
        mine = [a for a in axes if a.group.role.character[operand]]
        return sorted(mine, key=lambda a: min(dims.index(n.var) for n in a.group.role.loops))

    def _copy(self, operand: int, axes: tuple[RoleAxis, ...]) -> str:
        """Copy an operand so that iterators index it, those outside first; returns the block that does it."""
        e = self._operand(operand)
        of_axes = [n for a in self._in_order(operand, axes) for n in a.iters]
        outside = {v.name for v in free_vars(e)}.difference(of_axes)
        iters = (*(it.var.name for it in self._b.block.iters if it.var.name in outside), *of_axes)
        if isinstance(e, Load) and sum(ld.buffer is e.buffer for ld in loads(self._b.store.value)) == 1:
            copy = self._b.schedule.apply(Reindex(self._b.name, e.buffer.name, iters)).copy
        else:
            narrow = self._narrow.pop(operand, None)
            copy = self._b.schedule.apply(Stage(self._b.name, self._positions[operand], iters, narrow)).copy
            if narrow is not None:
                self._positions[operand] += (0,)
        for ld in loads(e):
            writers = [b for b in blocks(self._b.func.body) if ld.buffer in _written(b)]
            if len(writers) == 1 and not writers[0].is_reduction:
                self._inline(writers[0].name)
        return copy

    def _pad(self, axes: tuple[RoleAxis, ...]) -> set[int]:
        """Pad all groups to whole tiles; returns the operands that were copied for that."""
        before = [self._operand(n) for n in range(len(self._positions))]
        tiles = {n: a.group.role.tile for a in axes for n in a.iters if not is_all_free(a.group)}
        step = PadEinsum(self._b.name, tuple(tiles.get(it.var.name, 1) for it in self._b.block.iters))
        scope = self._b.store.buffer.scope
        self._b.schedule.apply(step)
        after = [self._operand(n) for n in range(len(self._positions))]
        if after[0] is not before[0]:
            self._b.schedule.apply(ComputeInline(step.copy))
            self._b.schedule.apply(SetScope(self._b.store.buffer.name, scope))
        return {n for n in range(1, len(before)) if after[n] is not before[n]}

    def _lay_out(self, operand: int, axes: tuple[RoleAxis, ...]) -> None:
        """Lay out a copy as [outside, tiles, the intrinsic's dimensions], and write it in that order."""
        e = self._operand(operand)
        assert isinstance(e, Load)
        dims, mine = self._b.dims(operand), self._in_order(operand, axes)
        writer = next(b for b in blocks(self._b.func.body) if e.buffer in _written(b))
        loops = {
            i.name: loops_of(writer)[w]
            for i, w in zip(e.indices, writer.store.indices, strict=True)
            if isinstance(i, Var) and isinstance(w, Var)
        }
        layout = _panels([i.name if isinstance(i, Var) else "" for i in e.indices], dims, mine)
        if layout.primitives:
            self._b.schedule.apply(TransformLayout(e.buffer.name, layout))
        self._write_panels(loops, dims, mine)

    def _write_panels(self, loops: dict[str, str], dims: list[Var], axes: list[RoleAxis]) -> None:
        """Bring the loops of a copy into the order of its layout, the last one in vectors."""
        tiles: list[str] = []
        inside: dict[Var, list[str]] = {}
        for a in axes:
            role, mine = a.group.role, [loops.pop(n) for n in a.iters]
            if not is_all_free(a.group) and 1 < role.tile < a.group.padded:
                counting, *mine = self._b.schedule.apply(Split(mine[0], (None, role.tile))).names
                if role.free:
                    mine.insert(0, counting)
                else:
                    tiles.append(counting)
            inside[min((n.var for n in role.loops), key=dims.index)] = mine
        order = [*loops.values(), *tiles, *(n for v in dims for n in inside.get(v, []))]
        if len(order) > 1:
            self._b.schedule.apply(Reorder(tuple(order)))
        if order:
            last = find_loop(self._b.func, order[-1])
            if last.extent % _COPY_LANES == 0 and last.extent > _COPY_LANES:
                self._b.attempt(
                    Vectorize(self._b.schedule.apply(Split(order[-1], (None, _COPY_LANES))).names[1])
                )
            elif last.extent in (2, 4, 8, 16):
                self._b.attempt(Vectorize(order[-1]))

    def _inline(self, name: str) -> None:
        """Compute what a block computes where it is used, if that is one place outside of the tile."""
        block = find_block(self._b.func, name)
        reader = single_consumer(self._b.func, next(iter(_written(block))))
        if reader is not None and reader.name != self._b.name:
            self._b.attempt(ComputeInline(name))


def _is_plain(e: Expr) -> bool:
    """Is it a load at distinct iterators?"""
    if not isinstance(e, Load):
        return False
    plain = [i for i in e.indices if isinstance(i, Var)]
    return len(set(plain)) == len(plain) and all(isinstance(i, Var | Const) for i in e.indices)


def _written(block: Block) -> set[Buffer]:
    return set() if block.try_store is None else {block.store.buffer}


def _panels(have: list[str], dims: list[Var], axes: list[RoleAxis]) -> Layout:
    """From dimensions with these iterators to [outside, tiles, the dimensions inside a tile]."""
    of_axes = [n for a in axes for n in a.iters]
    first = [*(d for d, n in enumerate(have) if n not in of_axes), *(have.index(n) for n in of_axes)]
    outside = len(have) - len(of_axes)
    splits: list[LayoutPrimitive] = []
    tiles: list[int] = []  # dimensions that count tiles
    inside: dict[Var, list[int]] = {}  # dimensions of a loop of the intrinsic
    at = outside
    for a in axes:
        role = a.group.role
        if is_all_free(a.group):
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
    primitives: list[LayoutPrimitive] = [] if first == sorted(first) else [ReorderDims(tuple(first))]
    if order != sorted(order):
        primitives += [*splits, ReorderDims(tuple(order))]
    return Layout(tuple(primitives))

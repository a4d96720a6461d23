"""The tile of a tensor intrinsic is cut out of a block's loops, and becomes it.

    for i, j, k: C(…)                 for i_0, j_0:
                          ─────>          for …: C_init(…)                         unrolled, in vectors
    for i, j: store(…)                    for k, i_1, j_1: C(…)                    the intrinsic
                                          for …: store(…)                          unrolled, in vectors

Reductions that the intrinsic does not do are loops around it, inside the tiles: the tile stays in registers through all
of them.
"""

import itertools
import math
from dataclasses import dataclass

from tilewright.cost.caches import l2_room
from tilewright.cost.register_tile import UNROLL, tile_step
from tilewright.families.gemm.register_tile import loops_of
from tilewright.families.parallel import ask_ahead, is_worth_sharing, parallel_prefix, parallel_runs
from tilewright.families.tensor.block import RoleAxis, TensorBlock, is_all_free
from tilewright.ir.expr import Buffer, Indices, Load, Scope, Var, free_vars, loads
from tilewright.schedule.find import find_block, find_loop, loops_above
from tilewright.schedule.steps.add_unit_loop import AddUnitLoop
from tilewright.schedule.steps.decompose_reduction import DecomposeReduction
from tilewright.schedule.steps.loop_kind import Unroll, Vectorize
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.reverse_compute_at import ReverseComputeAt
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.tensorize import Tensorize
from tilewright.target.machine import SHIPPED
from tilewright.tir.stmt import Block, For, IterKind, LoopKind

_REGISTERS = 16  # vector registers that every target has; given


@dataclass(frozen=True, slots=True)
class _Nest:
    """The loops of the block, each list from the outermost in."""

    spatial: list[str]  # around the tiles, with the tiles themselves
    reduce: list[str]  # around the intrinsic, inside the tiles
    copies: list[str]  # of the intrinsic that run side by side, unrolled
    steps: list[str]  # of the intrinsic's reduction
    tile: list[str]  # of the intrinsic's part of the output


class TensorTile:
    def __init__(self, block: TensorBlock, axes: tuple[RoleAxis, ...], epilogue: str) -> None:
        self._b, self._axes, self._epilogue = block, axes, epilogue

    def run(self) -> None:
        self._tile(self._nest(self._axes), self._epilogue)

    def _nest(self, axes: tuple[RoleAxis, ...]) -> _Nest:
        """Cut the groups into tiles."""
        grouped = {n for a in axes for n in a.iters}
        block = self._b.block
        loops = {v.name: loop for v, loop in loops_of(block).items()}
        left = [it for it in block.iters if it.var.name not in grouped]
        nest = _Nest(
            [loops[it.var.name] for it in left if it.kind is IterKind.SPATIAL],
            [loops[it.var.name] for it in left if it.kind is IterKind.REDUCE],
            [],
            [],
            [],
        )
        spatial = [g for g in self._b.mapping.groups if g.role.kind is IterKind.SPATIAL]
        if all(g.padded == g.role.tile or is_all_free(g) for g in spatial) and not nest.spatial:
            nest.spatial.append(self._b.schedule.apply(AddUnitLoop(self._b.name)).loop)
        for a in axes:
            is_spatial = a.group.role.kind is IterKind.SPATIAL
            tiles, inside = self._cut(a, [loops[n] for n in a.iters])
            (nest.spatial if is_spatial else nest.reduce).extend(tiles)
            (nest.tile if is_spatial else nest.steps).extend(inside)
        if self._b.intrinsic.emitter is not None:
            self._repeat(nest)
        return nest

    def _repeat(self, nest: _Nest) -> None:
        """Let a single instruction run on several accumulators in turn: each waits for its last result.

        The last two loops around the tiles become a block of rows and vectors; that is the one whose steps are the
        quickest of those that divide them.
        """
        rows, vectors = ["", "", *nest.spatial][-2:]
        extents = [find_loop(self._b.func, n).extent if n else 1 for n in (rows, vectors)]
        fitting = [
            (float(tile_step(SHIPPED, r, v)) / (r * v), r, v)
            for r, v in itertools.product(*([d for d in range(1, 9) if n % d == 0] for n in extents))
            if r * v + v + 1 <= _REGISTERS
        ]
        _, r, v = min(fitting)
        for name, factor in ((rows, r), (vectors, v)):
            if factor > 1:
                outer, inner = self._b.schedule.apply(Split(name, (None, factor))).names
                nest.spatial[nest.spatial.index(name)] = outer
                nest.copies.append(inner)

    def _cut(self, axis: RoleAxis, loops: list[str]) -> tuple[list[str], list[str]]:
        """The loops that count tiles of a group, and those inside a tile."""
        role = axis.group.role
        if is_all_free(axis.group):
            return [], loops
        fixed = [n.extent for n in role.loops if n.var not in role.free and n.extent > 1]
        whole = axis.group.padded == role.tile
        if not fixed:
            return loops, []
        if whole and len(fixed) == 1:
            return [], loops
        (loop,) = loops
        names = self._b.schedule.apply(Split(loop, tuple(fixed) if whole else (None, *fixed))).names
        return ([], list(names)) if whole or role.free else (list(names[:1]), list(names[1:]))

    def _tile(self, nest: _Nest, epilogue: str) -> None:
        is_shared = is_worth_sharing(self._lanes(), self._b.block)
        is_far = self._is_read_once(nest.spatial)
        self._b.schedule.apply(Reorder((*nest.spatial, *nest.reduce, *nest.copies, *nest.steps, *nest.tile)))
        self._b.schedule.apply(ReverseComputeAt(epilogue, nest.spatial[-1]))
        reduce = (*nest.reduce, *nest.steps)
        if self._b.block.init is not None:
            init = self._b.schedule.apply(DecomposeReduction(self._b.name, reduce[0])).name
            self._write_out(init)
        self._write_out(epilogue)
        for n in nest.copies:
            self._b.schedule.apply(Unroll(n))
        self._unroll(nest)
        inside = (*nest.steps, *nest.tile)
        self._b.schedule.apply(Tensorize(inside[0] if inside else self._b.name, self._b.intrinsic.name))
        if is_shared:
            self._share(tuple(nest.spatial), is_far=is_far)

    def _unroll(self, nest: _Nest) -> None:
        """Write out a few steps of a free reduction."""
        if not self._b.intrinsic.free or not nest.steps:
            return
        size = math.prod(find_loop(self._b.func, n).extent for n in nest.tile) // self._lanes()
        extent = find_loop(self._b.func, nest.steps[-1]).extent
        factor = max((u for u in (2, 4, 8) if extent % u == 0 and u * size <= UNROLL), default=1)
        if 1 < factor < extent:
            outer, inner = self._b.schedule.apply(Split(nest.steps[-1], (None, factor))).names
            self._b.schedule.apply(Unroll(inner))
            nest.steps[-1:] = [outer, inner]

    def _share(self, loops: tuple[str, ...], *, is_far: bool) -> None:
        """Divide the tiles among workers; several to a part, if what they read comes from afar for each alone."""
        if not is_far:
            parallel_prefix(self._b.schedule, loops)
            return
        tiles = parallel_runs(self._b.schedule, loops)
        if tiles is not None:
            ask_ahead(self._b.schedule, tiles)

    def _is_read_once(self, around: list[str]) -> bool:
        """Does an operand come from beyond the second-level cache, each element of it for one tile? No hardware
        foresees rows that are read side by side.
        """
        block, store = self._b.block, self._b.store
        loops = {Var(n) for n in around}
        bound = dict(zip((it.var for it in block.iters), map(free_vars, block.bindings), strict=True))

        def moved_by(indices: Indices) -> set[Var]:
            return {v for i in indices for u in free_vars(i) for v in bound[u]} & loops

        wanted = moved_by(store.indices)
        return Var(around[-1]) in wanted and any(
            ld.buffer.bytes > l2_room(SHIPPED) and moved_by(ld.indices) >= wanted
            for ld in loads(store.value)
            if ld.buffer is not store.buffer
        )

    def _write_out(self, name: str) -> None:
        """Init and store of a tile: rows unrolled, columns in vectors, as registers are addressed."""
        block = find_block(self._b.func, name)
        buffer = self._b.store.buffer
        if buffer.scope is not Scope.REGISTER:
            return
        last = _last_index(block, buffer)
        own = [n for n in loops_above(self._b.func, block) if n.var.name not in self._around()]
        feeding = [b for it, b in zip(block.iters, block.bindings, strict=True) if it.var in last]
        columns = {n.var.name for n in own if any(n.var in free_vars(b) for b in feeding)}
        order = sorted(own, key=lambda n: n.var.name in columns)
        if len(order) > 1:
            self._b.schedule.apply(Reorder(tuple(n.var.name for n in order)))
        for n in order:
            if n is order[-1] and n.var.name in columns and n.extent > 1:
                self._in_vectors(n)
            elif n.extent > 1:
                self._b.schedule.apply(Unroll(n.var.name))

    def _around(self) -> set[str]:
        return {n.var.name for n in loops_above(self._b.func, self._b.block)}

    def _in_vectors(self, loop: For) -> None:
        lanes = self._lanes()
        name = loop.var.name
        if loop.extent > lanes:
            outer, name = self._b.schedule.apply(Split(name, (None, lanes))).names
            self._b.schedule.apply(Unroll(outer))
        self._b.schedule.apply(Vectorize(name))

    def _lanes(self) -> int:
        """The width of the vectors that the intrinsic has its columns in."""
        last = self._b.dims(0)[-1]
        for part in self._b.intrinsic.body or ():
            if part.loop == last.name and part.kind is LoopKind.VECTORIZED and part.extent is not None:
                return part.extent
        return next(n.extent for n in self._b.intrinsic.loops if n.var is last)


def _last_index(block: Block, buffer: Buffer) -> set[Var]:
    """The iterators in the last index at which a block reaches `buffer`."""
    store = block.store
    reached = [Load(store.buffer, store.indices), *loads(store.value)]
    return set[Var]().union(*(free_vars(ld.indices[-1]) for ld in reached if ld.buffer is buffer))

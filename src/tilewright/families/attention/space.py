"""The rule for attention: how many rows go through both contractions together, with all keys or with how many at a
time, and the register tiles of each contraction.

A point with no rows keeps the contractions apart: each is scheduled as if it were alone, and so are the rows between
them. That is for chains whose blocks cannot be moved, and where a block of rows would cost more than it saves. Of few
rows and many keys, as in decoding, values may be summed up in chunks of keys then, so that each comes from memory once.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.caches import l2_room
from tilewright.cost.parallel import evenly, ranked_seconds
from tilewright.cost.register_tile import UNROLL
from tilewright.cost.stream import pass_seconds
from tilewright.families.attention.cost import Between, panels_seconds, scaling_seconds, strips_seconds
from tilewright.families.attention.recipe import (
    AttentionChain,
    ChainPlan,
    ContractionTilePlan,
    schedule_chain,
    schedule_rows_apart,
    try_attention_chain,
)
from tilewright.families.extract import extract_nests
from tilewright.families.family import ScheduleRequest
from tilewright.families.gemm.cost import Choices, Form, contraction_seconds
from tilewright.families.gemm.recipe import Contraction, load_strides, reduction_order, strides_along
from tilewright.families.gemm.space import gemm_space, tile_sizes
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.families.split_k.recipe import divide_reduction
from tilewright.schedule.draft import Draft
from tilewright.schedule.hidden import masked_nest, seen_more
from tilewright.schedule.reduction_chain import ReductionChain, find_chain
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.stmt import blocks

# Bound: what is tried.
_BLOCKS = (12, 16, 24, 32, 48, 64, 96, 128)  # rows, about
_KEYS = (128, 192, 256, 384, 512)  # keys of a block
_ACCUMULATORS = 4  # vectors, counted: as many as cover the latency of an addition
_BEST = 4  # tiles of each contraction that are points
_FEW_ROWS = 16  # rows that read values in strips
_TILE_KNOBS = ("rows", "vectors", "pack", "columns_outside")
_KNOBS = ("block", "keys", *(f"{which}_{name}" for which in ("first", "second") for name in _TILE_KNOBS))
_TILE_SIZES = [n for n, name in enumerate(_KNOBS) if name.endswith(("rows", "vectors"))]
_FLAGS = [n for n, name in enumerate(_KNOBS) if name.endswith(("pack", "columns_outside"))]


class AttentionSpace(Space):
    family = "attention"

    def __init__(self, start: Draft, chain: AttentionChain, request: ScheduleRequest) -> None:
        self._start, self._chain, self._request = start, chain, request
        self._target, self._constants = request.target, request.constants
        self._seconds_apart: dict[int, float] = {}
        self._points = self._best_points()
        self.knobs = tuple(
            Knob(name, tuple(int(v) for v in np.unique(self._points[:, n]))) for n, name in enumerate(_KNOBS)
        )

    def points(self) -> Points:
        return self._points

    def has_point(self, point: NDArray[np.int64]) -> bool:
        """All tiles that fit; `points` are the best of them."""
        block, keys = int(point[0]), int(point[1])
        if not block:
            return not point[2:].any() and keys in (0, *self._divided())
        if (
            block not in self._blocks()
            or keys not in self._keys()
            or (point[_FLAGS] > 1).any()
            or (point < 0).any()
        ):
            return False
        return bool(np.isfinite(self.cost(point[None, :]))[0])

    def cost(self, points: Points) -> Costs:
        out = np.full(len(points), inf)
        is_tiled = (points[:, _TILE_SIZES] > 0).all(
            axis=1
        )  # a child of both apart and of a tile may have neither
        for block, keys in np.unique(points[:, :2], axis=0):
            here = np.flatnonzero(
                (points[:, 0] == block) & (points[:, 1] == keys) & (is_tiled | (block == 0))
            )
            out[here] = (
                self._together(int(block), int(keys), points[here]) if block else self._apart(int(keys))
            )
        return out

    def build(self, decisions: KnobValues) -> Draft:
        s = self._start.branch()
        names = {b.name for b in blocks(s.func.body)}
        if decisions["block"]:
            first, second = (self._tile_plan(decisions, which) for which in ("first", "second"))
            skip = decisions["keys"] > 0 and self._hidden is not None
            plan = ChainPlan(decisions["block"], decisions["keys"], skip, first, second, _ACCUMULATORS)
            schedule_chain(s, self._chain, plan, self._target)
        else:
            runs = [set(part) for part in self._chain.gemms]
            if decisions["keys"]:
                runs.insert(1, {self._divide(s, decisions["keys"])})
            for run in runs:
                for step in self._request.alone(extract_nests(s.func, run)).trace:
                    s.apply(step)
            schedule_rows_apart(s, self._chain, _ACCUMULATORS, self._target)
        schedule_rest(s, names, self._target)
        return s

    def _divide(self, s: Draft, keys: int) -> str:
        """Sum up chunks of keys apart: the block that does. Workers share them, where there are few rows and heads."""
        c = self._chain.second
        return divide_reduction(s, c.block.name, c.reduce[-1], c.reduce[-1].extent // keys)

    def _tile_plan(self, decisions: KnobValues, which: str) -> ContractionTilePlan:
        rows, vectors, pack, outside = (decisions[f"{which}_{name}"] for name in _TILE_KNOBS)
        width = vectors * self._target.lanes(self._chain.first.b.dtype.bytes)
        return ContractionTilePlan(RegisterTile(rows, width), UNROLL, bool(pack), bool(outside))

    # ---------------------------------------------------------------------------------------------------------- costs

    def _best_points(self) -> Points:
        """The best tiles of either contraction for each size of blocks, in all combinations; and both apart."""
        apart = np.zeros((1 + len(self._divided()), len(_KNOBS)), np.int64)
        apart[1:, 1] = self._divided()
        found: list[Points] = []
        for block, keys in product(self._blocks(), self._keys()):
            one, two = (t.best(_BEST) for t in self._tiled(block, keys))
            grid = np.array([(block, keys, *p, *q) for p in one for q in two], np.int64)
            found.append(grid.reshape(-1, len(_KNOBS)))
        return np.concatenate([*found, apart])

    def _blocks(self) -> list[int]:
        """DimSizes of equal blocks, or of about equal ones where few divide: what is left is code of its own. A row by
        itself would have no loop.
        """
        if not self._chain.is_movable:
            return []
        rows = self._chain.second.rows[-1].extent
        sizes = {-(-rows // -(-rows // n)) for n in _BLOCKS}
        even = sorted(n for n in sizes if rows % n == 0)
        return even if len(even) > 1 else sorted(n for n in sizes if rows % n != 1)

    def _keys(self) -> list[int]:
        """0, for all together; and sizes of blocks, of which there are at least two."""
        return (
            [0] if self._reductions is None else [0, *(n for n in _KEYS if 2 * n <= self._reductions.extent)]
        )

    @cached_property
    def _reductions(self) -> ReductionChain | None:
        """What can be done for blocks of keys, if it can."""
        try:
            return find_chain(self._start.func, self._chain.second.block.name)
        except ScheduleError:
            return None

    @cached_property
    def _hidden(self) -> int | None:
        """How many keys more than its own number a row sees, if it sees none of those that follow."""
        scores = None if self._reductions is None else masked_nest(self._reductions)
        return None if scores is None else seen_more(scores, self._chain.second.rows[-1].extent)

    def _seen(self, block: int, keys: int) -> float:
        """The share of blocks of scores of which any is seen."""
        if not keys or self._hidden is None or self._reductions is None:
            return 1.0
        last = np.arange(block, self._chain.second.rows[-1].extent + block, block) - 1 + self._hidden
        every = -(-self._reductions.extent // keys)
        return float(np.minimum(last // keys + 1, every).mean()) / every

    def _tiled(self, block: int, keys: int) -> "tuple[_Tiled, _Tiled]":
        one, two, target = self._chain.first, self._chain.second, self._target
        at_a_time = keys or one.cols[-1].extent
        row_bytes = at_a_time * block * one.b.dtype.bytes
        return (
            _Tiled(one, True, block, keys, one.a.buffer.size, one.b.buffer.name in self._constants, target),
            _Tiled(two, False, block, keys, row_bytes, two.b.buffer.name in self._constants, target),
        )

    def _together(self, block: int, keys: int, points: Points) -> Costs:
        first, second = self._tiled(block, keys)
        scores = self._chain.first.store.buffer
        kept = block * (keys or scores.shape[-1])
        again = 0.0
        if keys:
            again = scaling_seconds(
                scores.size // scores.shape[-1], -(-scores.shape[-1] // keys), self._target.machine
            )
        alone = self._seen(block, keys) * (
            self._between(kept, is_apart=False)
            + again
            + first.seconds(points[:, 2:6])
            + second.seconds(points[:, 6:10])
        )
        m, c = self._target.machine, self._chain.second
        if m.threads == 1:
            return alone
        blocks_of_rows = -(-c.rows[-1].extent // block)
        return ranked_seconds(
            alone, float(blocks_of_rows * prod(it.extent for it in (*c.batch, *c.rows[:-1]))), m
        )

    def _divided(self) -> list[int]:
        """Keys of chunks that are summed up apart: equal ones, of values that no near cache holds from one strip of
        columns to the next, and of few rows, which would read all of them again.
        """
        c = self._chain.second
        if len(c.reduce) != 1 or not c.rows or c.rows[-1].extent > _FEW_ROWS or not self._is_far:
            return []
        return [n for n in _KEYS if c.reduce[0].extent % n == 0 and 2 * n <= c.reduce[0].extent]

    @cached_property
    def _is_far(self) -> bool:
        b = self._chain.second.b
        heads = prod(it.extent for it in self._chain.second.batch)
        return b.buffer.bytes > heads * l2_room(self._target.machine)

    def _apart(self, keys: int) -> float:
        """The cheapest schedules of both, and all rows written and read between them."""
        if keys not in self._seconds_apart:
            between = self._between(self._chain.first.store.buffer.size, is_apart=True)
            total = evenly(between, self._target.machine)
            s, runs = self._start.branch(), [set(part) for part in self._chain.gemms]
            if keys:
                runs[1] = {self._divide(s, keys)}
                total += self._adding(keys)
            elif self._is_far:
                total += evenly(
                    strips_seconds(self._chain.second.b.buffer.bytes, self._target.machine),
                    self._target.machine,
                )
            for run in runs:
                space = gemm_space(replace(self._request, func=extract_nests(s.func, run)))
                total += float(space.ranked()[1][0]) if space is not None else inf
            self._seconds_apart[keys] = total
        return self._seconds_apart[keys]

    def _adding(self, keys: int) -> float:
        """Adding up the sums of chunks."""
        c, m = self._chain.second, self._target.machine
        count = c.reduce[0].extent // keys
        return evenly(pass_seconds(2 * count * c.store.buffer.bytes, m), m) + m.meeting_seconds

    def _between(self, kept: int, *, is_apart: bool) -> float:
        rows = self._chain.first.store.buffer
        kept_bytes = 2 * kept * rows.dtype.bytes  # scores and powers
        return Between(rows.size, rows.dtype.bytes, kept_bytes, is_apart).seconds(self._target)


@dataclass(frozen=True, slots=True)
class _Tiled:
    """One of the contractions, block of rows by block of rows."""

    c: Contraction
    is_first: bool
    block: int
    keys: int  # in a block of them; 0: all
    a_elements: int  # that are read again from one block to the next
    is_packed: bool  # at compile time, if it is
    target: Target

    def best(self, count: int) -> Points:
        """The cheapest tiles, by rows, vectors, packing and order."""
        sizes = tile_sizes(self.target.vector_registers)
        grid = np.array([(*t, p, o) for t in sizes for p in (0, 1) for o in (0, 1)], np.int64)
        grid = grid[grid[:, 0] <= self.block]
        costs = self.seconds(grid)
        order = np.argsort(costs, kind="stable")[:count]
        return grid[order[np.isfinite(costs[order])]]

    def seconds(self, points: Points) -> Costs:
        """Of tiles by rows, vectors, packing and order."""
        rows, vectors, pack, outside = points.T
        total = np.zeros(len(points))
        extent = self.c.rows[-1].extent
        n = np.zeros(len(points), np.int64)
        for (size, count), (keys, times) in product(_parts(extent, self.block), self._keys()):
            choices = Choices(
                np.minimum(rows, size), vectors, n > 0, pack > 0, outside > 0, n, np.full_like(n, UNROLL)
            )
            total += contraction_seconds(self._form(size, count * times, keys), choices, self.target)
        if self.is_first and self.keys:  # panels do not cross from one block into the next
            total[self.keys % (vectors * self.target.lanes(self.c.b.dtype.bytes)) != 0] = inf
        if not self.is_packed:
            transposed = strides_along(self.c.b, self.c.block, self.c.cols[-1:]) != 1
            total += pack * panels_seconds(
                self.c.b.buffer.size, self.c.b.dtype.bytes, transposed, self.target.machine
            )
        return total

    def _keys(self) -> list[tuple[int, int]]:
        extent = self.c.cols[-1].extent if self.is_first else prod(it.extent for it in self.c.reduce)
        return _parts(extent, self.keys or extent)

    def _form(self, rows: int, count: int, keys: int) -> Form:
        c, order = self.c, reduction_order(self.c)
        cols = keys if self.is_first else c.cols[-1].extent
        a_steps, b_steps = load_strides(c.a, c.block), load_strides(c.b, c.block)
        return Form(
            batch=prod(it.extent for it in (*c.batch, *c.rows[:-1])) * count,
            other_rows=1,
            rows=rows,
            cols=cols,
            k=prod(it.extent for it in c.reduce) if self.is_first else keys,
            k_inner=order[-1].extent if self.is_first else min(order[-1].extent, keys),
            a_row_step=strides_along(c.a, c.block, c.rows[-1:]),
            a_k_step=min(abs(a_steps.get(it.var, 0)) for it in order),
            b_col_step=strides_along(c.b, c.block, c.cols[-1:]),
            b_k_step=max(abs(b_steps.get(it.var, 0)) for it in order),
            out_col_step=1,
            out_row_step=cols,
            a_constant=False,
            b_constant=True,  # what packing costs does not depend on blocks
            a_elements=self.a_elements,
            b_elements=c.b.buffer.size,
            bytes_each=c.b.dtype.bytes,
            epilogue_loads=2 if self.keys and not self.is_first else 1,
        )


def _parts(extent: int, size: int) -> list[tuple[int, int]]:
    """Blocks of this size and what is left over: the size of each, and how many there are."""
    return [(n, count) for n, count in ((size, extent // size), (extent % size, 1)) if n and count]


def attention_space(request: ScheduleRequest) -> AttentionSpace | None:
    """The space of a Func that is a chain of two contractions."""
    start = request.plain
    chain = None if start is None else try_attention_chain(start.func)
    return None if start is None or chain is None else AttentionSpace(start, chain, request)

"""The rule for chains of contractions: how many rows go through all of it together, with all keys or with how many at a
time, and the register tiles of each contraction.

A point with no rows keeps the contractions apart: each is scheduled as if it were alone, and so are the rows between
them. That is for chains whose blocks cannot be moved, and where a block of rows would cost more than it saves. Of few
rows and many keys, as in decoding, values may be summed up in chunks of keys then, so that each comes from memory once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.caches import l2_room
from tilewright.cost.parallel import evenly, ranked_seconds, ranked_terms
from tilewright.cost.register_tile import UNROLL
from tilewright.cost.stream import pass_seconds, pass_term, stream_term
from tilewright.cost.terms import Amounts, Ledger, Terms, gathered, only, scaled
from tilewright.families.chain.cost import (
    RowsBetween,
    panels_seconds,
    scaling_seconds,
    strips_seconds,
)
from tilewright.families.chain.match import ContractionChain, try_contraction_chain
from tilewright.families.chain.recipe import ChainPlan, ContractionTilePlan, schedule_chain
from tilewright.families.extract import extract_nests
from tilewright.families.family import ScheduleRequest
from tilewright.families.gemm.cost import Choices, Form, contraction_seconds, contraction_terms
from tilewright.families.gemm.recipe import Contraction, load_strides, reduction_order, strides_along
from tilewright.families.gemm.space import gemm_space, tile_sizes
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.families.split_k.recipe import divide_reduction
from tilewright.families.stream.match import try_flow_graph
from tilewright.families.stream.space import stream_space
from tilewright.gir.flow_graph import FlowGraph
from tilewright.schedule.draft import Draft
from tilewright.schedule.hidden import masked_nest, seen_more
from tilewright.schedule.reduction_chain import ReductionChain, find_chain
from tilewright.support.arrays import IntArray
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.stmt import blocks

# Bound: what is tried.
_BLOCKS = (12, 16, 24, 32, 48, 64, 96, 128)  # rows, about
_KEYS = (128, 192, 256, 384, 512)  # keys of a block
_BEST = 4  # tiles of each contraction that are points
_FEW_ROWS = 16  # rows that read values in strips
_WHICH = ("first", "second")  # contraction
_TILE_KNOBS = ("rows", "vectors", "pack", "columns_outside")


class ChainSpace(Space):
    family = "chain"

    def __init__(self, start: Draft, found: ContractionChain, request: ScheduleRequest) -> None:
        self._start, self._chain, self._request = start, found, request
        self._target, self._constants = request.target, request.constants
        self._seconds_apart: dict[int, float] = {}
        self._terms_apart: dict[int, Amounts] = {}
        which = _WHICH[: len(found.contractions)]
        self._names = ("block", "keys", *(f"{w}_{name}" for w in which for name in _TILE_KNOBS))
        self._sizes = [n for n, name in enumerate(self._names) if name.endswith(("rows", "vectors"))]
        self._flags = [n for n, name in enumerate(self._names) if name.endswith(("pack", "outside"))]
        self._points = self._best_points()
        self.knobs = tuple(
            Knob(name, tuple(int(v) for v in np.unique(self._points[:, n])))
            for n, name in enumerate(self._names)
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
            or (point[self._flags] > 1).any()
            or (point < 0).any()
        ):
            return False
        return bool(np.isfinite(self.cost(point[None, :]))[0])

    def cost(self, points: Points) -> Costs:
        out = np.full(len(points), inf)
        for block, keys, here in self._groups(points):
            out[here] = self._together(block, keys, points[here]) if block else self._apart(keys)
        return out

    def terms(self, points: Points) -> Terms:
        found: list[tuple[IntArray, Amounts]] = []
        for block, keys, here in self._groups(points):
            own = self._together_terms(block, keys, points[here]) if block else self._apart_terms(keys)
            found.append((here, own))
        return gathered(len(points), found)

    def _groups(self, points: Points) -> Iterator[tuple[int, int, IntArray]]:
        """Those that there may be: rows and keys of blocks, and where they are."""
        # A child of both apart and of a tile may have neither, or keys that do not divide what is apart.
        is_tiled = (points[:, self._sizes] > 0).all(axis=1)
        apart = (0, *self._divided())
        for block, keys in np.unique(points[:, :2], axis=0).tolist():
            if not block and keys not in apart:
                continue
            is_here = (points[:, 0] == block) & (points[:, 1] == keys) & (is_tiled | (block == 0))
            yield block, keys, np.flatnonzero(is_here)

    def build(self, decisions: KnobValues) -> Draft:
        s = self._start.branch()
        names = {b.name for b in blocks(s.func.body)}
        if decisions["block"]:
            which = _WHICH[: len(self._chain.contractions)]
            tiles = tuple(self._tile_plan(decisions, w) for w in which)
            skip = decisions["keys"] > 0 and self._hidden is not None
            plan = ChainPlan(decisions["block"], decisions["keys"], skip, tiles)
            schedule_chain(s, self._chain, plan, self._target)
        else:
            runs = [set(part) for part in self._chain.gemms]
            if decisions["keys"]:
                runs.insert(1, {self._divide(s, decisions["keys"])})
            if self._chain.between:
                runs.append(set(self._chain.between))
            for run in runs:
                for step in self._request.alone(extract_nests(s.func, run)).trace:
                    s.apply(step)
        schedule_rest(s, names, self._target)
        return s

    def _divide(self, s: Draft, keys: int) -> str:
        """Sum up chunks of keys apart: the block that does. Workers share them, where there are few rows and heads."""
        c = self._chain.end
        return divide_reduction(s, c.block.name, c.reduce[-1], c.reduce[-1].extent // keys)

    def _tile_plan(self, decisions: KnobValues, which: str) -> ContractionTilePlan:
        rows, vectors, pack, outside = (decisions[f"{which}_{name}"] for name in _TILE_KNOBS)
        width = vectors * self._target.lanes(self._chain.first.b.dtype.bytes)
        return ContractionTilePlan(RegisterTile(rows, width), UNROLL, bool(pack), bool(outside))

    # ---------------------------------------------------------------------------------------------------------- costs

    def _best_points(self) -> Points:
        """The best tiles of each contraction for each size of blocks, in all combinations; and all apart."""
        apart = np.zeros((1 + len(self._divided()), len(self._names)), np.int64)
        apart[1:, 1] = self._divided()
        found: list[Points] = []
        for block, keys in product(self._blocks(), self._keys()):
            best = [t.best(_BEST).tolist() for t in self._tiled(block, keys)]
            grid = np.array(
                [(block, keys, *chain.from_iterable(tiles)) for tiles in product(*best)], np.int64
            )
            found.append(grid.reshape(-1, len(self._names)))
        return np.concatenate([*found, apart])

    def _blocks(self) -> list[int]:
        """DimSizes of equal blocks, or of about equal ones where few divide: what is left is code of its own. A row by
        itself would have no loop.
        """
        if not self._chain.is_movable:
            return []
        rows = self._chain.end.rows[-1].extent
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
        if len(self._chain.contractions) < 2:
            return None
        try:
            return find_chain(self._start.func, self._chain.end.block.name)
        except ScheduleError:
            return None

    @cached_property
    def _hidden(self) -> int | None:
        """How many keys more than its own number a row sees, if it sees none of those that follow."""
        scores = None if self._reductions is None else masked_nest(self._reductions)
        return None if scores is None else seen_more(scores, self._chain.end.rows[-1].extent)

    def _seen(self, block: int, keys: int) -> float:
        """The share of blocks of scores of which any is seen."""
        if not keys or self._hidden is None or self._reductions is None:
            return 1.0
        last = np.arange(block, self._chain.end.rows[-1].extent + block, block) - 1 + self._hidden
        every = -(-self._reductions.extent // keys)
        return float(np.minimum(last // keys + 1, every).mean()) / every

    def _tiled(self, block: int, keys: int) -> "list[_Tiled]":
        first, target = self._chain.first, self._target
        row_bytes = (keys or first.cols[-1].extent) * block * first.b.dtype.bytes
        return [
            _Tiled(
                c,
                c is first,
                block,
                keys,
                first.a.buffer.size if c is first else row_bytes,
                c.b.buffer.name in self._constants,
                target,
            )
            for c in self._chain.contractions
        ]

    def _together(self, block: int, keys: int, points: Points) -> Costs:
        alone = self._blocks_seconds(block, keys, points) * self._seen(block, keys)
        m = self._target.machine
        return alone if m.threads == 1 else ranked_seconds(alone, self._parts(block), m)

    def _together_terms(self, block: int, keys: int, points: Points) -> Amounts:
        """What these seconds are made of."""
        m, told = self._target.machine, Ledger()
        self._blocks_seconds(block, keys, points, told)
        alone = scaled(told.terms, self._seen(block, keys))
        return alone if m.threads == 1 else ranked_terms(alone, self._parts(block), m)

    def _parts(self, block: int) -> float:
        c = self._chain.end
        blocks_of_rows = -(-c.rows[-1].extent // block)
        return float(blocks_of_rows * prod(it.extent for it in (*c.batch, *c.rows[:-1])))

    def _blocks_seconds(self, block: int, keys: int, points: Points, told: Ledger | None = None) -> Costs:
        """Of all blocks of rows and keys on one core, as if all were seen. `told` is told what they are made of."""
        scores = self._chain.first.store.buffer
        kept = block * (keys or scores.shape[-1])
        alone = np.full(len(points), self._between.seconds(2 * kept * scores.dtype.bytes, told))
        if keys:
            scaling = scaling_seconds(
                scores.size // scores.shape[-1], -(-scores.shape[-1] // keys), self._target.machine
            )
            alone += scaling
            if told is not None:
                told.add("beside", scaling)
        knobs = len(_TILE_KNOBS)
        for n, tiled in enumerate(self._tiled(block, keys)):
            alone += tiled.seconds(points[:, 2 + n * knobs : 2 + (n + 1) * knobs], told)
        return alone

    @cached_property
    def _between(self) -> RowsBetween:
        rows = self._chain.first.store.buffer
        return RowsBetween(rows.size, rows.dtype.bytes, self._rows_graph, self._target)

    @cached_property
    def _rows_graph(self) -> FlowGraph | None:
        """What happens to rows between, where that is one flow graph."""
        if not self._chain.between:
            return None
        return try_flow_graph(extract_nests(self._start.func, set(self._chain.between)))

    def _divided(self) -> list[int]:
        """Keys of chunks that are summed up apart: equal ones, of values that no near cache holds from one strip of
        columns to the next, and of few rows, which would read all of them again.
        """
        c = self._chain.end
        if len(self._chain.contractions) < 2 or len(c.reduce) != 1 or not self._is_far:
            return []
        if not c.rows or c.rows[-1].extent > _FEW_ROWS:
            return []
        return [n for n in _KEYS if c.reduce[0].extent % n == 0 and 2 * n <= c.reduce[0].extent]

    @cached_property
    def _is_far(self) -> bool:
        b = self._chain.end.b
        heads = prod(it.extent for it in self._chain.end.batch)
        return b.buffer.bytes > heads * l2_room(self._target.machine)

    def _apart(self, keys: int) -> float:
        if keys not in self._seconds_apart:
            self._seconds_apart[keys] = self._apart_seconds(keys)
        return self._seconds_apart[keys]

    def _apart_terms(self, keys: int) -> Amounts:
        """What these seconds are made of."""
        if keys not in self._terms_apart:
            told = Ledger()
            self._apart_seconds(keys, told)
            self._terms_apart[keys] = told.terms
        return self._terms_apart[keys]

    def _apart_seconds(self, keys: int, told: Ledger | None = None) -> float:
        """The cheapest schedules of all, and all rows written and read between them. `told` is told what they are made
        of.
        """
        m, far = self._target.machine, self._chain.end.b.buffer.bytes
        s, runs = self._start.branch(), [set(part) for part in self._chain.gemms]
        total = self._rows_apart + len(runs) * m.meeting_seconds
        if told is not None:
            told.add("beside", self._rows_apart)
            told.add("team", len(runs) * m.meeting_seconds)
        if keys:
            runs[1] = {self._divide(s, keys)}
            total += self._adding(keys, told)
        elif self._is_far:
            strips = evenly(strips_seconds(far, m), m)
            total += strips
            if told is not None:
                told.add(stream_term(far, m), strips)
        for run in runs:
            space = gemm_space(replace(self._request, func=extract_nests(s.func, run)))
            if space is None:
                return inf
            best, costs = space.ranked()
            total += float(costs[0])
            if told is not None:
                told.add_all(only(space.terms(best[:1])))
        return total

    @cached_property
    def _rows_apart(self) -> float:
        """What happens to all rows, in kernels of its own."""
        m, between = self._target.machine, self._between
        if not self._chain.between:
            return 0.0
        alone = replace(
            self._request, func=extract_nests(self._start.func, set(self._chain.between)), limit=inf
        )
        space = stream_space(alone)
        if space is None:
            return evenly(between.seconds(2 * between.elements * between.bytes_each), m)
        return float(space.ranked()[1][0])

    def _adding(self, keys: int, told: Ledger | None) -> float:
        """Adding up the sums of chunks."""
        c, m = self._chain.end, self._target.machine
        nbytes = 2 * (c.reduce[0].extent // keys) * c.store.buffer.bytes
        passed = evenly(pass_seconds(nbytes, m), m)
        if told is not None:
            told.add(pass_term(nbytes, m), passed)
            told.add("team", m.meeting_seconds)
        return passed + m.meeting_seconds


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

    def seconds(self, points: Points, told: Ledger | None = None) -> Costs:
        """Of tiles by rows, vectors, packing and order. `told` is told what they are made of."""
        rows, vectors, pack, outside = points.T
        total = np.zeros(len(points))
        extent = self.c.rows[-1].extent
        n = np.zeros(len(points), np.int64)
        for (size, count), (keys, times) in product(_parts(extent, self.block), self._keys()):
            choices = Choices(
                np.minimum(rows, size), vectors, n > 0, pack > 0, outside > 0, n, np.full_like(n, UNROLL)
            )
            form = self._form(size, count * times, keys)
            total += contraction_seconds(form, choices, self.target)
            if told is not None:
                told.add_all(contraction_terms(form, choices, self.target))
        if self.is_first and self.keys:  # panels do not cross from one block into the next
            total[self.keys % (vectors * self.target.lanes(self.c.b.dtype.bytes)) != 0] = inf
        if not self.is_packed:
            transposed = strides_along(self.c.b, self.c.block, self.c.cols[-1:]) != 1
            packing = pack * panels_seconds(
                self.c.b.buffer.size, self.c.b.dtype.bytes, transposed, self.target.machine
            )
            total += packing
            if told is not None:
                told.add("copies", packing)
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
            lane_bytes=c.b.dtype.bytes,
            epilogue_loads=2 if self.keys and not self.is_first else 1,
        )


def _parts(extent: int, size: int) -> list[tuple[int, int]]:
    """Blocks of this size and what is left over: the size of each, and how many there are."""
    return [(n, count) for n, count in ((size, extent // size), (extent % size, 1)) if n and count]


def chain_space(request: ScheduleRequest) -> ChainSpace | None:
    """The space of a Func that is a chain of contractions."""
    start = request.plain
    found = None if start is None else try_contraction_chain(start.func)
    return None if start is None or found is None else ChainSpace(start, found, request)

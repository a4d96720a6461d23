"""The rule for reductions that leave the innermost dimension of their output alone: depthwise convolution, means over
pixels.

By default the cheapest of the usual tiles is taken, with rows outside. Tuning has more: tiles of other heights and
widths, more or fewer taps written out, other orders of the loops around, and vectors that are asked for ahead.
"""

from functools import cached_property
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.caches import l1_room, l2_room
from tilewright.cost.parallel import ranked_seconds, ranked_terms
from tilewright.cost.stream import pass_seconds, pass_term
from tilewright.cost.terms import Amounts, Terms, added, scaled, scaled_to, spread_terms, stacked_terms
from tilewright.families.elementwise.cost import around_seconds, block_bytes
from tilewright.families.family import ScheduleRequest
from tilewright.families.gemm.recipe import try_contraction
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.families.window.cost import (
    CONTRACTION,
    INTEGER_PRODUCT,
    MORE_ROWS,
    MORE_UNROLLS,
    MORE_VECTORS,
    NOT_HIDDEN,
    PREFETCHES,
    ROWS,
    UNROLLS,
    VECTORS,
    combining_work,
    far_seconds,
    pieces_seconds,
)
from tilewright.families.window.recipe import (
    LanePlan,
    LoopOrder,
    is_lane_reduction,
    schedule_lanes,
)
from tilewright.families.window.tiles import LaneTile, LaneTiles
from tilewright.ir.expr import Binary, BinaryOp, Expr, Fma, walk
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.target.target import Target
from tilewright.tir.stmt import blocks

_TILE = 3  # knobs of a tile: rows, vectors, unroll; counted
_ALL_ROWS, _ALL_VECTORS = (tuple(sorted(n)) for n in ((*ROWS, *MORE_ROWS), (*VECTORS, *MORE_VECTORS)))
_ALL_UNROLLS = (*UNROLLS, *MORE_UNROLLS)  # of bounds that make the same code, the first stands for all
_LOOPS = tuple(product(map(int, LoopOrder), PREFETCHES))
_AS_USUAL = (int(LoopOrder.ROWS_OUTSIDE), 0)  # the order of loops, and steps asked for ahead; given


class WindowSpace(Space):
    family = "window"
    knobs = (
        Knob("rows", _ALL_ROWS),
        Knob("vectors", _ALL_VECTORS),
        Knob("unroll", _ALL_UNROLLS),
        Knob("order", tuple(map(int, LoopOrder))),
        Knob("prefetch", PREFETCHES),
    )

    def __init__(
        self, start: Draft, name: str, target: Target, constants: frozenset[str] = frozenset()
    ) -> None:
        self._constants = constants
        self._start, self._block, self._target, self._machine = start, name, target, target.machine
        self.tiles = LaneTiles(find_block(start.func, name), target)

    def points(self) -> Points:
        return self._points

    @cached_property
    def _points(self) -> Points:
        """The usual ones first: they are taken where others cost as much."""
        usual = [(*t, *_AS_USUAL) for t, seconds in self.tiles.usual().items() if np.isfinite(seconds)]
        every = [
            (*t, *loops) for t in self._distinct_tiles() for loops in _LOOPS if self._is_another(t, *loops)
        ]
        more = [p for p in every if p not in set(usual)]
        return np.array(usual + more, np.int64).reshape(-1, len(self.knobs))

    def _distinct_tiles(self) -> list[LaneTile]:
        """Of those that are the same code, one."""
        found: dict[tuple[int, ...], LaneTile] = {}
        for r, v in product(_ALL_ROWS, _ALL_VECTORS):
            for u in _ALL_UNROLLS if self.tiles.fits(r, v) else ():
                t = LaneTile(r, v, u)
                found.setdefault((r, v, *self.tiles.written_out(t)), t)
        return list(found.values())

    def _is_another(self, tile: LaneTile, order: int, prefetch: int) -> bool:
        """Do these loops differ from all others of a tile? There is no order of loops that have one iteration; and
        reductions are over before what is asked for far ahead is there, or have no loop to ask in.
        """
        k = self.tiles
        is_wide, is_high = tile.vectors * k.lanes < k.columns, tile.rows < k.rows
        orders = {LoopOrder.ROWS_OUTSIDE}
        if is_wide and is_high:
            orders.add(LoopOrder.COLUMNS_OUTSIDE)
        if is_wide and k.times > 1:
            orders.add(LoopOrder.COLUMNS_FIRST)
        steps = prod(k.taps)
        return order in orders and (not prefetch or (steps > prefetch and k.written_out(tile)[0] < steps))

    def has_point(self, point: NDArray[np.int64]) -> bool:
        """All that fits into registers; of those that are the same code, `points` has one."""
        is_choice = all(int(v) in k.choices for v, k in zip(point, self.knobs, strict=True))
        return is_choice and self.tiles.fits(int(point[0]), int(point[1]))

    def cost(self, points: Points) -> Costs:
        """Points without an order of loops have the usual one."""
        sizes, at = np.unique(points[:, :_TILE], axis=0, return_inverse=True)
        seconds = np.array([self.tiles.seconds(LaneTile(*map(int, t))) for t in sizes])[at.ravel()]
        if points.shape[1] == _TILE:
            return self._ranked(seconds)
        usual = np.isin(points[:, 0], ROWS) & np.isin(points[:, 1], VECTORS) & np.isin(points[:, 2], UNROLLS)
        usual &= (points[:, _TILE:] == _AS_USUAL).all(axis=1)
        pieces = self._pieces[points[:, _TILE]]
        # What others gain is not estimated well enough to take them untried.
        least = float(self._ranked(np.array([self.tiles.best()[1]]))[0])
        costs = self._ranked(seconds + pieces)
        return np.where(usual, costs, np.maximum(costs, least))

    def _ranked(self, seconds: Costs) -> Costs:
        return ranked_seconds(seconds * self._slowness + self._beside[0], self._parts, self._machine)

    def terms(self, points: Points) -> Terms:
        sizes, at = np.unique(points[:, :_TILE], axis=0, return_inverse=True)
        tiles = stacked_terms([self.tiles.terms(LaneTile(*map(int, t))) for t in sizes])
        own = added({name: t[at.ravel()] for name, t in tiles.items()})
        if points.shape[1] > _TILE:
            own = added(own, {"near": self._pieces[points[:, _TILE]]})
        ranked = ranked_terms(added(scaled(own, self._slowness), self._beside[1]), self._parts, self._machine)
        return spread_terms(scaled_to(ranked, self.cost(points)), len(points))

    @cached_property
    def _pieces(self) -> Costs:
        """What reading in pieces takes more, by the order of loops: columns outside of a line, and of all lines."""
        whole, m = block_bytes([find_block(self._start.func, self._block)]), self._machine
        vectors = whole / self._target.vector_bytes
        of_line = pieces_seconds(vectors, whole / self.tiles.times, l1_room(m), m)
        return np.array([0.0, of_line, pieces_seconds(vectors, whole, l2_room(m), m)])

    @cached_property
    def _slowness(self) -> float:
        """By how much a step takes longer than that of a window of floats."""
        block = find_block(self._start.func, self._block)
        value = block.store.value
        if not value.dtype.is_float and any(_is_multiplication(e) for e in walk(value)):
            return INTEGER_PRODUCT
        return CONTRACTION if try_contraction(block) is not None else combining_work(value)

    @cached_property
    def _beside(self) -> tuple[float, Amounts]:
        """What does not depend on the point: the other blocks, and what streams, which arithmetic hides in part. All of
        it, and what it is made of.
        """
        func, m = self._start.func, self._machine
        nbytes = block_bytes([find_block(func, self._block)])
        streamed = pass_seconds(nbytes, m)
        around = around_seconds(func, self._block, self._target, self._constants)
        (rows, _, _), tiles = self.tiles.best()
        busy = around + tiles * self._slowness
        far = far_seconds(find_block(func, self._block), rows, self.tiles.lanes, m)
        more, exposed = max(streamed - busy, 0.0), NOT_HIDDEN * min(streamed, busy)
        own: Amounts = {"team": m.meeting_seconds, "beside": around, "near": far}
        total = m.meeting_seconds + around + (far + more + exposed)
        return total, added(own, {pass_term(nbytes, m): more + exposed})

    @cached_property
    def _parts(self) -> int:
        """Tiles that a team can share, of the cheapest size."""
        k, ((rows, vectors, _), _) = self.tiles, self.tiles.best()
        return k.times * -(-k.rows // rows) * -(-k.columns // (vectors * k.lanes))

    def completed(self, decisions: KnobValues) -> KnobValues:
        """With loops as usual, where they are not decided: once tiles were all there was to decide."""
        return {**dict(zip(("order", "prefetch"), _AS_USUAL, strict=True)), **decisions}

    def build(self, decisions: KnobValues) -> Draft:
        s, chosen = self._start.branch(), self.completed(decisions)
        names = {b.name for b in blocks(s.func.body)}
        plan = LanePlan(
            RegisterTile(chosen["rows"], chosen["vectors"] * self.tiles.lanes),
            unroll=chosen["unroll"],
            order=LoopOrder(chosen["order"]),
            prefetch=chosen["prefetch"],
        )
        schedule_lanes(s, self._block, plan, self._target)
        schedule_rest(s, names, self._target)
        return s


def window_space(request: ScheduleRequest) -> Space | None:
    """The space of a Func with one reduction, if vectors of its output are combined from vectors."""
    start = request.plain
    if start is None:
        return None
    reductions = [b for b in blocks(start.func.body) if b.is_reduction]
    if len(reductions) != 1 or not is_lane_reduction(reductions[0]):
        return None
    return WindowSpace(start, reductions[0].name, request.target, request.constants)


def _is_multiplication(e: Expr) -> bool:
    return isinstance(e, Fma) or (isinstance(e, Binary) and e.op is BinaryOp.MUL)

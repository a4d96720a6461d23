"""The rule for contractions: which iterators make rows and columns, the register tile, packing, and loop order.

Iterators are grouped by what they index (their characteristic vector over output, A and B): rows index A alone, columns
B alone. The tile's row is the last row iterator, or several of the last as one; likewise its column. Any of the two
operands may have the columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.parallel import even_terms, evenly, usual_share
from tilewright.cost.stream import pass_seconds, pass_term
from tilewright.cost.terms import Amounts, TermName, Terms, added, gathered, scaled, scaled_to
from tilewright.families.elementwise.cost import around_seconds, block_bytes
from tilewright.families.family import ScheduleRequest
from tilewright.families.gemm.cost import (
    BEHIND_READS,
    Choices,
    Form,
    contraction_seconds,
    contraction_terms,
    is_one_row,
    one_row_reads,
    one_row_seconds,
)
from tilewright.families.gemm.recipe import (
    Contraction,
    GemmPlan,
    find_contraction,
    load_strides,
    reduction_order,
    schedule_contraction,
    strides_along,
    tile_type,
)
from tilewright.families.gemm.register_tile import take_epilogue
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Load, Var, loads
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.support.arrays import IntArray
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, Iter, blocks

# Bound: what is tried.
_MAX_ROWS = 8  # rows of a tile: LLVM brings the elements of A of more forward until accumulators spill
_MAX_VECTORS = 6  # vectors of each
_ONE_ROW_VECTORS = (8, 12, 16)  # vectors of a single row besides: its sums are few, and wait for each other
# Multiply-adds written out; steps that are prefetched; whether the next panel is.
_STEPS = ((64, 0, 0), (24, 0, 0), (96, 0, 0), (64, 32, 0), (64, 0, 1), (64, 32, 1))
_MAX_CHUNKS = 6  # chunks of each kind
_WIDENING = {DType.F16: 1.0, DType.BF16: 2.0}  # operations that make f32 of a vector of them; counted
_TILE_COLUMNS = 32  # columns that follow each other in the result wherever it is divided evenly
_KNOBS = (
    "swap",
    "fuse_rows",
    "fuse_cols",
    "rows",
    "vectors",
    "pack_a",
    "pack_b",
    "columns_outside",
    "chunk",
    "unroll",
    "prefetch",
    "next_panel",
)
_PACKING = ("swap", "fuse_rows", "fuse_cols", "vectors", "pack_a", "pack_b")


class GemmSpace(Space):
    family = "gemm"

    def __init__(self, start: Draft, target: Target, constants: frozenset[str]) -> None:
        self._start, self._target = start, target
        self._names = {b.name for b in blocks(self._start.func.body)}
        (self._block,) = [b.name for b in blocks(self._start.func.body) if b.is_reduction]
        self.forms: dict[tuple[int, int, int], Form] = {}
        self._usual: dict[tuple[int, int, int], Form] = {}
        epilogue = epilogue_of(self._start, self._block)
        self._constants = constants
        for swap in (0, 1):
            c = find_contraction(find_block(self._start.func, self._block), target, bool(swap))
            if c is not None:
                for r in range(1, max(_fusable(c, c.rows), 1) + 1):
                    for k in range(1, _fusable(c, c.cols) + 1):
                        form = self.forms[swap, r, k] = form_of(c, r, k, epilogue, constants)
                        self._usual[swap, r, k] = usual_form(c, form, r, k)
        self._points = np.concatenate(
            [_grid(key, f, self._target.vector_registers) for key, f in self.forms.items()]
        )
        self.knobs = tuple(
            Knob(name, tuple(int(v) for v in np.unique(self._points[:, n]))) for n, name in enumerate(_KNOBS)
        )

    @property
    def packing(self) -> tuple[str, ...]:
        return _PACKING

    def points(self) -> Points:
        return self._points

    def cost(self, points: Points) -> Costs:
        tiles = self._known if points is self._points else self._tile_seconds(points)
        total = tiles + self._beside
        for key, form in self.forms.items():
            if is_one_row(form, self._target.machine):
                here = (points[:, :3] == key).all(axis=1)
                total[here] = self._waiting(key, form, points[here], tiles[here])
        return total

    def _waiting(self, key: tuple[int, int, int], form: Form, points: Points, tiles: Costs) -> Costs:
        """Of tiles that wait for weights from memory. The quickest takes what it would take otherwise: so are families
        compared, and they all wait for the same weights.
        """
        quickest, least = self._quickest(key, form)
        if not np.isfinite(quickest):
            return tiles
        seconds = one_row_seconds(form, _choices(points), self._target.machine, tiles)
        return (quickest + self._beside) * seconds / least

    def _quickest(self, key: tuple[int, int, int], form: Form) -> tuple[float, float]:
        """What the quickest such tile takes, and the one that waits least."""
        all_of_it = (self._points[:, :3] == key).all(axis=1)
        known = self._known[all_of_it]
        least = one_row_seconds(form, _choices(self._points[all_of_it]), self._target.machine, known)
        return float(known.min()), float(least.min())

    def terms(self, points: Points) -> Terms:
        """Where something is open, those at the capacity."""
        tiles, m = self._known if points is self._points else self._tile_seconds(points), self._target.machine
        found: list[tuple[IntArray, Amounts]] = []
        for key, form in self.forms.items():
            here = np.flatnonzero((points[:, :3] == key).all(axis=1))
            if not here.size:
                continue
            c = _choices(points[here])
            own: Amounts = contraction_terms(form, c, self._target, is_whole=True)
            if self._usual != self.forms:
                own = scaled_to(own, tiles[here])
            beside = self._beside_terms
            if is_one_row(form, m):
                quickest, least = self._quickest(key, form)
                if np.isfinite(quickest):
                    slower = one_row_seconds(form, c, m, tiles[here]) / least
                    beside = scaled(beside, np.where(np.isfinite(slower), slower, 1.0))
                    own = added({"far": one_row_reads(form, c, m)}, scaled(own, BEHIND_READS))
                    own = scaled(own, quickest / least)
            found.append((here, added(own, beside)))
        return gathered(len(points), found)

    @cached_property
    def _known(self) -> Costs:
        largest, usual = self._grid_seconds
        return largest if usual is None else np.sqrt(largest * usual * self._times_usual)

    @cached_property
    def _grid_seconds(self) -> tuple[Costs, Costs | None]:
        """Of all points at the capacity; and at a usual size, if something is open."""
        largest = self._seconds_of(self.forms, self._points)
        if self._usual == self.forms:
            return largest, None
        return largest, self._seconds_of(self._usual, self._points, is_cut=True)

    @cached_property
    def _times_usual(self) -> float:
        """How many times longer the quickest points take at the capacity than at a usual size."""
        largest, usual = self._grid_seconds
        possible = np.isfinite(largest)
        return (
            float(largest[possible].min() / usual[possible].min())
            if usual is not None and possible.any()
            else 1.0
        )

    @cached_property
    def _beside(self) -> float:
        """What does not depend on the point."""
        m = self._target.machine
        return m.meeting_seconds + evenly(sum(self._around.values()), m)

    @property
    def _beside_terms(self) -> Amounts:
        m = self._target.machine
        return added({"team": m.meeting_seconds}, even_terms(self._around, m))

    @cached_property
    def _around(self) -> dict[TermName, float]:
        """The other blocks, and what streams while nothing else is done."""
        func, m = self._start.func, self._target.machine
        around = around_seconds(func, self._block, self._target, self._constants)
        least = m.threads * float(self._known.min(initial=np.inf))
        nbytes = block_bytes([find_block(func, self._block)])
        is_far = any(is_one_row(f, m) for f in self.forms.values())
        waiting = max(pass_seconds(nbytes, m) - around - least, 0.0)
        return {"beside": around, "far" if is_far else pass_term(nbytes, m): waiting}

    def _tile_seconds(self, points: Points) -> Costs:
        """At the capacity. What is open is ranked by that and by its time at a usual size alike."""
        largest = self._seconds_of(self.forms, points)
        if self._usual == self.forms:
            return largest
        usual = self._seconds_of(self._usual, points, is_cut=True)
        return np.sqrt(largest * usual * self._times_usual)

    def _seconds_of(
        self, forms: Mapping[tuple[int, int, int], Form], points: Points, *, is_cut: bool = False
    ) -> Costs:
        out = np.full(len(points), np.inf)
        for key, form in forms.items():
            here = np.flatnonzero((points[:, :3] == key).all(axis=1))
            if not here.size:
                continue
            c = _choices(points[here])
            out[here] = contraction_seconds(form, c, self._target, is_whole=True, is_cut=is_cut)
        return out

    def completed(self, decisions: KnobValues) -> KnobValues:
        return {"next_panel": 0, **decisions}

    def build(self, decisions: KnobValues) -> Draft:
        s = self._start.branch()
        lanes = self._target.lanes(next(iter(self.forms.values())).lane_bytes)
        plan = GemmPlan(
            swap=bool(decisions["swap"]),
            fuse_rows=decisions["fuse_rows"],
            fuse_cols=decisions["fuse_cols"],
            rows=decisions["rows"],
            columns=decisions["vectors"] * lanes,
            pack_a=bool(decisions["pack_a"]),
            pack_b=bool(decisions["pack_b"]),
            columns_outside=bool(decisions["columns_outside"]),
            chunk=decisions["chunk"],
            unroll=decisions["unroll"],
            prefetch=decisions["prefetch"],
            next_panel=bool(decisions["next_panel"]),
        )
        schedule_contraction(s, self._block, plan, self._target)
        schedule_rest(s, self._names, self._target)
        return s


def _choices(p: Points) -> Choices:
    return Choices(
        p[:, 3], p[:, 4], p[:, 5] > 0, p[:, 6] > 0, p[:, 7] > 0, p[:, 8], p[:, 9], p[:, 10], p[:, 11] > 0
    )


def gemm_space(request: ScheduleRequest) -> Space | None:
    """The space of a Func with one reduction, if that is a contraction."""
    start = request.plain
    if start is None:
        return None
    reductions = [b for b in blocks(start.func.body) if b.is_reduction]
    if len(reductions) != 1:
        return None
    if all(find_contraction(reductions[0], request.target, swap) is None for swap in (False, True)):
        return None
    return GemmSpace(start, request.target, request.constants)


def _fusable(c: Contraction, group: tuple[Iter, ...]) -> int:
    """How many of the last iterators of the group may be one: inside of another, a dimension is run through as far as
    it may be in use.
    """
    at = [c.store.indices.index(it.var) for it in group]
    inner = [n for n, d in enumerate(reversed(at), 1) if c.store.buffer.is_open(d)]
    return min(inner, default=len(group))


# ------------------------------------------------------------------------------------------------------------- points


@lru_cache(maxsize=8)
def tile_sizes(registers: int) -> tuple[tuple[int, int], ...]:
    """(rows, vectors) that fit: accumulators, a row of B, and an element of A."""
    return tuple(
        (r, v)
        for v in range(1, _MAX_VECTORS + 1)
        for r in range(1, _MAX_ROWS + 1)
        if r * v + v + 1 <= registers
    )


def one_row_sizes(registers: int) -> tuple[tuple[int, int], ...]:
    """(1, vectors) of wider tiles that fit where there is one row: weights are used once, as operands from memory."""
    return tuple((1, v) for v in _ONE_ROW_VECTORS if v + 2 <= registers)


def _grid(key: tuple[int, int, int], f: Form, registers: int) -> NDArray[np.int64]:
    sizes = [*tile_sizes(registers), *(one_row_sizes(registers) if f.rows == 1 else ())]
    tiles = np.array([t for t in sizes if t[0] <= f.rows], dtype=np.int64)
    packs = np.array([(a, b) for a in (0, 1) for b in (0, 1)], dtype=np.int64)
    orders = [(0, n) for n in (0, *_chunks(f.cols))] + [(1, n) for n in (0, *_chunks(f.rows))]
    loops = np.array([(*o, *s) for o in orders for s in _STEPS], dtype=np.int64)
    t, p, o = (
        g.ravel() for g in np.meshgrid(*(np.arange(len(x)) for x in (tiles, packs, loops)), indexing="ij")
    )
    return np.concatenate([np.tile(np.array(key), (t.size, 1)), tiles[t], packs[p], loops[o]], axis=1)


def _chunks(extent: int) -> list[int]:
    """Some of the exact divisors that are worth a loop."""
    found = [n for n in range(24, extent // 2 + 1) if extent % n == 0]
    if len(found) <= _MAX_CHUNKS:
        return found
    return [found[round(i * (len(found) - 1) / (_MAX_CHUNKS - 1))] for i in range(_MAX_CHUNKS)]


# -------------------------------------------------------------------------------------------------------------- forms


@dataclass(frozen=True, slots=True)
class _Group:
    inside: tuple[Iter, ...]
    outside: tuple[Iter, ...]

    @property
    def extent(self) -> int:
        return prod(it.extent for it in self.inside)


def epilogue_of(start: Draft, name: str) -> Block:
    """The block that will store the result, over the elements of the accumulator."""
    s = Draft(start.module)
    store = find_block(s.func, name).store
    epilogue = take_epilogue(s, name, store.buffer)
    return find_block(s.func, epilogue)


def form_of(
    c: Contraction, fuse_rows: int, fuse_cols: int, epilogue: Block, constants: frozenset[str]
) -> Form:
    rows = _Group(c.rows[len(c.rows) - fuse_rows :], c.rows[: len(c.rows) - fuse_rows])
    cols = _Group(c.cols[len(c.cols) - fuse_cols :], c.cols[: len(c.cols) - fuse_cols])
    order = reduction_order(c)
    a_steps, b_steps = load_strides(c.a, c.block), load_strides(c.b, c.block)
    stored = Load(epilogue.store.buffer, epilogue.store.indices)
    along = tuple(epilogue.iters[c.store.indices.index(it.var)] for it in rows.inside)
    across = tuple(epilogue.iters[c.store.indices.index(it.var)] for it in cols.inside)
    return Form(
        batch=prod(it.extent for it in (*c.batch, *cols.outside)),
        other_rows=prod(it.extent for it in rows.outside),
        rows=rows.extent,
        cols=cols.extent,
        k=prod(it.extent for it in c.reduce),
        k_inner=order[-1].extent,
        a_row_step=strides_along(c.a, c.block, rows.inside),
        a_k_step=min((abs(a_steps.get(it.var, 0)) for it in order), default=0),
        b_col_step=strides_along(c.b, c.block, cols.inside),
        b_k_step=_inner_step(b_steps, order),
        out_col_step=_step_in_tile(stored, epilogue, across),
        out_row_step=_step_in_tile(stored, epilogue, along),
        a_constant=c.a.buffer.name in constants,
        b_constant=c.b.buffer.name in constants,
        a_elements=c.a.buffer.size,
        b_elements=c.b.buffer.size,
        bytes_each=tile_type(c, c.b).bytes,
        epilogue_loads=len(loads(epilogue.store.value)) - 1,
        lane_bytes=c.store.buffer.dtype.bytes,
        group=1 if c.dot is None else c.dot.group,
        step_times=1.0 if c.dot is None else c.dot.steps,
        widening=_WIDENING.get(tile_type(c, c.b), 0.0) if c.dot is None else 0.0,
        needs_rows=tile_type(c, c.a) is not c.a.dtype
        or (c.dot is not None and a_steps.get(order[-1].var) != 1),
    )


def usual_form(c: Contraction, f: Form, fuse_rows: int, fuse_cols: int) -> Form:
    """Where dimensions are open: the same at a usual size, which is between the least and the largest."""

    def usual(extent: int, group: tuple[Iter, ...]) -> int:
        dims = [c.store.indices.index(it.var) for it in group]
        return max(1, round(extent * usual_share(c.store.buffer, dims)))

    rows, cols = len(c.rows) - fuse_rows, len(c.cols) - fuse_cols
    return replace(
        f,
        batch=usual(f.batch, (*c.batch, *c.cols[:cols])),
        other_rows=usual(f.other_rows, c.rows[:rows]),
        rows=usual(f.rows, c.rows[rows:]),
        cols=usual(f.cols, c.cols[cols:]),
    )


def _step_in_tile(stored: Load, epilogue: Block, group: tuple[Iter, ...]) -> int | None:
    """How far apart results are: where columns are divided among heads, those of one head, which a tile is in."""
    step = strides_along(stored, epilogue, group)
    if step is not None or len(group) != 1 or group[0].extent % _TILE_COLUMNS:
        return step
    inside = replace(group[0], extent=_TILE_COLUMNS)
    iters = tuple(inside if it.var is inside.var else it for it in epilogue.iters)
    return strides_along(stored, replace(epilogue, iters=iters), (inside,))


def _inner_step(steps: dict[Var, int], order: tuple[Iter, ...]) -> int:
    """How far the address jumps in most reduction steps, at most."""
    largest, trips = 0, 1
    for it in reversed(order):
        if trips >= 8:
            break
        largest, trips = max(largest, abs(steps.get(it.var, 0))), trips * it.extent
    return largest

"""The rule for contractions of bytes with constant weights on targets that multiply tiles of matrices: which iterators
make rows and columns, how large a tile is each way, and the order of the loops around.

It is the gemm family's view of a contraction, with another kind of tile; which of the two is quicker, costs say. What
has few products for each result stays with dot products.
"""

from functools import cached_property

import numpy as np

from tilewright.cost.parallel import even_terms, evenly, ranked_seconds, ranked_terms
from tilewright.cost.stream import pass_seconds, pass_term
from tilewright.cost.terms import Amount, Amounts, TermName, Terms, added, gathered, summed
from tilewright.families.elementwise.cost import around_seconds, block_bytes
from tilewright.families.family import ScheduleRequest
from tilewright.families.gemm.cost import Form, is_one_row
from tilewright.families.gemm.recipe import Contraction
from tilewright.families.gemm.space import epilogue_of, form_of
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.families.tiles.cost import TileChoice, TileTime, tile_time
from tilewright.families.tiles.match import depth_of, find_tiled
from tilewright.families.tiles.recipe import TilePlan, schedule_tiles
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.support.arrays import FloatArray
from tilewright.target.matrix_units import MatrixUnit, matrix_unit
from tilewright.target.target import Target
from tilewright.tir.stmt import blocks

_TERMS: tuple[TermName, ...] = ("arithmetic", "edges", "near", "far", "copies")
_KNOBS = ("swap", "fuse_rows", "fuse_cols", "rows", "columns", "pack_a", "columns_outside")
_PACKING = ("swap", "fuse_rows", "fuse_cols", "columns", "pack_a")


class TilesSpace(Space):
    family = "tiles"

    def __init__(
        self,
        start: Draft,
        block: str,
        found: dict[int, Contraction],
        target: Target,
        constants: frozenset[str],
        unit: MatrixUnit,
    ) -> None:
        self._unit = unit
        self._start, self._block, self._target, self._constants = start, block, target, constants
        self._names = {b.name for b in blocks(start.func.body)}
        self._depths = {swap: depth_of(c, unit) for swap, c in found.items()}
        epilogue = epilogue_of(start, block)
        forms = {
            (swap, r, k): form_of(c, r, k, epilogue, constants)
            for swap, c in found.items()
            for r in range(1, max(len(c.rows), 1) + 1)
            for k in range(1, len(c.cols) + 1)
        }
        self._forms = {
            key: f for key, f in forms.items() if f.b_constant and not is_one_row(f, target.machine)
        }
        rows = [(*key, *p) for key, f in self._forms.items() for p in _grid(f, unit)]
        self._points = np.array(rows, np.int64).reshape(len(rows), len(_KNOBS))
        self.knobs = tuple(
            Knob(name, tuple(int(v) for v in np.unique(self._points[:, n]))) for n, name in enumerate(_KNOBS)
        )

    @property
    def packing(self) -> tuple[str, ...]:
        return _PACKING

    def points(self) -> Points:
        return self._points

    def cost(self, points: Points) -> Costs:
        m = self._target.machine
        alone, parts = self._alone(points)
        return ranked_seconds(np.asarray(summed(alone), np.float64), parts, m) + self._beside

    def terms(self, points: Points) -> Terms:
        m = self._target.machine
        alone, parts = self._alone(points)
        own = ranked_terms(alone, parts, m)
        every = added(own, {"team": m.meeting_seconds}, even_terms(self._around, m))
        return gathered(len(points), [(np.arange(len(points)), every)])

    def _alone(self, points: Points) -> tuple[Amounts, FloatArray]:
        """Seconds of tiles on one core, by what they are made of; and in how many parts they are."""
        m = self._target.machine
        times = [self._time(tuple(int(n) for n in p)) for p in points]
        terms: dict[TermName, Amount] = {
            name: np.array([t.terms.get(name, 0.0) for t in times], np.float64) / m.hertz for name in _TERMS
        }
        return terms, np.array([t.parts for t in times], np.float64)

    def _time(self, point: tuple[int, ...]) -> TileTime:
        swap, fuse_rows, fuse_cols, rows, columns, pack_a, outside = point
        form = self._forms[swap, fuse_rows, fuse_cols]
        choice = TileChoice(rows, columns, bool(pack_a), bool(outside))
        return tile_time(form, self._depths[swap], choice, self._unit, self._target.machine)

    @property
    def _beside(self) -> float:
        """What does not depend on the point."""
        m = self._target.machine
        return m.meeting_seconds + evenly(sum(self._around.values()), m)

    @cached_property
    def _around(self) -> dict[TermName, float]:
        """The other blocks, and what streams while nothing else is done."""
        func, m = self._start.func, self._target.machine
        around = around_seconds(func, self._block, self._target, self._constants)
        alone, _ = self._alone(self._points)
        least = float(np.min(np.asarray(summed(alone), np.float64), initial=np.inf))
        nbytes = block_bytes([find_block(func, self._block)])
        return {"beside": around, pass_term(nbytes, m): max(pass_seconds(nbytes, m) - around - least, 0.0)}

    def build(self, decisions: KnobValues) -> Draft:
        s = self._start.branch()
        plan = TilePlan(
            swap=bool(decisions["swap"]),
            fuse_rows=decisions["fuse_rows"],
            fuse_cols=decisions["fuse_cols"],
            rows=decisions["rows"],
            columns=decisions["columns"],
            pack_a=bool(decisions["pack_a"]),
            columns_outside=bool(decisions["columns_outside"]),
        )
        schedule_tiles(s, self._block, plan, self._target)
        schedule_rest(s, self._names, self._target)
        return s


def tiles_space(request: ScheduleRequest) -> Space | None:
    """The space of a Func with one reduction, if that is a contraction of bytes with constant weights."""
    start = request.plain
    if start is None:
        return None
    reductions = [b for b in blocks(start.func.body) if b.is_reduction]
    if len(reductions) != 1:
        return None
    both = {swap: find_tiled(reductions[0], request.target, bool(swap)) for swap in (0, 1)}
    found = {swap: c for swap, c in both.items() if c is not None}
    if not found:
        return None
    unit = matrix_unit(request.target)
    assert unit is not None
    space = TilesSpace(start, reductions[0].name, found, request.target, request.constants, unit)
    return space if len(space.points()) else None


def _grid(f: Form, unit: MatrixUnit) -> list[tuple[int, int, int, int]]:
    """(rows, columns, pack_a, columns_outside) that fit the registers and what is to be computed."""
    in_place = not f.needs_rows and f.a_row_step is not None
    return [
        (rows, columns, pack_a, outside)
        for rows, columns in unit.sizes
        if rows < f.rows + unit.register[0] and columns < f.cols + unit.register[1]
        for pack_a in ((0, 1) if in_place else (1,))
        for outside in (0, 1)
    ]

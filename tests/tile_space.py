"""A design space for tests of the tuner: a plain GEMM, tiled in ways that divide it."""

from collections.abc import Sequence

import numpy as np

from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.ir.dtype import DType
from tilewright.schedule.schedule import Schedule
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.stmt import loops


class TileSpace(Space):
    """Rows and columns of a tile, and how many steps of the reduction are written out."""

    family = "tile"

    def __init__(self, func: Func) -> None:
        self.func = func
        self.loops = [(loop.var.name, loop.extent) for loop in loops(func.body)]
        self.knobs = (
            Knob("rows", (1, 2, 4)),
            Knob("columns", (8, 16, 32, 64)),
            Knob("steps", (1, 2, 4)),
        )

    def points(self) -> Points:
        grid = np.meshgrid(*(k.choices for k in self.knobs), indexing="ij")
        return np.stack([g.ravel() for g in grid], axis=1).astype(np.int64)

    def cost(self, points: Points) -> Costs:
        rows, columns, steps = points.astype(np.float64).T
        (_, m), (_, n), (_, k) = self.loops
        fits = (m % rows == 0) & (n % columns == 0) & (k % steps == 0)
        return np.where(fits, 1e-3 * (1 / rows + 8 / columns + 0.1 / steps), np.inf)

    def build(self, decisions: KnobValues) -> Schedule:
        s = Schedule(self.func)
        (i, _), (j, _), (k, _) = self.loops
        if decisions["columns"] == 64 and decisions["steps"] == 4:
            raise ScheduleError("too much code")
        i0, i1 = s.split(i, (None, decisions["rows"]))
        j0, j1 = s.split(j, (None, decisions["columns"]))
        k0, k1 = s.split(k, (None, decisions["steps"]))
        s.reorder(i0, j0, k0, k1, i1, j1)
        j1, lanes = s.split(j1, (None, 8))
        s.vectorize(lanes)
        for loop in (k1, i1, j1):
            s.unroll(loop)
        s.parallel(i0)
        return s


def tile_spaces(func: Func, target: Target, constants: frozenset[str]) -> Sequence[Space]:
    """Of a plain GEMM; none of anything else."""
    return (TileSpace(func),) if len(list(loops(func.body))) == 3 else ()


def gemm(m: int, n: int, k: int, name: str = "gemm") -> Func:
    b = FuncBuilder(name)
    x, y = b.param("A", (m, k), DType.F32), b.param("B", (k, n), DType.F32)
    return b.finish(b.reduce("C", (m, n), (k,), lambda i, j, k: (x[i, k], y[k, j])))

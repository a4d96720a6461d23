"""fuse: perfectly nested loops become one.

    for i in range(4):             Fuse(("i", "j"))           for i_f in range(24):
        for j in range(6):               ─────>                   block(vi = i_f // 6, vj = i_f % 6)
            block(vi = i, vj = j)

The order of iterations stays the same. Loops are named from the outermost in, and each is the whole body of the one
before.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

from tilewright.ir.expr import Expr, Var
from tilewright.schedule.edit import replace_nest
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_loop
from tilewright.schedule.names import check_fresh
from tilewright.schedule.plain_loop import check_plain
from tilewright.schedule.step import FuncStep
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.rewrite import substitute_stmt
from tilewright.tir.stmt import For


@dataclass(frozen=True, slots=True)
class Fuse(FuncStep):
    loops: tuple[str, ...]

    def anchor(self) -> str:
        if len(self.loops) < 2:
            raise ScheduleError(f"{self}: needs two or more loops")
        return self.loops[0]

    @property
    def name(self) -> str:
        """The new loop."""
        return f"{self.loops[0]}_f"

    def rewrite(self, func: Func) -> Func:
        nest = [find_loop(func, name) for name in self.loops]
        for loop in nest:
            check_plain(func, loop, "fuse")
        for outer, inner in pairwise(nest):
            if outer.body is not inner:
                raise step_refusal(
                    func,
                    inner,
                    f"{inner.var.name} is not the whole body of {outer.var.name}",
                    hint="name the loops from the outermost in; reorder brings loops together",
                )
        var = Var(self.name)
        values: dict[Var, Expr] = {}
        rest: Expr = var
        for loop in reversed(nest[1:]):
            values[loop.var] = rest % loop.extent
            rest = rest // loop.extent
        values[nest[0].var] = rest
        extent = math.prod(loop.extent for loop in nest)
        check_fresh(func, (self.name,))
        return replace_nest(func, nest[0], For(var, extent, substitute_stmt(nest[-1].body, values)))

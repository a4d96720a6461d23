"""coarsen: several iterations of a parallel loop become one part.

    for i in parallel(64):             Coarsen("i", 4)            for i_0 in parallel(16):
        block(vi = i)                      ─────>                     for i_1 in range(4):
                                                                          block(vi = i_0 * 4 + i_1)

The parallel grain: fewer parts cost less to claim, more of them are shared more evenly. The grain divides the extent,
so that parts are equal. Iterations of a parallel loop are independent, so they may run one after the other.
"""

from dataclasses import dataclass

from tilewright.ir.expr import Var
from tilewright.schedule.edit import replace_nest
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_loop
from tilewright.schedule.names import check_fresh
from tilewright.schedule.step import LoopStep
from tilewright.tir.func import Func
from tilewright.tir.rewrite import substitute_stmt
from tilewright.tir.stmt import For, LoopKind


@dataclass(frozen=True, slots=True)
class Coarsen(LoopStep):
    grain: int

    @property
    def names(self) -> tuple[str, str]:
        """The loop over parts, and the one inside of a part."""
        return f"{self.loop}_0", f"{self.loop}_1"

    def rewrite(self, func: Func) -> Func:
        loop = find_loop(func, self.loop)
        if loop.kind is not LoopKind.PARALLEL:
            raise step_refusal(
                func, loop, f"{self.loop} is not parallel", hint="split it, and make a loop parallel"
            )
        if self.grain < 2 or loop.extent % self.grain:
            raise step_refusal(
                func,
                loop,
                f"{loop.extent} iterations are no whole number of parts of {self.grain}",
                hint="take a divisor, of 2 or more",
            )
        check_fresh(func, self.names)
        part, inside = map(Var, self.names)
        body = For(inside, self.grain, substitute_stmt(loop.body, {loop.var: part * self.grain + inside}))
        new = For(part, loop.extent // self.grain, body, LoopKind.PARALLEL, loop.annotations)
        return replace_nest(func, loop, new)

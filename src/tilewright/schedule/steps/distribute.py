"""distribute: a loop around several statements becomes one loop around each.

    for i in range(6):             Distribute("i")            for i in range(6):
        for k in range(8):               ─────>                   for k in range(8):
            C[i] += A[i, k]                                           C[i] += A[i, k]
        D[i] = relu(C[i])                                     for i_d1 in range(6):
                                                                  D[i_d1] = relu(C[i_d1])

Legal if no iteration touches what another writes: then all of the first statement may run before any of the
second. A consumer that was moved under a loop to be partitioned with its producer parts from it this way,
so that each can be reordered on its own.
"""

from dataclasses import dataclass, replace

from tilewright.ir.expr import Var
from tilewright.schedule.edit import replace_nest
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_loop
from tilewright.schedule.names import check_fresh
from tilewright.schedule.step import LoopStep
from tilewright.tir.analysis.independence import dependence
from tilewright.tir.func import Func
from tilewright.tir.rewrite import substitute_stmt
from tilewright.tir.stmt import Seq, Stmt, seq


@dataclass(frozen=True, slots=True)
class Distribute(LoopStep):
    suffix: str = "d"  # in the names of the new loops: another one if the same loop is distributed again

    def part(self, n: int) -> str:
        """The loop around the n-th statement; the first keeps its name."""
        return self.loop if n == 0 else f"{self.loop}_{self.suffix}{n}"

    def rewrite(self, func: Func) -> Func:
        loop = find_loop(func, self.loop)
        if not isinstance(loop.body, Seq):
            raise step_refusal(func, loop, f"the body of {self.loop} is a single statement")
        conflict = dependence(func, loop, private=False)
        if conflict is not None:
            raise step_refusal(
                func,
                loop,
                f"iterations of {self.loop} are not independent: {conflict.other} uses elements of "
                f"{conflict.buffer.name} that {conflict.writer} writes in another iteration",
            )
        parts: list[Stmt] = []
        for n, s in enumerate(loop.body.stmts):
            var = Var(self.part(n))
            parts.append(replace(loop, var=var, body=substitute_stmt(s, {loop.var: var})))
        check_fresh(func, (self.part(n) for n in range(1, len(parts))))
        return replace_nest(func, loop, seq(*parts))

"""add_unit_loop: a loop of one iteration around the nest of a block.

    for j in range(8):         AddUnitLoop("C")        for C_unit in range(1):
        with block("C"): …          ─────>                 for j in range(8):
                                                               with block("C"): …

So that a vector and a matrix can be tiled by one recipe.
"""

from dataclasses import dataclass

from tilewright.ir.expr import Var
from tilewright.schedule.edit import replace_stmt
from tilewright.schedule.find import find_block
from tilewright.schedule.names import check_fresh
from tilewright.schedule.own_nest import own_nest
from tilewright.schedule.step import BlockStep
from tilewright.tir.func import Func
from tilewright.tir.stmt import For, Stmt


@dataclass(frozen=True, slots=True)
class AddUnitLoop(BlockStep):
    @property
    def loop(self) -> str:
        """The new loop."""
        return f"{self.block}_unit"

    def rewrite(self, func: Func) -> Func:
        block = find_block(func, self.block)
        top: Stmt = next(iter(own_nest(func, block).values()), block)
        check_fresh(func, (self.loop,))
        return replace_stmt(func, top, For(Var(self.loop), 1, top))

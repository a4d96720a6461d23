"""split: one loop becomes a nest.

    for i in range(20):            Split("i", (None, 6))      for i_0 in range(4):
        block(vi = i)                    ─────>                   for i_1 in range(6):
                                                                      block(vi = i_0 * 6 + i_1)  where i_0 * 6 +
                                                                      i_1 < 20

Factors go from the outermost loop in; one may be None and is then inferred, rounded up. Where the product exceeds
the extent, blocks below get a predicate. `loop_partition` first gives exact tiles instead.
"""

import math
from dataclasses import dataclass, replace

from tilewright.ir.expr import Expr, Var, as_index, logical_and
from tilewright.schedule.nest import find_loop, replace_stmt
from tilewright.schedule.step import FuncStep
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_children, substitute
from tilewright.tir.simplify import simplify_bindings
from tilewright.tir.stmt import Block, For, LoopKind, Stmt


@dataclass(frozen=True, slots=True)
class Split(FuncStep):
    loop: str
    factors: tuple[int | None, ...]

    def anchor(self) -> str:
        return self.loop

    @property
    def names(self) -> tuple[str, ...]:
        """The new loops, outermost first."""
        return tuple(f"{self.loop}_{n}" for n in range(len(self.factors)))

    def rewrite(self, func: Func) -> Func:
        loop = find_loop(func, self.loop)
        if loop.kind is not LoopKind.SERIAL:
            raise ScheduleError(f"{self}: the loop is {loop.kind.value}; split it before that")
        extents = self._extents(loop.extent)
        outer = {Var(n): e for n, e in zip(self.names, extents, strict=True)}
        index: Expr = as_index(0)
        for var, extent in outer.items():
            index = index * extent + var
        body = substitute(loop.body, {loop.var: index})
        if math.prod(extents) != loop.extent:
            body = guard(body, index < loop.extent)
        for var, extent in reversed(outer.items()):
            body = For(var, extent, body)
        return simplify_bindings(replace_stmt(func, loop, body))

    def _extents(self, extent: int) -> list[int]:
        known = math.prod(f for f in self.factors if f is not None)
        free = sum(f is None for f in self.factors)
        if free > 1 or known <= 0 or len(self.factors) < 2:
            raise ScheduleError(f"{self}: needs two or more positive factors, at most one of them None")
        extents = [-(-extent // known) if f is None else f for f in self.factors]
        if math.prod(extents) < extent:
            raise ScheduleError(f"{self}: the factors cover {math.prod(extents)} of {extent} iterations")
        return extents


def guard(body: Stmt, cond: Expr) -> Stmt:
    """Add `cond` to the predicate of the outermost blocks below."""
    if isinstance(body, Block):
        return replace(body, predicate=logical_and(body.predicate, cond))
    return map_children(body, lambda c: guard(c, cond))

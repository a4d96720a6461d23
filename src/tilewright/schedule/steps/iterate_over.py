"""iterate_over: a block runs over the elements of a buffer that it reads, instead of over those it writes.

    with block("T"):                              IterateOver("T", "C")      with block("T"):
        vh, vi, vd = spatial(12, 128, 32)                ─────>                  T_u0, T_u1 = spatial(128,
        384) T[vh, vi, vd] = C[vi, vh * 32 + vd]                                      T[T_u1 // 32, T_u0,
        T_u1 % 32] = C[T_u0, T_u1]

So a transposed or reshaped result can follow its producer tile by tile, and is stored where it belongs. The
block reads the buffer through one index map, and that map can be inverted; the block is all-spatial and
alone under plain loops. With `partial`, there may be elements that it does not read, as those of tiles that reach
beyond an image: for these its body does nothing.
"""

from dataclasses import dataclass, replace

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    Expr,
    Load,
    Var,
    loads,
)
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_block
from tilewright.schedule.names import check_fresh
from tilewright.schedule.own_nest import own_nest, replace_own_nest
from tilewright.schedule.preconditions import check_closed
from tilewright.schedule.step import BlockStep
from tilewright.tir.analysis.invert import try_invert
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_exprs, substitute_stmt
from tilewright.tir.stmt import If, Iter, Stmt


@dataclass(frozen=True, slots=True)
class IterateOver(BlockStep):
    buffer: str
    partial: bool = False

    def iters(self, rank: int) -> tuple[str, ...]:
        """The new iterators, one per dimension of the buffer."""
        return tuple(f"{self.block}_u{d}" for d in range(rank))

    def rewrite(self, func: Func) -> Func:
        block = find_block(func, self.block)
        check_closed(func, block)
        own_nest(func, block)
        store = block.try_store
        if block.is_reduction or store is None:
            raise step_refusal(func, block, f"{self}: the block is not a single all-spatial store")
        read = {ld for e in (*store.indices, store.value) for ld in loads(e) if ld.buffer.name == self.buffer}
        if len(read) != 1:
            raise step_refusal(
                func, block, f"{self}: the block reads {self.buffer} in {len(read)} ways, not in one"
            )
        load: Load = read.pop()
        names = self.iters(len(load.indices))
        loops = tuple(f"{n}_loop" for n in names)
        check_fresh(func, (*names, *loops))
        new = tuple(Iter(Var(n), e) for n, e in zip(names, load.buffer.shape, strict=True))
        extents = {it.var: it.extent for it in block.iters}
        known = {v: Interval(0, e - 1) for v, e in extents.items()}
        inverse = try_invert(
            load.indices, load.buffer.shape, extents, [it.var for it in new], Simplifier(known)
        )
        if inverse is None:
            raise step_refusal(
                func,
                block,
                f"{self}: the index of {self.buffer} is not an invertible map of the block's iterators",
            )
        simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in new})
        if inverse.conditions and not self.partial:
            raise step_refusal(
                func,
                block,
                f"{self}: the block does not read all elements of {self.buffer}",
                hint="with partial=True it skips the others",
            )
        body: Stmt = map_exprs(substitute_stmt(block.body, inverse.values), simplify)
        if inverse.conditions:
            body = If(simplify(logical_and(*inverse.conditions)), body)
        bindings: tuple[Expr, ...] = tuple(Var(n) for n in loops)
        return replace_own_nest(func, block, replace(block, iters=new, bindings=bindings, body=body))

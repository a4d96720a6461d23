"""drop_unit_iters: iterators with one value disappear from a block, with their loops.

    for n in range(1):                  DropUnitIters("C")       for i in range(8):
        for i in range(8):                    ─────>                 with block("C"):
            with block("C"):                                             C[0, vi] = …
                C[vn, vi] = …

Indices alone then show the role of each iterator. A reduction that has only such iterators becomes a plain store. The
block is alone under plain loops, one per iterator.
"""

from dataclasses import dataclass, replace

from tilewright.ir.expr import Expr, Load, Var, as_index
from tilewright.ir.rewrite import transform
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_block
from tilewright.schedule.own_nest import own_nest, replace_own_nest
from tilewright.schedule.step import BlockStep
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_exprs, substitute_stmt
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, IterKind, Stmt, Store


@dataclass(frozen=True, slots=True)
class DropUnitIters(BlockStep):
    def rewrite(self, func: Func) -> Func:
        block = find_block(func, self.block)
        own_nest(func, block)
        zero: dict[Var, Expr] = {it.var: as_index(0) for it in block.iters if it.extent == 1}
        kept = [(it, b) for it, b in zip(block.iters, block.bindings, strict=True) if it.extent > 1]
        simplify = Simplifier(ranges(block))

        def without(s: Stmt) -> Stmt:
            return map_exprs(substitute_stmt(s, zero), simplify)

        body, init = without(block.body), None if block.init is None else without(block.init)
        if init is not None and not any(it.kind is IterKind.REDUCE for it, _ in kept):
            body, init = _one_step(func, block, init, body), None
        new = replace(
            block, iters=tuple(it for it, _ in kept), bindings=tuple(b for _, b in kept), body=body, init=init
        )
        return replace_own_nest(func, block, new)


def _one_step(func: Func, block: Block, init: Stmt, body: Stmt) -> Stmt:
    """A reduction of one step: the accumulator is what init has just stored."""
    if not isinstance(init, Store) or not isinstance(body, Store) or init.indices != body.indices:
        raise step_refusal(
            func, block, f"the init of block {block.name!r} does not store what its body updates"
        )
    start, acc = init.value, Load(body.buffer, body.indices)
    return Store(body.buffer, body.indices, transform(body.value, lambda n: start if n is acc else None))

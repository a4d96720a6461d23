"""fuse_iters: iterators of a block become one, together with their loops.

    for h in range(7):                  FuseIters("C", ("vh", "vw"))     for h_f in range(49):
        for w in range(7):                      ─────>                       for c in range(64):
            for c in range(64):                                                  with block("C"):
                with block("C"):                                                     vh_f = spatial(49, h_f)
                    vh = spatial(7, h); vw = spatial(7, w); …                        C[vh_f // 7, vh_f % 7,
                    vc] = … C[vh, vw, vc] = …

Unlike `fuse`, which leaves the block as it is, the block's own domain changes, so that tiles of the fused
iterator are boxes: rows of an image become rows of a matrix. The block is alone under plain loops, one per
iterator.
"""

import math
from dataclasses import dataclass, replace

from tilewright.ir.expr import Expr, Var
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_block
from tilewright.schedule.names import check_fresh
from tilewright.schedule.own_nest import own_nest, replace_own_nest
from tilewright.schedule.preconditions import check_closed
from tilewright.schedule.step import BlockStep
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_exprs, substitute_stmt
from tilewright.tir.stmt import Block, Iter


@dataclass(frozen=True, slots=True)
class FuseIters(BlockStep):
    iters: tuple[str, ...]  # outermost first; the order in which the fused iterator runs through them

    @property
    def iter(self) -> str:
        """The new iterator."""
        return f"{self.iters[0]}_f"

    def rewrite(self, func: Func) -> Func:
        block = find_block(func, self.block)
        check_closed(func, block)
        nest = own_nest(func, block)
        by_name = {it.var.name: it for it in block.iters}
        unknown = [n for n in self.iters if n not in by_name]
        if unknown or len(set(self.iters)) < 2:
            known = ", ".join(by_name)
            raise step_refusal(
                func, block, f"{self}: needs two or more of the block's iterators", hint=f"they are: {known}"
            )
        old = [by_name[n] for n in self.iters]
        if len({it.kind for it in old}) != 1:
            raise step_refusal(func, block, f"{self}: spatial and reduce iterators do not fuse")
        loop_of = {
            it.var: nest[b] for it, b in zip(block.iters, block.bindings, strict=True) if isinstance(b, Var)
        }
        fused = Iter(Var(self.iter), math.prod(it.extent for it in old), old[0].kind)
        loop = Var(f"{loop_of[old[0].var].var.name}_f")
        new_block = self._rewritten(block, old, fused, loop)
        check_fresh(func, (loop.name, self.iter))
        return replace_own_nest(func, block, new_block)

    def _rewritten(self, block: Block, old: list[Iter], fused: Iter, loop: Var) -> Block:
        values: dict[Var, Expr] = {}
        rest: Expr = fused.var
        for it in reversed(old[1:]):
            values[it.var] = rest % it.extent
            rest = rest // it.extent
        values[old[0].var] = rest
        iters: list[Iter] = []
        bindings: list[Expr] = []
        for it, binding in zip(block.iters, block.bindings, strict=True):
            if it.var is old[0].var:
                iters.append(fused)
                bindings.append(loop)
            elif it.var not in values:
                iters.append(it)
                bindings.append(binding)
        simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in iters})
        body = map_exprs(substitute_stmt(block.body, values), simplify)
        init = None if block.init is None else map_exprs(substitute_stmt(block.init, values), simplify)
        return replace(block, iters=tuple(iters), bindings=tuple(bindings), body=body, init=init)

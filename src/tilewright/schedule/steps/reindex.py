"""reindex: an operand is copied into the order in which a block's iterators want it.

    for i, j, k:                           Reindex("C", "B", ("vj", "vk"))      for …_loop:
        C[vi, vj] += A[vi, vk] * B[vk, vj]         ─────>                            C_B_reindex[vj, vk] = B[vk, vj]
                                                                                for i, j, k:
                                                                                    C[vi, vj] += A[vi, vk] *
                                                                                    C_B[vj, vk]

The copy has one dimension per named iterator, whatever index arithmetic the operand was read through, so a
layout change of it is a change of these dimensions. Where the operand is a constant, the copy is made at
compile time. The block reads the buffer through one index map that uses exactly the named iterators, and what it
reads can be read in front of its nest (`schedule/early_read.py`).
"""

from dataclasses import dataclass, replace

from tilewright.ir.expr import Buffer, Expr, Load, Scope, Var, free_vars, loads
from tilewright.ir.rewrite import substitute as substitute_expr
from tilewright.ir.rewrite import transform
from tilewright.schedule.early_read import check_early_read
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_block
from tilewright.schedule.names import check_fresh
from tilewright.schedule.own_nest import own_nest, replace_own_nest, under_own_loops
from tilewright.schedule.step import BlockStep
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_exprs
from tilewright.tir.stmt import Block, Iter, Seq, Stmt, Store, seq, stmt_exprs, walk_stmts


@dataclass(frozen=True, slots=True)
class Reindex(BlockStep):
    buffer: str
    iters: tuple[str, ...]

    @property
    def copy(self) -> str:
        """The new block, and the new buffer."""
        return f"{self.block}_{self.buffer}_reindex"

    @property
    def loops(self) -> tuple[str, ...]:
        """The loops of the new block, one per named iterator."""
        return tuple(f"{self.copy}_{n}_loop" for n in self.iters)

    def rewrite(self, func: Func) -> Func:
        block = find_block(func, self.block)
        own_nest(func, block)
        read = {
            ld
            for n in walk_stmts(block)
            for e in stmt_exprs(n)
            for ld in loads(e)
            if ld.buffer.name == self.buffer
        }
        if len(read) != 1:
            raise step_refusal(
                func, block, f"{self}: the block reads {self.buffer} in {len(read)} ways, not in one"
            )
        load = read.pop()
        by_name = {it.var.name: it for it in block.iters}
        used = {v.name for i in load.indices for v in free_vars(i)}
        if used != set(self.iters) or len(self.iters) != len(used) or not used <= by_name.keys():
            raise step_refusal(
                func,
                block,
                f"{self}: {self.buffer} is indexed by {', '.join(sorted(used))}",
                hint="name exactly these",
            )
        check_early_read(func, block, load)
        old = [by_name[n] for n in self.iters]
        copied = Buffer(self.copy, tuple(it.extent for it in old), load.dtype, Scope.GLOBAL)
        fresh = {it.var: Var(f"{self.copy}_{it.var.name}") for it in old}
        check_fresh(func, (self.copy, *self.loops, *(v.name for v in fresh.values())))
        source = substitute_expr(load, dict[Var, Expr](fresh))
        copy = Block(
            self.copy,
            tuple(Iter(fresh[it.var], it.extent) for it in old),
            tuple(Var(n) for n in self.loops),
            Store(copied, tuple(fresh[it.var] for it in old), source),
        )
        new_load = Load(copied, tuple(it.var for it in old))
        reading = map_exprs(block, lambda e: transform(e, lambda n: new_load if n is load else None))
        assert isinstance(reading, Block)
        func = replace(replace_own_nest(func, block, reading), locals=(*func.locals, copied))
        return func.with_body(insert_before(func.body, find_block(func, self.block), under_own_loops(copy)))


def insert_before(body: Stmt, block: Block, new: Stmt) -> Stmt:
    """`new` just before the top-level nest that holds `block`."""
    stmts = body.stmts if isinstance(body, Seq) else (body,)
    out: list[Stmt] = []
    for s in stmts:
        if any(n is block for n in walk_stmts(s)):
            out.append(new)
        out.append(s)
    return seq(*out)

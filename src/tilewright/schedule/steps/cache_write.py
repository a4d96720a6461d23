"""cache_write: a block writes a new buffer near it, and a new block copies that to where it belongs.

    for i, j, k:                       CacheWrite("C", "C", REGISTER)     for i, j, k:
        C[i, j] += A[i, k] * B[k, j]          ─────>                          C_register[i, j] += A[i, k] * B[k, j]
                                                                          for C_C_out_i0, C_C_out_i1:
                                                                              C[…] = C_register[…]

The new buffer has the full shape; when the copy is moved next to the block by ReverseComputeAt, compaction leaves it
the tile that is in use. The copy runs over exactly what the block writes.

The block may be a tile with blocks in it, as Blockize makes them: then all of these write the new buffer. No other
block writes the old one, and what the block reads of it is what it has written itself: an accumulator, after init.
"""

from dataclasses import dataclass, replace

from tilewright.ir.expr import Buffer, Scope, Var
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.edit import insert_nest, replace_stmt
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import contains_block, find_block, find_buffer, nest_of, top_level
from tilewright.schedule.names import check_fresh
from tilewright.schedule.preconditions import check_leaf, check_not_in_place, check_sole_writer
from tilewright.schedule.step import BlockStep
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.analysis.regions import BufferRegion, accesses, box, loop_extents, region
from tilewright.tir.func import Func
from tilewright.tir.rewrite import redirect
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, For, Iter, Stmt, Store, blocks


@dataclass(frozen=True, slots=True)
class CacheWrite(BlockStep):
    buffer: str
    scope: Scope

    @property
    def cache(self) -> str:
        """The new buffer."""
        return f"{self.buffer}_{self.scope.value}"

    @property
    def copy(self) -> str:
        """The new block."""
        return f"{self.block}_{self.buffer}_out"

    def rewrite(self, func: Func) -> Func:
        block, buffer = find_block(func, self.block), find_buffer(func, self.buffer)
        flow = Dataflow(func)
        inside = list(blocks(block))
        written = dict.fromkeys(b for w in inside for b in flow.writes(w))
        if buffer not in written:
            raise step_refusal(
                func,
                block,
                f"block {block.name!r} does not write {buffer.name}",
                f"it writes {', '.join(b.name for b in written)}",
            )
        if len(inside) == 1:
            check_leaf(func, block)
            check_sole_writer(func, flow, block)
            check_not_in_place(func, flow, block)
        else:
            _check_tile(func, flow, block, buffer)
        at = nest_of(func, block)
        for r in flow.readers(buffer):
            if not contains_block(block, r) and contains_block(top_level(func)[at], r):
                raise step_refusal(
                    func,
                    r,
                    f"block {r.name!r} in the same nest reads {buffer.name} before the copy is made",
                    "cache the buffer before its consumers are moved",
                )
        cache = Buffer(self.cache, buffer.shape, buffer.dtype, self.scope, buffer.sizes)
        copy, names = copy_nest(self.copy, cache, buffer, self._written(func, block, buffer))
        check_fresh(func, (self.cache, self.copy, *names))
        func = insert_nest(replace(func, locals=(*func.locals, cache)), at + 1, copy)
        return replace_stmt(func, block, redirect(block, {buffer: cache}))

    def _written(self, func: Func, block: Block, buffer: Buffer) -> BufferRegion:
        """What the block writes over all its instances: exactly that is copied."""
        simplify = Simplifier(ranges(block))
        ranging = {it.var: it.extent for it in block.iters} | loop_extents(block.body)
        stored = [a for a in accesses(block.body, reads=False) if a.buffer is buffer]
        boxes = [box(a, ranging, simplify) for a in stored]
        spans = boxes[0].spans
        whole = tuple(s for s in spans if s is not None)
        is_box = len(whole) == len(spans) and all(
            b.exact and b.spans == spans and all(a.keeps_domain(c, simplify) for c in b.conditions)
            for a, b in zip(stored, boxes, strict=True)
        )
        if not is_box:
            raise step_refusal(
                func,
                block,
                f"what block {block.name!r} writes to {buffer.name} is not known to be a box without holes",
                "a copy would move elements that were never written",
            )
        return whole


def _check_tile(func: Func, flow: Dataflow, block: Block, buffer: Buffer) -> None:
    """Of the blocks in `block`, each that reads `buffer` updates elements that an init has set just before."""
    for w in flow.writers(buffer):
        if not contains_block(block, w):
            raise step_refusal(
                func,
                w,
                f"{buffer.name} has two writers, blocks {block.name!r} and {w.name!r}",
                "apply the step before the loop is partitioned or the reduction decomposed",
            )
    simplify = Simplifier(ranges(block))
    is_filled = block.init is not None and region(block.init, buffer, simplify, reads=False) == region(
        block.body, buffer, simplify
    )
    for r in (r for r in flow.readers(buffer) if contains_block(block, r)):
        if r.init is not None or not is_filled:
            check_not_in_place(func, flow, r)
            continue
        touched = [a for a in accesses(r.body) if a.buffer is buffer]
        if len({a.indices for a in touched}) > 1 or not any(a.is_write for a in touched):
            raise step_refusal(
                func,
                r,
                f"block {r.name!r} reads {buffer.name} where it does not write it",
                "cache the buffer before the block around it is made",
            )


def copy_nest(name: str, source: Buffer, target: Buffer, over: BufferRegion) -> tuple[Stmt, tuple[str, ...]]:
    """Loops `<name>_i<d>` around a block `name` that copies the part `over` of `source` to the same place in
    `target`; and the names of its loops and iterators.
    """
    loops = tuple(Var(f"{name}_i{d}") for d in range(len(over)))
    iters = tuple(Iter(Var(f"{name}_v{d}"), s.extent) for d, s in enumerate(over))
    indices = tuple(s.min + it.var for s, it in zip(over, iters, strict=True))
    nest: Stmt = Block(name, iters, loops, Store(target, indices, source[indices]))
    for var, it in zip(reversed(loops), reversed(iters), strict=True):
        nest = For(var, it.extent, nest)
    return nest, tuple(v.name for v in (*loops, *(it.var for it in iters)))

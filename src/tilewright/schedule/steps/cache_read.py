"""cache_read: a block reads a copy that a new block makes before it.

    for i, j, k:                       CacheRead("C", "B", LOCAL)     for C_B_in_i0, C_B_in_i1:
        C[i, j] += A[i, k] * B[k, j]          ─────>                      B_C_local[…] = B[…]
                                                                      for i, j, k:
                                                                          C[i, j] += A[i, k] * B_C_local[k, j]

The copy has the full shape and holds what the block reads. ComputeAt moves the copying into the nest and
TransformLayout packs the copy; compaction leaves it what is in use there. It is a box, all of which must have been
written.
"""

from dataclasses import dataclass, replace

from tilewright.ir.expr import Buffer, Scope
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.cover import made_before
from tilewright.schedule.edit import insert_nest, replace_stmt
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_block, find_buffer, nest_of
from tilewright.schedule.names import check_fresh
from tilewright.schedule.preconditions import check_leaf
from tilewright.schedule.step import BlockStep
from tilewright.schedule.steps.cache_write import copy_nest
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.analysis.regions import region
from tilewright.tir.func import Func
from tilewright.tir.rewrite import redirect
from tilewright.tir.simplify import ranges


@dataclass(frozen=True, slots=True)
class CacheRead(BlockStep):
    buffer: str
    scope: Scope

    @property
    def cache(self) -> str:
        """The new buffer."""
        return f"{self.buffer}_{self.block}_{self.scope.value}"

    @property
    def copy(self) -> str:
        """The new block."""
        return f"{self.block}_{self.buffer}_in"

    def rewrite(self, func: Func) -> Func:
        block, buffer = find_block(func, self.block), find_buffer(func, self.buffer)
        flow = Dataflow(func)
        check_leaf(func, block)
        if buffer not in flow.reads(block):
            raise step_refusal(
                func,
                block,
                f"block {block.name!r} does not read {buffer.name}",
                f"it reads {', '.join(b.name for b in flow.reads(block)) or 'nothing'}",
            )
        at = nest_of(func, block)
        for w in flow.writers(buffer):
            if nest_of(func, w) >= at:
                raise step_refusal(
                    func,
                    w,
                    f"block {w.name!r} writes {buffer.name} in the nest of block {block.name!r} or after it; the copy "
                    "would be made too early",
                    "cache the buffer before the blocks are moved into one nest",
                )
        iters = {it.var: it.extent for it in block.iters}
        used = region(block.body, buffer, Simplifier(ranges(block)), writes=False, ranging=iters)
        assert used is not None  # the block reads it
        cache = Buffer(self.cache, buffer.shape, buffer.dtype, self.scope, buffer.sizes)
        copy, names = copy_nest(self.copy, buffer, cache, used)
        check_fresh(func, (self.cache, self.copy, *names))
        made = replace(func, locals=(*func.locals, cache))
        made = replace_stmt(made, block, redirect(block, {buffer: cache}))
        made = insert_nest(made, at, copy)
        if buffer in func.locals:
            verdict = made_before(made, self.copy, buffer)
            if verdict.is_broken:
                raise step_refusal(
                    func,
                    block,
                    f"the smallest box around what block {block.name!r} reads of {buffer.name} holds elements that "
                    f"nobody writes: {verdict.reason}",
                    "cache the buffer before its layout is padded",
                )
        return made

"""reverse_compute_at: a consumer moves under a loop of its producers, to follow them there.

    for i, j:                      ReverseComputeAt("D", "i")      for i:
        C[i, j] = f(A[i, j])              ─────>                       for j:
    for m, n:                                                              C[i, j] = f(A[i, j])
        D[m, n] = relu(C[m, n])                                        for D_0 in range(1), D_1:
                                                                           D[i + D_0, D_1] = relu(C[…])

The consumer's loops are made anew, `<block>_<n>` for iterator n: an iteration of `loop` runs exactly those of its
instances that read what the producers have written in that iteration. So what it reads must be finished there: `loop`
and the loops around it feed no reduction of a producer, the producers write a box without holes, and no instance
reads beyond that box. Inputs that are written elsewhere must be complete before the nest of `loop` starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.expr import Buffer, Const, Expr, as_index
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.available import available, missing
from tilewright.schedule.edit import under_new_loops, with_loop_body, without_block
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import contains_block, domain_of, find_block, find_loop, path_to, simplifier_at
from tilewright.schedule.preconditions import (
    check_leaf,
    check_not_in_place,
    check_not_overwritten,
    check_not_read_before,
    check_parallel,
    check_scope,
    check_sole_writer,
)
from tilewright.schedule.step import BlockStep
from tilewright.support.errors import ScheduleError
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.analysis.regions import Access, BufferRegion, Span, accesses
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, Stmt, seq, store_blocks


@dataclass(frozen=True, slots=True)
class ReverseComputeAt(BlockStep):
    loop: str

    def rewrite(self, func: Func) -> Func:
        block, loop = find_block(func, self.block), find_loop(func, self.loop)
        flow = Dataflow(func)
        check_leaf(func, block)
        check_scope(func, block, loop)
        check_sole_writer(func, flow, block, before=loop)
        check_not_in_place(func, flow, block)
        check_not_read_before(func, flow, block)
        check_not_overwritten(func, flow, block)
        for r in flow.consumers(block):
            if contains_block(loop, r):
                raise step_refusal(
                    func,
                    r,
                    f"block {r.name!r} under loop {loop.var.name!r} reads what block {block.name!r} writes; "
                    f"{block.name!r} cannot run at the end of the loop's body",
                    "move the last consumer first",
                )
        rest = without_block(func.body, block)
        if rest is None:
            raise step_refusal(func, block, f"block {block.name!r} is alone in {func.name}")
        simplify = simplifier_at(rest, block)
        parts = available(func, flow, block, loop, None, simplify)
        if not any(written_inside for _, written_inside in parts.values()):
            raise step_refusal(
                func,
                loop,
                f"no block under loop {loop.var.name!r} writes what block {block.name!r} reads",
                "choose a loop around its producers",
            )
        nest = _placed(func, rest, block, loop, parts, simplify)
        return func.with_body(with_loop_body(rest, loop.var, lambda b: seq(b, nest)))


def _placed(
    func: Func,
    rest: Stmt,
    block: Block,
    loop: For,
    parts: Mapping[Buffer, tuple[BufferRegion, bool]],
    simplify: Simplifier,
) -> Stmt:
    """The block under its new loops.

    One read, which every instance does, decides which instances belong to an iteration; were it two, an instance
    might find its inputs in two different iterations. If no read decides, all instances belong to each.
    """
    failed: ScheduleError | None = None
    for read in (*_deciding(func, block, parts), None):
        if failed is not None:
            simplify = simplifier_at(rest, block)  # forget the loops of the last attempt
        spans: list[Span | None] = [None] * len(block.iters)
        if read is not None:
            spans = domain_of(block, read.indices, parts[read.buffer][0], simplify)
            spans = [_inside(s, it.extent) for s, it in zip(spans, block.iters, strict=True)]
        nest = under_new_loops(func, rest, block, spans, simplify)
        short = missing(nest, parts, simplify)
        if short is None:
            check_parallel(func, nest, path_to(func.body, loop), simplify)
            return nest
        failed = failed or step_refusal(
            func,
            loop,
            f"block {block.name!r} needs more of {short.name} than one iteration of {loop.var.name!r} has written",
            "choose a loop further out",
        )
    assert failed is not None
    raise failed


def _deciding(func: Func, block: Block, parts: Mapping[Buffer, tuple[BufferRegion, bool]]) -> list[Access]:
    """The reads that every instance does or could do, of what is written inside the loop."""
    reads = [a for a in accesses(block.body) if not a.is_write and a.buffer in parts and parts[a.buffer][1]]
    return [a for a in reads if not a.guarded or _has_element(func, block, a)]


def _has_element(func: Func, block: Block, read: Access) -> bool:
    """Does a read under a condition have an element that is written, whether or not the condition holds?"""
    writers = [b for b, store in store_blocks(func.body) if store.buffer is read.buffer]
    if len(writers) != 1 or not _fills(writers[0]):
        return False
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    bounds = [simplify.bounds(i) for i in read.indices]
    return all(b.lo >= 0 and b.hi < n for b, n in zip(bounds, read.buffer.shape, strict=True))


def _fills(block: Block) -> bool:
    """Does the block write every element of its buffer?"""
    extents: dict[Expr, int] = {it.var: it.extent for it in block.iters}
    indices = block.store.indices
    runs = tuple([1 if isinstance(i, Const) else extents.pop(i, 0) for i in indices])  # each iterator once
    return runs == block.store.buffer.shape


def _inside(span: Span | None, extent: int) -> Span | None:
    """The part of a constant span inside the domain 0 … extent-1."""
    if span is None or not isinstance(span.min, Const):
        return span
    start = max(int(span.min.value), 0)
    return Span(as_index(start), min(int(span.min.value) + span.extent, extent) - start)

"""compute_at: a producer moves under a loop of its consumers, to compute there what an iteration needs.

    for i: T[i] = f(A[i])                    ComputeAt("T", "j")        for j:
    for j: D[j] = T[j] + T[j + 1]                 ─────>                    for T_0 in range(2): T[j + T_0] = f(A[…])
                                                                            D[j] = T[j] + T[j + 1]

The producer's loops are made anew, `<block>_<n>` for iterator n, and cover the region that its consumers read in one
iteration of `loop`; where the regions of two iterations overlap, elements are computed again. A reduction runs all
of its reduction there. All consumers must be under the loop, and what the producer reads complete in front of the
first of them.
"""

from dataclasses import dataclass

from tilewright.ir.simplify import Simplifier
from tilewright.schedule.available import available, missing
from tilewright.schedule.edit import under_new_loops, with_loop_body, without_block
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import contains_block, domain_of, find_block, find_loop, path_to, simplifier_at
from tilewright.schedule.preconditions import (
    check_inputs_stay,
    check_leaf,
    check_local,
    check_not_in_place,
    check_not_overwritten,
    check_not_read_before,
    check_parallel,
    check_scope,
    check_sole_writer,
)
from tilewright.schedule.step import BlockStep
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.analysis.regions import Span, region
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, Seq, Stmt, Store, blocks, seq, walk_stmts


@dataclass(frozen=True, slots=True)
class ComputeAt(BlockStep):
    loop: str

    def rewrite(self, func: Func) -> Func:
        block, loop = find_block(func, self.block), find_loop(func, self.loop)
        flow = Dataflow(func)
        check_leaf(func, block)
        check_scope(func, block, loop)
        for buffer in flow.writes(block):
            check_local(func, buffer, block)
        check_sole_writer(func, flow, block)
        check_not_in_place(func, flow, block)
        check_inputs_stay(func, flow, block)
        check_not_read_before(func, flow, block)
        check_not_overwritten(func, flow, block)
        first = _first_consumer(func, flow, block, loop)
        rest = without_block(func.body, block)
        assert rest is not None  # the consumers are left
        simplify = simplifier_at(rest, block)
        parts = available(func, flow, block, loop, _holding(loop.body, first), simplify)
        nest = under_new_loops(func, rest, block, _domains(block, _readers(loop, block), simplify), simplify)
        short = missing(nest, parts, simplify)
        if short is not None:
            raise step_refusal(
                func,
                loop,
                f"block {block.name!r} needs more of {short.name} than is complete inside loop {loop.var.name!r}",
                "choose a loop further out, or move the producers of its inputs first",
            )
        check_parallel(func, nest, path_to(func.body, loop), simplify)
        return func.with_body(with_loop_body(rest, loop.var, lambda b: _insert(b, nest, first)))


def _first_consumer(func: Func, flow: Dataflow, block: Block, loop: For) -> Block:
    consumers = flow.consumers(block)
    if not consumers:
        raise step_refusal(func, block, f"nothing in {func.name} reads what block {block.name!r} writes")
    for c in consumers:
        if not contains_block(loop, c):
            raise step_refusal(
                func,
                c,
                f"consumer {c.name!r} of block {block.name!r} is not under loop {loop.var.name!r}",
                "choose a loop around all consumers, or move this consumer first with ReverseComputeAt",
            )
    return consumers[0]


def _readers(loop: For, block: Block) -> Stmt:
    """The body of `loop`, without `block` if that is in it already."""
    body = without_block(loop.body, block)
    assert body is not None  # the consumers are left
    return body


def _domains(block: Block, readers: Stmt, simplify: Simplifier) -> list[Span | None]:
    """The part of each iterator's domain that one run of `readers` needs; None: all of it."""
    stores = {(s.buffer, s.indices) for s in walk_stmts(block) if isinstance(s, Store)}
    if len(stores) != 1:
        return [None] * len(block.iters)
    ((buffer, indices),) = stores
    needed = region(readers, buffer, simplify, writes=False)
    assert needed is not None  # there is a consumer
    spans = domain_of(block, indices, needed, simplify)
    return [
        s if s is not None and s.extent < it.extent else None
        for s, it in zip(spans, block.iters, strict=True)
    ]


def _holding(body: Stmt, block: Block) -> Stmt:
    """The statement of a loop's body that holds `block`, which may have been rebuilt since."""
    stmts = body.stmts if isinstance(body, Seq) else (body,)
    return next(s for s in stmts if any(b.name == block.name for b in blocks(s)))


def _insert(body: Stmt, nest: Stmt, before: Block) -> Stmt:
    """`nest` in front of the statement that holds the block `before`."""
    at = _holding(body, before)
    stmts = body.stmts if isinstance(body, Seq) else (body,)
    return seq(*(s for old in stmts for s in ((nest, old) if old is at else (old,))))

"""reverse_compute_inline: a producer computes what its only consumer would.

    for i, j: C[i, j] = A[i, j] * 2         ReverseComputeInline("D")       for i, j: D[j, i] = A[i, j] * 2 + 1
    for m, n: D[m, n] = C[n, m] + 1                ─────>

The consumer reads its producer's buffer at one place per instance, and each element in exactly one instance, so the
producer can store the consumer's value instead of its own. The buffer between them disappears. A reduction cannot
take its consumer in: it would apply it to every partial sum. ReverseComputeAt is for that.
"""

from dataclasses import dataclass, replace

from tilewright.ir.expr import Buffer, Expr, Load, Var
from tilewright.ir.expr import loads as loads_of
from tilewright.ir.rewrite import Memo
from tilewright.ir.rewrite import transform as transform_expr
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.edit import swap_stmt, without_block
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_block, is_done_before, path_to
from tilewright.schedule.preconditions import (
    check_leaf,
    check_local,
    check_not_in_place,
    check_not_nested,
    check_not_overwritten,
    check_not_read_before,
    check_parallel,
    check_single_store,
    check_sole_writer,
)
from tilewright.schedule.step import BlockStep
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.analysis.regions import Access, accesses, box
from tilewright.tir.analysis.solve import try_solve
from tilewright.tir.func import Func
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, Store


@dataclass(frozen=True, slots=True)
class ReverseComputeInline(BlockStep):
    def rewrite(self, func: Func) -> Func:
        block = find_block(func, self.block)
        flow = Dataflow(func)
        check_leaf(func, block)
        check_not_nested(func, block)
        store = check_single_store(func, block)
        check_sole_writer(func, flow, block)
        check_not_in_place(func, flow, block)
        check_not_read_before(func, flow, block)
        check_not_overwritten(func, flow, block)
        producer = _last_producer(func, flow, block)
        made = check_single_store(func, producer)
        check_leaf(func, producer)
        check_local(func, made.buffer, producer)
        check_sole_writer(func, flow, producer)
        check_not_in_place(func, flow, producer)
        check_not_read_before(func, flow, producer)
        check_not_overwritten(func, flow, producer)
        for r in flow.consumers(producer):
            if r is not block:
                raise step_refusal(func, r, f"block {r.name!r} reads {made.buffer.name} too")
        for buffer in flow.reads(block):
            for w in flow.writers(buffer):
                if w is not producer and not is_done_before(func, w, producer):
                    raise step_refusal(
                        func,
                        w,
                        f"block {block.name!r} also reads {buffer.name}, which is not complete where block "
                        f"{producer.name!r} runs",
                    )
        simplify = Simplifier(ranges(func.body))
        read = _only_read(func, block, store, made.buffer)
        if not _same_box(block, producer, simplify, made.buffer):
            raise step_refusal(
                func,
                block,
                f"block {block.name!r} does not read every element of {made.buffer.name} that block "
                f"{producer.name!r} writes in exactly one instance",
                "inline the producer with ComputeInline instead",
            )
        values = try_solve(read.indices, made.indices, block.iters, simplify)
        if values is None:
            raise step_refusal(
                func,
                block,
                f"the indices at which block {block.name!r} reads {made.buffer.name} do not decide its iterators",
                "inline the producer with ComputeInline instead",
            )
        body = without_block(func.body, block)
        assert body is not None  # the producer is left
        new = replace(producer, body=_composed(store, made, values, simplify))
        check_parallel(func, new, path_to(func.body, producer), simplify)
        body = swap_stmt(body, producer, new)
        return replace(func, body=body, locals=tuple(b for b in func.locals if b is not made.buffer))


def _last_producer(func: Func, flow: Dataflow, block: Block) -> Block:
    """The producer to inline into: the last one. What the others write may be complete before it."""
    producers = flow.producers(block)
    if not producers:
        raise step_refusal(
            func,
            block,
            f"no block of {func.name} writes what block {block.name!r} reads",
            "only a consumer of another block of the same Func can be inlined into it",
        )
    return producers[-1]


def _only_read(func: Func, block: Block, store: Store, buffer: Buffer) -> Load:
    found = [n for n in loads_of(store.value) if n.buffer is buffer]
    if len(found) != 1:
        raise step_refusal(
            func,
            block,
            f"block {block.name!r} reads {buffer.name} at {len(found)} different places",
            "inline the producer with ComputeInline instead",
        )
    return found[0]


def _same_box(block: Block, producer: Block, simplify: Simplifier, buffer: Buffer) -> bool:
    """Do both blocks touch the same box of `buffer`, each element of it?"""

    def touched(b: Block) -> list[Access]:
        return [a for a in accesses(b.body) if a.buffer is buffer]

    ranging = {it.var: it.extent for b in (block, producer) for it in b.iters}
    boxes = {box(replace(a, guarded=False), ranging, simplify) for b in (block, producer) for a in touched(b)}
    return len(boxes) == 1 and all(b.exact and None not in b.spans for b in boxes)


def _composed(consumer: Store, producer: Store, values: dict[Var, Expr], simplify: Simplifier) -> Store:
    """What the consumer stores, as a function of the producer's iterators."""
    memo: Memo = {}

    def compose(n: Expr) -> Expr | None:
        if isinstance(n, Var):
            return values.get(n)
        return producer.value if isinstance(n, Load) and n.buffer is producer.buffer else None

    indices = tuple([simplify(transform_expr(i, compose, memo)) for i in consumer.indices])
    return Store(consumer.buffer, indices, simplify(transform_expr(consumer.value, compose, memo)))

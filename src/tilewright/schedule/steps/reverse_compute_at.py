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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.expr import Buffer, Const, Var, as_index, free_vars
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.excerpt import refusal
from tilewright.schedule.moves import (
    check_leaf,
    check_not_in_place,
    check_not_read_before,
    check_parallel,
    check_scope,
    check_sole_writer,
    holds,
    is_done_before,
    under_new_loops,
    with_loop_body,
    without_block,
)
from tilewright.schedule.nest import find_block, find_loop, path_to
from tilewright.schedule.step import FuncStep
from tilewright.support.errors import ScheduleError
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.analysis.regions import (
    Access,
    Region,
    Span,
    accesses,
    box,
    contains,
    exact_union,
    loop_extents,
)
from tilewright.tir.func import Func
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, For, IterKind, Stmt, seq


@dataclass(frozen=True, slots=True)
class ReverseComputeAt(FuncStep):
    block: str
    loop: str

    def anchor(self) -> str:
        return self.block

    def rewrite(self, func: Func) -> Func:
        block, loop = find_block(func, self.block), find_loop(func, self.loop)
        flow = Dataflow(func)
        check_leaf(func, block)
        check_scope(func, block, loop)
        check_sole_writer(func, flow, block)
        check_not_in_place(func, flow, block)
        check_not_read_before(func, flow, block)
        for r in flow.consumers(block):
            if holds(loop, r):
                raise refusal(
                    func,
                    r,
                    f"block {r.name!r} under loop {loop.var.name!r} reads what block {block.name!r} writes; "
                    f"{block.name!r} cannot run at the end of the loop's body",
                    "move the last consumer first",
                )
        nest = _placed(func, block, loop, _written(func, flow, block, loop))
        check_parallel(func, nest, path_to(func.body, loop), Simplifier(ranges(func.body) | ranges(nest)))
        body = without_block(func.body, block)
        assert body is not None  # the producers are left
        return func.with_body(with_loop_body(body, loop.var, lambda b: seq(b, nest)))


def _written(func: Func, flow: Dataflow, block: Block, loop: For) -> dict[Buffer, Region]:
    """The part of each input that is complete at the end of one iteration of `loop`. Inputs that are complete
    altogether are left out.
    """
    simplify = Simplifier(ranges(func.body))
    above = [n for n in path_to(func.body, loop) if isinstance(n, For)]
    inside = accesses(loop.body)
    out: dict[Buffer, Region] = {}
    for buffer in flow.reads(block):
        writers = [w for w in flow.writers(buffer) if w is not block]
        under = [w for w in writers if holds(loop, w)]
        if under and len(under) == len(writers):
            stores = [a for a in inside if a.is_write and a.buffer is buffer]
            out[buffer] = _complete_box(
                func, buffer, under[-1], stores, above, loop_extents(loop.body), simplify
            )
            continue
        for other in writers:
            if under or not is_done_before(func, other, loop):
                raise refusal(
                    func,
                    other,
                    f"block {other.name!r}, which writes {buffer.name}, is not under loop {loop.var.name!r}",
                    "every producer must be under the loop, or complete before the nest that holds the loop",
                )
    if not out:
        raise refusal(
            func,
            loop,
            f"no block under loop {loop.var.name!r} writes what block {block.name!r} reads",
            "choose a loop around its producers",
        )
    return out


def _complete_box(
    func: Func,
    buffer: Buffer,
    writer: Block,
    stores: Sequence[Access],
    above: Sequence[For],
    ranging: Mapping[Var, int],
    simplify: Simplifier,
) -> Region:
    """What these stores write in one iteration of the loops `above`: finished, and a box without holes."""
    boxes: list[Region] = []
    for a in stores:
        reduced = [v for it, value in a.iters if it.kind is IterKind.REDUCE for v in free_vars(value)]
        for loop in above:
            if loop.extent > 1 and loop.var in reduced:
                raise refusal(
                    func,
                    loop,
                    f"loop {loop.var.name!r} carries the reduction of block {writer.name!r}: {buffer.name} is not "
                    "finished inside it",
                    "choose a loop outside all reduction loops of the producers",
                )
        found = box(a, ranging, simplify)
        spans = tuple(s for s in found.spans if s is not None)
        domain_only = all(a.keeps_domain(c, simplify) for c in found.conditions)
        if not found.exact or not domain_only or len(spans) < len(found.spans):
            raise refusal(
                func,
                writer,
                f"what block {writer.name!r} writes to {buffer.name} in one iteration of {above[-1].var.name!r} is "
                "not known to be a box without holes",
                "choose another loop",
            )
        boxes.append(spans)
    whole = exact_union(boxes, simplify)
    if whole is None:
        raise refusal(
            func,
            writer,
            f"the writers of {buffer.name} under {above[-1].var.name!r} do not fill one box together",
            "choose another loop",
        )
    return whole


def _placed(func: Func, block: Block, loop: For, written: Mapping[Buffer, Region]) -> Stmt:
    """The block under its new loops.

    One read, which every instance does, decides which instances belong to an iteration; were it two, an instance
    might find its inputs in two different iterations.
    """
    failed: ScheduleError | None = None
    for spans in _domains(block, written):
        nest = under_new_loops(func, block, spans)
        missing = _missing(func, nest, written)
        if missing is None:
            return nest
        failed = failed or refusal(
            func,
            loop,
            f"block {block.name!r} needs more of {missing.name} than one iteration of {loop.var.name!r} has written",
            "choose a loop further out",
        )
    assert failed is not None  # _domains yields at least once
    raise failed


def _domains(block: Block, written: Mapping[Buffer, Region]) -> Iterator[list[Span | None]]:
    """The iterators' domains by each read that may decide them; last, the whole domains."""
    simplify = Simplifier(ranges(block))
    for read in accesses(block.body):
        if read.is_write or read.guarded or read.buffer not in written:
            continue
        spans: dict[Var, Span] = {}
        for index, span in zip(read.indices, written[read.buffer], strict=True):
            form = simplify.linear(index)
            if len(form.terms) == 1 and form.terms[0][1] == 1 and isinstance(form.terms[0][0], Var):
                spans.setdefault(form.terms[0][0], Span(simplify(span.min - form.const), span.extent))
        yield [
            _inside(spans.get(it.var), it.extent) if it.kind is IterKind.SPATIAL else None
            for it in block.iters
        ]
    yield [None] * len(block.iters)


def _inside(span: Span | None, extent: int) -> Span | None:
    """The part of a constant span inside the domain 0 … extent-1."""
    if span is None or not isinstance(span.min, Const):
        return span
    start = max(int(span.min.value), 0)
    return Span(as_index(start), min(int(span.min.value) + span.extent, extent) - start)


def _missing(func: Func, nest: Stmt, written: Mapping[Buffer, Region]) -> Buffer | None:
    """An input of which the nest reads more than is written."""
    simplify = Simplifier(ranges(func.body) | ranges(nest))
    ranging = loop_extents(nest)
    for read in accesses(nest):
        region = written.get(read.buffer)
        if read.is_write or region is None:
            continue
        for need, have, size in zip(
            box(read, ranging, simplify).spans, region, read.buffer.shape, strict=True
        ):
            if not contains(have, need or Span(as_index(0), size), size, simplify):
                return read.buffer
    return None

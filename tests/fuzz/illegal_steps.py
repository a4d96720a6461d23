"""Steps that break a precondition on purpose.

Each rule looks at a program and makes steps that are certainly wrong there: of a kind that a mistaken recipe or a
mutated trace would try. They must be refused, whatever the steps before have made of the program.
"""

from collections.abc import Callable, Iterator

from tilewright.ir import layout as layouts
from tilewright.ir.expr import Scope, free_vars
from tilewright.ir.layout import Layout
from tilewright.schedule.find import path_to
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    DecomposeReduction,
    Fuse,
    FuseIters,
    IterateOver,
    LoopPartition,
    Merge,
    PadEinsum,
    Parallel,
    Reindex,
    Reorder,
    ReverseComputeAt,
    ReverseComputeInline,
    Rfactor,
    SetScope,
    Split,
    Tensorize,
    TransformLayout,
    Vectorize,
)
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.analysis.regions import accesses
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, IterKind, blocks, loops


def _around(func: Func, block: Block) -> list[For]:
    return [n for n in path_to(func.body, block) if isinstance(n, For)]


def _feeding(block: Block, kind: IterKind) -> set[str]:
    pairs = zip(block.iters, block.bindings, strict=True)
    return {v.name for it, e in pairs if it.kind is kind for v in free_vars(e)}


def vectors_over_a_reduction(func: Func) -> Iterator[Step]:
    for b in blocks(func.body):
        reduce = _feeding(b, IterKind.REDUCE)
        for n in _around(func, b):
            if n.var.name in reduce and n.extent > 1:
                yield Vectorize(n.var.name)
                yield Parallel(n.var.name)
                yield Bind(n.var.name, "block_x")


def fusing_what_is_not_nested(func: Func) -> Iterator[Step]:
    every = list(loops(func.body))
    for a in every:
        for b in every:
            if a.body is not b:
                yield Fuse((a.var.name, b.var.name))
    if every:
        yield Fuse((every[0].var.name,))
        yield Fuse(())


def reordering_what_is_no_chain(func: Func) -> Iterator[Step]:
    found = [[n.var.name for n in _around(func, b)] for b in blocks(func.body)]
    for a in found:
        for b in found:
            if a and b and a[-1] not in b and b[-1] not in a:
                yield Reorder((a[-1], b[-1]))
        if a:
            yield Reorder((a[0], a[0]))
            yield Reorder((a[0], "no such loop"))


def splitting_badly(func: Func) -> Iterator[Step]:
    for n in loops(func.body):
        name = n.var.name
        for factors in ((None, 0), (None, -2), (None, None), (), (1,) if n.extent > 1 else ()):
            yield Split(name, factors)
        if n.extent > 1:
            yield Split(name, (n.extent - 1, 1))  # too few iterations


def partitioning_outside(func: Func) -> Iterator[Step]:
    for n in loops(func.body):
        for points in ((), (0,), (n.extent,), (-1,), (n.extent + 3,), (1, 1)):
            yield LoopPartition(n.var.name, points)


def merging_what_does_not_fit(func: Func) -> Iterator[Step]:
    every = list(loops(func.body))
    for a in every:
        yield Merge((a.var.name, a.var.name))
        for b in every:
            if a.extent != b.extent or b in _below(a):
                yield Merge((a.var.name, b.var.name))


def _below(loop: For) -> list[For]:
    return list(loops(loop.body))


def moving_where_consumers_are_not(func: Func) -> Iterator[Step]:
    flow = Dataflow(func)
    for b in blocks(func.body):
        consumers = flow.consumers(b)
        for n in loops(func.body):
            below = list(blocks(n))
            if consumers and not all(any(c is x for x in below) for c in consumers):
                yield ComputeAt(b.name, n.var.name)
            producers = flow.producers(b)
            later = [p for p in producers if not any(p is x for x in below)]
            first = min((flow.position(x) for x in below), default=0)
            if any(flow.position(p) > first for p in later) and not any(b is x for x in below):
                yield ReverseComputeAt(b.name, n.var.name)
        if not consumers:
            yield from (ComputeAt(b.name, n.var.name) for n in loops(func.body))


def inlining_what_cannot_be(func: Func) -> Iterator[Step]:
    flow = Dataflow(func)
    for b in blocks(func.body):
        if b.is_reduction:
            yield ComputeInline(b.name)
            yield ReverseComputeInline(b.name)
        elif any(o in func.params for o in flow.writes(b)):
            yield ComputeInline(b.name)


def taking_reductions_apart_wrongly(func: Func) -> Iterator[Step]:
    for b in blocks(func.body):
        around = [n.var.name for n in _around(func, b)]
        spatial, reduce = _feeding(b, IterKind.SPATIAL), _feeding(b, IterKind.REDUCE)
        for n in loops(func.body):
            name = n.var.name
            if name not in around:
                yield Rfactor(b.name, name)
                yield DecomposeReduction(b.name, name)
            elif name in spatial or name not in reduce:
                yield Rfactor(b.name, name)
            if not b.is_reduction:
                yield DecomposeReduction(b.name, name)


def buffers_that_are_not_theirs(func: Func) -> Iterator[Step]:
    every = [*func.params, *func.locals]
    for p in func.params:
        yield SetScope(p.name, Scope.LOCAL)
        yield TransformLayout(p.name, Layout((layouts.ReorderDims(tuple(reversed(range(len(p.shape))))),)))
    for b in blocks(func.body):
        touched = accesses(b)  # by blocks inside it too
        read = {a.buffer for a in touched if not a.is_write}
        written = {a.buffer for a in touched if a.is_write}
        for buffer in every:
            if buffer not in read:
                yield CacheRead(b.name, buffer.name, Scope.LOCAL)
                yield IterateOver(b.name, buffer.name)
                yield Reindex(b.name, buffer.name, ())
            if buffer not in written:
                yield CacheWrite(b.name, buffer.name, Scope.LOCAL)


def layouts_of_wrong_rank(func: Func) -> Iterator[Step]:
    for buffer in func.locals:
        rank = len(buffer.shape)
        for wrong in (
            layouts.SplitDim(rank, 2),
            layouts.SplitDim(0, 0),
            layouts.ReorderDims(tuple(range(rank + 1))),
            layouts.ReorderDims((0,) * rank if rank > 1 else (1,)),
            layouts.FuseDims(rank, 2),
            layouts.PadDim(rank, 1, 1),
            layouts.PadDim(0, -1, 0),
            layouts.CropDim(rank, 0, 0),
            layouts.CropDim(0, 0, buffer.shape[0] if rank else 1),
            layouts.UnfoldDim(rank, 2, 1),
            layouts.UnfoldDim(0, 0, 1),
            layouts.FoldDim(0, 0, 1),
            layouts.FoldDim(max(rank - 1, 0), 1, 4),
        ):
            yield TransformLayout(buffer.name, Layout((wrong,)))


def iterators_of_others(func: Func) -> Iterator[Step]:
    for b in blocks(func.body):
        yield FuseIters(b.name, ("no such iterator", "neither"))
        yield FuseIters(b.name, ())
        yield PadEinsum(b.name, (0,) * len(b.iters))
        yield PadEinsum(b.name, (1,) * (len(b.iters) + 1))
        yield Tensorize(b.name, "no such intrinsic")


RULES: tuple[Callable[[Func], Iterator[Step]], ...] = (
    vectors_over_a_reduction,
    fusing_what_is_not_nested,
    reordering_what_is_no_chain,
    splitting_badly,
    partitioning_outside,
    merging_what_does_not_fit,
    moving_where_consumers_are_not,
    inlining_what_cannot_be,
    taking_reductions_apart_wrongly,
    buffers_that_are_not_theirs,
    layouts_of_wrong_rank,
    iterators_of_others,
)

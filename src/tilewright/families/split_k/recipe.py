"""A long reduction with few results: a team shares the steps, not the results.

    for i, j, k: C[i, j] += A[i, k] · B[k, j]   ──>   for n, i, j, k: C_part[n, i, j] += A[i, n·K + k] · B[n·K + k, j]
                                                      for i, j, n: C[i, j] += C_part[n, i, j]

The number of chunks is fixed, and their sums are added in their order: every team computes the same bits, though not
those of the whole sum.
"""

from tilewright.families.gemm.recipe import load_strides
from tilewright.families.gemm.register_tile import loops_of
from tilewright.ir.expr import Load, loads
from tilewright.ir.layout import Layout, ReorderDims
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.schedule.steps.rfactor import Rfactor
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.tir.stmt import Block, Iter, IterKind


def divided_iter(block: Block) -> Iter | None:
    """The iterator to divide: along it chunks are farthest apart in the largest operand."""
    reduce = [it for it in block.iters if it.kind is IterKind.REDUCE and it.extent > 1]
    store = block.try_store
    if store is None or not reduce:
        return None
    largest: Load | None = max(
        (ld for ld in loads(store.value) if ld.buffer is not store.buffer),
        key=lambda ld: ld.buffer.size,
        default=None,
    )
    if largest is None:
        return None
    steps = load_strides(largest, block)
    return max(reduce, key=lambda it: abs(steps.get(it.var, 0)) * it.extent)


def divide_reduction(s: Draft, name: str, over: Iter, chunks: int) -> str:
    """Sum chunks of `over` apart, and then these; returns the block that sums chunks. `chunks` divides the extent."""
    loop = loops_of(find_block(s.func, name))[over.var]
    outer, _ = s.apply(Split(loop, (chunks, over.extent // chunks))).names
    part = s.apply(Rfactor(name, outer, "part"))
    made = find_block(s.func, part.name).store
    last = len(made.indices) - 1
    if last:  # all of a chunk together
        s.apply(TransformLayout(made.buffer.name, Layout((ReorderDims((last, *range(last))),))))
    return part.name

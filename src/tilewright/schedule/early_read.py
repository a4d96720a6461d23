"""Reading beforehand: what a block reads is copied by a new block in front of its nest, for all of its domain.

Three things may be in the way. The buffer may not be complete there yet, since it is written in the same nest or later.
The block may write it itself (an accumulator). Or the block reads it only under a condition, and reading everywhere
would leave the buffer.
"""

from tilewright.ir.expr import Expr, Load, Select, loads
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import nest_of
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.func import Func
from tilewright.tir.printer import print_expr
from tilewright.tir.stmt import Block


def check_early_read(func: Func, block: Block, e: Expr) -> None:
    """Refuses to compute `e`, an expression over the iterators of `block`, before the nest of the block."""
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    flow = Dataflow(func)
    at = nest_of(func, block)
    for load in loads(e):
        for w in flow.writers(load.buffer):
            if nest_of(func, w) >= at:
                raise step_refusal(
                    func,
                    w,
                    f"block {w.name!r} writes {load.buffer.name} in the nest of block {block.name!r} or after it, so "
                    "it cannot be read beforehand",
                    "apply the step before the blocks are moved into one nest",
                )
    for load in _unconditional_loads(e):
        for index, extent in zip(load.indices, load.buffer.shape, strict=True):
            lo, hi = simplify.bounds(index)
            if lo < 0 or hi >= extent:
                raise step_refusal(
                    func,
                    block,
                    f"block {block.name!r} reads {load.buffer.name} at {print_expr(index)} only under a condition; "
                    "without it the index would leave the buffer",
                    "take the whole Select as the operand, or keep the padding in a block of its own",
                )


def _unconditional_loads(e: Expr) -> list[Load]:
    """The loads that happen whenever `e` is computed."""
    found: dict[Load, None] = {}
    stack = [e]
    while stack:
        node = stack.pop()
        if isinstance(node, Load):
            found[node] = None
        stack.extend((node.cond,) if isinstance(node, Select) else node.children())
    return list(found)

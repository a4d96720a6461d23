"""compute_inline: consumers compute what they used to read.

    for i: T[i] = A[i] * 2             ComputeInline("T")         for j: D[j] = A[j + 1] * 2 + 1
    for j: D[j] = T[j + 1] + 1              ─────>

The block and its buffer disappear. A value that is read many times is computed as often. Loads stay under the
guards of the consumer: an inlined padding block becomes a Select around the load.
"""

from dataclasses import dataclass, replace

from tilewright.ir.expr import Expr, Load
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.edit import without_block
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_block
from tilewright.schedule.preconditions import (
    check_inputs_stay,
    check_leaf,
    check_local,
    check_not_in_place,
    check_not_nested,
    check_not_read_before,
    check_single_store,
    check_sole_writer,
)
from tilewright.schedule.step import BlockStep
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.analysis.solve import try_solve
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_loads
from tilewright.tir.simplify import ranges


@dataclass(frozen=True, slots=True)
class ComputeInline(BlockStep):
    def rewrite(self, func: Func) -> Func:
        block = find_block(func, self.block)
        flow = Dataflow(func)
        check_leaf(func, block)
        check_not_nested(func, block)
        store = check_single_store(func, block)
        buffer = store.buffer
        check_local(func, buffer, block)
        check_sole_writer(func, flow, block)
        check_not_in_place(func, flow, block)
        check_inputs_stay(func, flow, block)
        check_not_read_before(func, flow, block)
        body = without_block(func.body, block)
        if body is None or not flow.consumers(block):
            raise step_refusal(func, block, f"nothing in {func.name} reads {buffer.name}")
        simplify = Simplifier(ranges(func.body))
        if try_solve(store.indices, store.indices, block.iters, simplify) is None:
            raise step_refusal(
                func,
                block,
                f"the indices at which block {block.name!r} stores do not decide its iterators",
                "each iterator must follow from the indices, as in T[i, j] or T[i // 8, i % 8]",
            )

        def inline(n: Load) -> Expr:
            values = try_solve(store.indices, n.indices, block.iters, simplify)
            assert values is not None  # whether it can be solved does not depend on the values
            return simplify(substitute(store.value, values))

        body = map_loads(body, (buffer,), inline)
        return replace(func, body=body, locals=tuple(b for b in func.locals if b is not buffer))

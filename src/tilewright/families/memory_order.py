"""The loops of a block in the order of its output's memory."""

from collections.abc import Sequence

from tilewright.families.gemm.register_tile import loops_of
from tilewright.ir.expr import Expr, Var
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.tir.stmt import Block


def memory_order(block: Block) -> list[str]:
    """The loops of the block from the largest stride of its output to the smallest."""
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    steps = _steps(simplify, block.store.buffer.strides, block.store.indices)
    loops = loops_of(block)
    ranked = sorted(block.iters, key=lambda it: -steps.get(it.var, 0))
    return [loops[it.var] for it in ranked]


def _steps(simplify: Simplifier, strides: Sequence[int], indices: Sequence[Expr]) -> dict[Var, int]:
    """How far the address moves at most with each variable."""
    steps: dict[Var, int] = {}
    for index, stride in zip(indices, strides, strict=True):
        for atom, k in simplify.linear(index).terms:
            for v in (n for n in ([atom] if isinstance(atom, Var) else _vars(atom))):
                steps[v] = max(steps.get(v, 0), abs(k) * stride)
    return steps


def _vars(e: Expr) -> list[Var]:
    found: list[Var] = []
    for c in e.children():
        found.extend([c] if isinstance(c, Var) else _vars(c))
    return found

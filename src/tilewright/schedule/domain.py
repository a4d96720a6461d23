"""The predicate of a block, which keeps its iterators inside their domains: saying it anew, and what else it says."""

from collections.abc import Sequence

from tilewright.ir.condition import conjuncts
from tilewright.ir.expr import (
    TRUE,
    Expr,
    as_index,
)
from tilewright.ir.simplify import Simplifier
from tilewright.tir.stmt import Block, Iter


def inside_domain(iters: Sequence[Iter], bindings: Sequence[Expr]) -> list[Expr]:
    """Two conditions per iterator: bound like this, it is in its domain. They are not simplified."""
    return [
        stays
        for it, binding in zip(iters, bindings, strict=True)
        for stays in (as_index(0) <= binding, binding < it.extent)
    ]


def other_conditions(block: Block, simplify: Simplifier) -> list[Expr]:
    """What the predicate of `block` says besides `inside_domain`."""
    domain = {simplify(c) for c in inside_domain(block.iters, block.bindings)} | {TRUE}
    return [c for c in conjuncts(block.predicate) if simplify(c) not in domain]

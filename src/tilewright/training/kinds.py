"""What a kernel computes, in a word: by which results of models are told apart.

    attention, recurrent, winograd      a chain of contractions, a loop over steps, transformed tiles
    depthwise                           windows without a sum over channels, also with contractions around them
    convolution, stem, pointwise        windows over many channels, over few of them, and of one element
    gemm                                any other contraction
    memory-bound                        all the rest

Where nothing else is said, the block that works most decides.
"""

from collections.abc import Collection
from math import prod

from tilewright.cost.work import domain, instructions
from tilewright.ir.expr import Expr, Fma, Load, free_vars
from tilewright.ir.simplify import Simplifier
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Iter, IterKind, Store, blocks, stmt_exprs, walk_stmts

_BY_FAMILY = {
    "recurrent": "recurrent",
    "winograd": "winograd",
}
_MANY_CHANNELS = 16  # of the input of a convolution, given: a vector has as many


def kernel_kind(func: Func, families: Collection[str]) -> str:
    """`families` are those that have a space for it."""
    for family, kind in _BY_FAMILY.items():
        if family in families:
            return kind
    every = list(blocks(func.body))
    if "chain" in families:  # with rows that are summed up between its contractions, or without
        return "attention" if any(b.is_reduction and not _is_contraction(b) for b in every) else "gemm"
    if any(_block_kind(b) == "depthwise" for b in every):
        return "depthwise"
    main = max(every, key=_work, default=None)
    return "memory-bound" if main is None else _block_kind(main)


def _work(block: Block) -> float:
    stores = [n for n in walk_stmts(block.body) if isinstance(n, Store)]
    return domain(block) * max(1.0, sum(instructions(e) for s in stores for e in stmt_exprs(s)))


def _is_contraction(block: Block) -> bool:
    return _factors(block) is not None


def _factors(block: Block) -> tuple[Load, Load] | None:
    """What a sum of products multiplies, if the block is one."""
    store = block.try_store
    if store is None or not isinstance(store.value, Fma) or not block.is_reduction:
        return None
    a, b = store.value.a, store.value.b
    if not isinstance(a, Load) or not isinstance(b, Load) or a.buffer is b.buffer:
        return None
    return a, b


def _block_kind(block: Block) -> str:
    factors = _factors(block)
    if factors is None:
        return "memory-bound"
    a, b = factors
    space = _moving(block, IterKind.SPATIAL)
    reduced = _moving(block, IterKind.REDUCE)
    used = [{v for i in x.indices for v in free_vars(i)} for x in (a, b)]
    if all(it.var in u for it in space for u in used):
        return "memory-bound"  # both are read once
    window = [it for it in reduced if any(_slides(i, it, space) for x in (a, b) for i in x.indices)]
    if window:
        alone = [
            {it.var for it in space if it.var in one and it.var not in other}
            for one, other in (used, used[::-1])
        ]
        channels = prod(it.extent for it in reduced if it not in window)
        return "depthwise" if not all(alone) else "convolution" if channels >= _MANY_CHANNELS else "stem"
    taps = [it for it in block.iters if it.kind is IterKind.REDUCE and it.extent == 1]
    return "pointwise" if taps and len(block.iters) > len(taps) + 2 else "gemm"


def _moving(block: Block, kind: IterKind) -> list[Iter]:
    return [it for it in block.iters if it.kind is kind and it.extent > 1]


def _slides(index: Expr, tap: Iter, space: Collection[Iter]) -> bool:
    """Do windows along the tap overlap with those of a neighbour? Groups of channels, and patches, do not."""
    terms = Simplifier().linear(index).terms
    step = next((abs(c) for atom, c in terms if atom is tap.var), 0)
    if not step:  # of a layout in blocks, in which both are under one quotient
        return any(
            tap.var in free_vars(atom) and any(it.var in free_vars(atom) for it in space) for atom, _ in terms
        )
    return any(atom is it.var and abs(c) < step * tap.extent for atom, c in terms for it in space)

"""Sums of integers by blocks, each of which is scaled and added to a sum of floats, as weights with scales by blocks
have them.

    S[m, b, n] += i32(x[m, b, …]) · i32(w[n, b, …]) + …        an instruction of the target adds these up
    Y[m, n] += f32(S[m, b, n]) · scale[n, b] · … - …
"""

from dataclasses import dataclass

from tilewright.families.inline import consumers
from tilewright.families.tensor.match import matches
from tilewright.ir.expr import Load, Var, loads
from tilewright.target.intrinsic import Intrinsic
from tilewright.target.intrinsics import intrinsics_of
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Iter, IterKind, blocks

_WEIGHT_DIMS = 4  # columns, blocks, groups, and what lies side by side for the instruction; given


@dataclass(frozen=True, slots=True)
class BlockProducts:
    sums: Block  # of integers: [row, block, column]
    total: Block  # of floats: [row, column], over blocks
    intrinsic: Intrinsic
    weights: Load  # what the instruction reads as vectors
    row: Iter | None  # of `total`, as the next two; None if there is one row
    column: Iter
    over: Iter
    scales: tuple[Load, ...]  # in `total`: what each column and block has one of


def match_block_products(func: Func, target: Target) -> BlockProducts | None:
    reductions = [b for b in blocks(func.body) if b.is_reduction]
    if len(reductions) != 2 or any(b.try_store is None or b.init is None for b in reductions):
        return None
    sums, total = reductions
    made = sums.store.buffer
    if made not in func.locals or [b.name for b in consumers(func, made)] != [total.name]:
        return None
    by_var = {it.var: it for it in total.iters}
    spatial = [by_var[i] for i in total.store.indices if isinstance(i, Var) and i in by_var]
    over = [it for it in total.iters if it.kind is IterKind.REDUCE]
    places = [i for i in sums.store.indices if isinstance(i, Var)]
    if not 0 < len(spatial) < 3 or len(over) != 1 or len(places) != len(spatial) + 1:
        return None
    *rows, column = spatial
    wanted = [*(it.var for it in rows), over[0].var, column.var]
    read = {ld for ld in loads(total.store.value) if ld.buffer is made}
    if len(read) != 1 or [i for i in read.pop().indices if isinstance(i, Var)] != wanted:
        return None
    found = _instruction(sums, column, target)
    if found is None:
        return None
    intrinsic, weights = found
    at = [i for i in weights.indices if isinstance(i, Var)]
    if at[:2] != [places[-1], places[-2]] or not len(at) == len(weights.indices) == _WEIGHT_DIMS:
        return None
    scales = dict.fromkeys(ld for ld in loads(total.store.value) if ld.indices == (column.var, over[0].var))
    row = rows[0] if rows else None
    return BlockProducts(sums, total, intrinsic, weights, row, column, over[0], tuple(scales))


def _instruction(sums: Block, column: Iter, target: Target) -> tuple[Intrinsic, Load] | None:
    """The widest that computes the sums and divides the columns, and what it reads as vectors."""
    for i in sorted(intrinsics_of(target), key=lambda i: -i.meaning.params[0].size):
        c, *operands = i.meaning.params
        vectors = [n for n, p in enumerate(operands, 1) if len(p.shape) == 2]
        if i.emitter is None or len(c.shape) != 1 or len(vectors) != 1 or c.size > target.lanes(4):
            continue
        found = matches(sums, i)
        weights = None if isinstance(found, str) else found[0].operands[vectors[0]]
        if isinstance(weights, Load) and not column.extent % c.size:
            return i, weights
    return None

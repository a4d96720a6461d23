"""Sums by blocks, each of which is scaled and added to a sum of floats, as weights with scales by blocks have them.

    S[m, b, p, i] += i32(x[m, b, …]) · i32(w[p, b, …, i, …]) + …        an instruction of the target adds these up
    S[m, b, p, i] = fma(x[m, b, …], f32(w[p, b, …, i]), S[…])           or floats
    Y[m, p, i] += f(S[m, b, p, i]) · scale[p, b, i]

Columns are in panels p, of a column i for each lane.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tilewright.families.inline import consumers
from tilewright.families.tensor.match import matches
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Fma, Load, Var, loads
from tilewright.target.intrinsic import Intrinsic
from tilewright.target.intrinsics import intrinsics_of
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Iter, IterKind, blocks


@dataclass(frozen=True, slots=True)
class BlockProducts:
    """Iterators are those of `total`; None where there is one of it."""

    sums: Block  # [row, block, panel, lane]
    total: Block  # of floats: [row, panel, lane], over blocks
    intrinsic: Intrinsic | None  # what adds up integers
    weights: Load
    row: Iter | None
    panel: Iter | None
    lane: Iter
    over: Iter

    @property
    def steps(self) -> int:
        """Products of an element in a block, or pairs of them."""
        return prod(it.extent for it in self.sums.iters if it.kind is IterKind.REDUCE)


def match_block_products(func: Func, target: Target) -> BlockProducts | None:
    reductions = [b for b in blocks(func.body) if b.is_reduction]
    if len(reductions) != 2 or any(b.try_store is None or b.init is None for b in reductions):
        return None
    sums, total = reductions
    made = sums.store.buffer
    if made not in func.locals or [b.name for b in consumers(func, made)] != [total.name]:
        return None
    if not isinstance(total.store.value, Fma):
        return None
    by_var = {it.var: it for it in total.iters}
    spatial = [by_var[i] for i in total.store.indices if isinstance(i, Var) and i in by_var]
    over = [it for it in total.iters if it.kind is IterKind.REDUCE]
    read = {ld for ld in loads(total.store.value) if ld.buffer is made}
    if not spatial or len(over) != 1 or len(read) != 1:
        return None
    # Which iterator of the sums stands for which of the total.
    place = dict(zip(sums.store.indices, read.pop().indices, strict=True))
    lane = spatial[-1]
    found = _integers(sums, lane, target) or _floats(sums, lane, target)
    if found is None:
        return None
    intrinsic, weights = found
    at = {place.get(i) for i in weights.indices}
    panels = [it for it in spatial[:-1] if it.var in at]
    rows = [it for it in spatial[:-1] if it.var not in at]
    if len(panels) > 1 or len(rows) > 1 or not {lane.var, over[0].var} <= at:
        return None
    row, panel = (found[0] if found else None for found in (rows, panels))
    return BlockProducts(sums, total, intrinsic, weights, row, panel, lane, over[0])


def _integers(sums: Block, lane: Iter, target: Target) -> tuple[Intrinsic, Load] | None:
    """The instruction that computes the sums in the fewest steps, and what it reads as vectors."""
    groups = _groups(sums)
    found = [(i, w) for i, w in _instructions(sums, lane, target) if not groups % group_count(i)]
    return min(found, key=lambda f: f[0].steps / group_count(f[0]), default=None)


def _instructions(sums: Block, lane: Iter, target: Target) -> Iterator[tuple[Intrinsic, Load]]:
    for i in intrinsics_of(target):
        c, *operands = i.meaning.params
        if i.emitter is None or c.shape != (lane.extent,) or c.dtype is not DType.I32:
            continue
        if operands[-1].shape[-2:-1] != c.shape:
            continue
        found = matches(sums, i)
        for one in () if isinstance(found, str) else found:
            weights = one.operands[-1]
            if isinstance(weights, Load) and sums.store.indices[-1] in weights.indices:
                yield i, weights


def group_count(i: Intrinsic) -> int:
    """How many groups of products it adds up: all of its weights over those of a lane that lie side by side."""
    weights = i.meaning.params[-1]
    return weights.size // (i.meaning.params[0].size * weights.shape[-1])


def _groups(sums: Block) -> int:
    reduced = [it.extent for it in sums.iters if it.kind is IterKind.REDUCE]
    return prod(reduced[:-1])


def _floats(sums: Block, lane: Iter, target: Target) -> tuple[None, Load] | None:
    """The weights of sums of floats, if they are stored in a byte or less."""
    value = sums.store.value
    if not isinstance(value, Fma) or value.dtype is not DType.F32 or lane.extent % target.lanes(4):
        return None
    weights = [ld for ld in loads(value) if ld.buffer.dtype.bytes == 1]
    return (None, weights[0]) if len(weights) == 1 else None

"""Depthwise convolutions (or pooling), and the contractions before and after them, as blocks of one Func.

    for h, w, c, k: acc[h, w, c] += x[h, w, k] * u[k, c]             expansion    any convolution
    for h, w, c: T[h, w, c] = f(acc[h, w, c])                        between
    for h, w, c: P[h, w, c] = T[h - 1, w - 1, c] inside, 0 outside   padding
    for h, w, c, r, s: sum[h, w, c] += P[h + r, w + s, c] * v[…]     depthwise    or pooling
    for h, w, c: D[h, w, c] = g(sum[h, w, c])                        after
    for h, w, o, c: out[h, w, o] += D[h, w, c] * z[c, o]             projection   a pointwise convolution

Depthwise windows are in every chain, and an expansion, a projection or both. Each block reads what the one before it
stores, which nobody else reads. What is computed before the first of them (the border of an input), and what consumes
the last one, is no part of the chain. Layouts do not matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.families.gemm.recipe import try_contraction
from tilewright.families.inline import single_consumer
from tilewright.families.window.recipe import operand_loads
from tilewright.ir.expr import Buffer, Const, Load, Select, Var, free_vars, loads
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Iter, IterKind, blocks


@dataclass(frozen=True, slots=True)
class Axes:
    """Iterators of the windows by what they are for: `high` and `across` go over rows and columns of the result, and
    are missing where the windows take the whole image; and the dimensions of the image that they slide along.
    """

    high: Iter | None
    across: Iter | None
    channel: Iter
    rows_at: int
    columns_at: int
    made: tuple[Iter, Iter] | None  # iterators of the expansion, over rows and columns of what it makes


@dataclass(frozen=True, slots=True)
class BandChain:
    """The blocks of such a Func, as they are written."""

    depthwise: Block
    image: Load  # what the windows slide over
    axes: Axes
    expansion: Block | None = None
    between: Block | None = None
    padding: Block | None = None
    after: Block | None = None
    projection: Block | None = None
    pixel: tuple[Iter, Iter] | None = None  # of the projection: those of `axes.high` and `axes.across`

    @property
    def is_flat(self) -> bool:
        """Do the windows take all pixels of an expansion that share nothing, as if these were in one row?"""
        if self.expansion is None or self.padding is not None or self.axes.high is not None:
            return False
        assert self.axes.made is not None
        return is_pixelwise(self.expansion, self.axes.made[0])

    def parts(self, func: Func) -> tuple[frozenset[str], ...]:
        """The blocks of the Func that belong to each reduction, with what comes before the first and after the last."""
        names = [b.name for b in blocks(func.body)]
        ends = [b for b in (self.between or self.expansion, self.after or self.depthwise) if b is not None]
        if self.projection is None:
            ends = ends[:-1]
        cuts = [0, *(names.index(b.name) + 1 for b in ends), len(names)]
        return tuple(frozenset(names[i:j]) for i, j in pairwise(cuts))


def try_band_chain(func: Func) -> BandChain | None:
    """The Func as such a chain, with no other reduction in it."""
    reductions = [b for b in blocks(func.body) if b.is_reduction]
    contractions = [try_contraction(b) is not None for b in reductions]
    if len(reductions) > 3 or contractions.count(False) != 1 or not any(contractions):
        return None
    at = contractions.index(False)
    if at > 1 or len(reductions) - at > 2:
        return None
    depthwise = reductions[at]
    expansion = reductions[0] if at else None
    projection = reductions[-1] if len(reductions) - at > 1 else None
    before = [] if expansion is None else _path(func, expansion, depthwise)
    behind = [] if projection is None else _path(func, depthwise, projection)
    if before is None or behind is None or len(before) > 2 or len(behind) > 1:
        return None
    padding = before[-1] if before and is_padding(before[-1]) else None
    between = before[0] if before and before[0] is not padding else None
    if len(before) == 2 and (padding is None or is_padding(before[0])):
        return None
    image = _image(depthwise, None if expansion is None else stored(before[-1] if before else expansion))
    if image is None:
        return None
    found = [] if expansion is None else [expansion, *before]
    axes = _axes(depthwise, image, found, None if projection is None else (*behind, projection))
    if axes is None or image.buffer.is_open(axes.columns_at):  # whose rows follow each other in a band
        return None
    after = behind[0] if behind else None
    pixel = None
    if projection is not None:
        pixel = _pixel(depthwise, axes, (*behind, projection))
        if pixel is None:
            return None
    return BandChain(depthwise, image, axes, expansion, between, padding, after, projection, pixel)


def is_padding(block: Block) -> bool:
    """Does the block store a value in the middle of a constant?"""
    value = block.store.value if block.try_store is not None and not block.is_reduction else None
    return isinstance(value, Select) and isinstance(value.b, Const) and not list(loads(value.cond))


def stored(block: Block) -> Buffer:
    return block.store.buffer


def _path(func: Func, first: Block, last: Block) -> list[Block] | None:
    """The blocks without a reduction that lead from `first` to `last`, if each result has one reader, in the Func."""
    path: list[Block] = []
    block = first
    while True:
        buffer = block.store.buffer if block.try_store is not None else None
        reader = None if buffer not in func.locals else single_consumer(func, buffer)
        if reader is last:
            return path
        if reader is None or reader.is_reduction:
            return None
        path.append(reader)
        block = reader


# --------------------------------------------------------------------------------------------------------------- axes


def _image(depthwise: Block, made: Buffer | None) -> Load | None:
    """What the windows read of `made`; otherwise the one operand that they slide over."""
    reduce = {it.var for it in depthwise.iters if it.kind is IterKind.REDUCE}
    found: list[Load] = []
    for ld in loads(depthwise.store.value):
        slides = any(free_vars(i) & reduce and free_vars(i) - reduce for i in ld.indices)
        if ld.buffer is made or (made is None and slides and ld.buffer is not depthwise.store.buffer):
            found.append(ld)
    return found[0] if len(found) == 1 else None


def _axes(
    depthwise: Block, image: Load, before: Sequence[Block], behind: Sequence[Block] | None
) -> Axes | None:
    """The roles of the iterators, if the windows take two dimensions of one channel each."""
    by_var = {it.var: it for it in depthwise.iters}
    pixels: list[tuple[int, Iter | None]] = []
    others: list[tuple[int, Iter]] = []
    for d, index in enumerate(image.indices):
        used = [by_var[v] for v in free_vars(index)]
        moving = [it for it in used if it.kind is IterKind.SPATIAL]
        if len(moving) > 1:
            return None
        if len(used) > len(moving):
            pixels.append((d, moving[0] if moving else None))
        elif moving:
            if index is not moving[0].var:
                return None
            others.append((d, moving[0]))
    if len(pixels) != 2 or (pixels[0][1] is None) != (pixels[1][1] is None):
        return None
    (rows_at, high), (columns_at, across) = pixels
    made = None
    if before:
        row, column = _origin(before, rows_at), _origin(before, columns_at)
        if row is None or column is None:
            return None
        made = row, column
        channels = [it for d, it in others if _is_column(before[0], _origin(before, d), row)]
    else:
        assert behind is not None
        channels = [it for _, it in others if _is_summed(depthwise, it, behind)]
    return Axes(high, across, channels[0], rows_at, columns_at, made) if len(channels) == 1 else None


def _origin(before: Sequence[Block], dim: int) -> Iter | None:
    """The iterator of the first block that goes over a dimension of what the last one stores."""
    for source, block in reversed(list(pairwise(before))):
        found = _read_at(block, stored(source), dim)
        if found is None:
            return None
        dim = found
    first = before[0]
    return next((it for it in first.iters if it.var is first.store.indices[dim]), None)


def _is_column(expansion: Block, it: Iter | None, row: Iter) -> bool:
    """Is an iterator of the expansion not in the operand that has its rows?"""
    with_rows = [ld for ld in operand_loads(expansion) if _uses(ld, row)]
    return it is not None and len(with_rows) == 1 and not _uses(with_rows[0], it)


def rows_operand(expansion: Block, row: Iter) -> Load:
    """The operand of the expansion that has its rows."""
    (found,) = [ld for ld in operand_loads(expansion) if _uses(ld, row)]
    return found


def is_pixelwise(expansion: Block, row: Iter) -> bool:
    """Does every pixel of the expansion take elements of its own, in the same order as the pixels are?"""
    return all(isinstance(i, Var | Const) for i in rows_operand(expansion, row).indices)


def _uses(ld: Load, it: Iter) -> bool:
    return any(it.var in free_vars(i) for i in ld.indices)


def _read_at(block: Block, source: Buffer, dim: int) -> int | None:
    """The dimension of `source` that goes into dimension `dim` of what the block stores."""
    wanted = free_vars(block.store.indices[dim])
    found = {
        d
        for ld in loads(block.store.value)
        if ld.buffer is source
        for d, i in enumerate(ld.indices)
        if wanted and free_vars(i) == wanted
    }
    return found.pop() if len(found) == 1 else None


def _written_at(block: Block, source: Buffer, dim: int) -> int | None:
    """The dimension of what the block stores that dimension `dim` of `source` goes into, as it is."""
    read = {ld.indices[dim] for ld in loads(block.store.value) if ld.buffer is source}
    if len(read) != 1:
        return None
    (index,) = read
    found = [d for d, i in enumerate(block.store.indices) if i is index and isinstance(i, Var)]
    return found[0] if len(found) == 1 else None


def _reads_at(depthwise: Block, it: Iter, behind: Sequence[Block]) -> Iter | None:
    """The iterator of the last block that goes over what `it` does in the windows."""
    found = [d for d, i in enumerate(depthwise.store.indices) if i is it.var]
    dim = found[0] if len(found) == 1 else None
    source = stored(depthwise)
    for block in behind[:-1]:
        dim = None if dim is None else _written_at(block, source, dim)
        source = stored(block)
    last = behind[-1]
    read = {ld.indices[dim] for ld in loads(last.store.value) if dim is not None and ld.buffer is source}
    return next((x for x in last.iters if read == {x.var}), None)


def _is_summed(depthwise: Block, it: Iter, behind: Sequence[Block]) -> bool:
    last = _reads_at(depthwise, it, behind)
    return last is not None and last.kind is IterKind.REDUCE


def _pixel(depthwise: Block, axes: Axes, behind: Sequence[Block]) -> tuple[Iter, Iter] | None:
    """The iterators of the projection over rows and columns, if it takes pixels one by one, with all their channels."""
    if axes.high is None or axes.across is None or not _is_summed(depthwise, axes.channel, behind):
        return None
    if sum(it.kind is IterKind.REDUCE for it in behind[-1].iters) != 1:
        return None
    row, column = (_reads_at(depthwise, it, behind) for it in (axes.high, axes.across))
    return None if row is None or column is None else (row, column)

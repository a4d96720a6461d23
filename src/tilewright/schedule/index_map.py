"""Blocks that only move data: what they do as a layout of the buffer that they read.

    Y[i, j] = X[j, i]                       ReorderDims((1, 0))
    Y[i, j] = X[i * 4 + j]                  SplitDim(0, 4)
    Y[i] = X[2 * i + 1]                     CropDim(0, 1, 0), SplitDim(0, 2), CropDim(1, 0, 1), FuseDims(0, 2)
    Y[i] = select(i < 3, X[i], …)           PadDim(0, 0, …), of X: a piece of a concatenation

So the layout of one side can be carried to the other: if Y = L(X), and Y is to be laid out by M, the block is nothing
but a copy if X is laid out by L + M.
"""

import math
from typing import NamedTuple

from tilewright.ir.expr import TRUE, Buffer, Load, Var
from tilewright.ir.layout import (
    CropDim,
    Dims,
    FuseDims,
    Layout,
    LayoutPrimitive,
    PadDim,
    ReorderDims,
    SplitDim,
    reshape_layout,
)
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.steps.store_at import try_piece
from tilewright.tir.analysis.regions import Digit, digit_of
from tilewright.tir.stmt import Block, Store


class IndexMap(NamedTuple):
    """What a block stores of `source` is where the layout puts it. Places without an element (PadDim) are others'."""

    source: Buffer
    layout: Layout


class _Box(NamedTuple):
    """Where a block stores, along each dimension of its output."""

    starts: Dims
    shape: Dims
    iters: "tuple[Var | None, ...]"  # None: a single place


def index_map(block: Block, source: Buffer | None = None) -> IndexMap | None:
    """What the block does with its only source, or with `source`, if it does nothing but move it. None if it computes,
    reads elements several times (a broadcast), or moves them in a way that no layout says.
    """
    store = block.try_store
    if block.is_reduction or store is None or any(it.size is not None for it in block.iters):
        return None
    load = store.value
    if isinstance(load, Load):
        if source is not None and load.buffer is not source:
            return None
        layout = _moved(block, store, load)
        return None if layout is None else IndexMap(load.buffer, layout)
    if source is None:
        return None
    piece = try_piece(block, source)
    if piece is None:
        return None
    places = zip(piece.offsets, source.shape, store.buffer.shape, strict=True)
    layout = Layout(tuple([PadDim(d, low, whole - low - n) for d, (low, n, whole) in enumerate(places)]))
    return IndexMap(source, layout.normalised(source.shape))


def _moved(block: Block, store: Store, load: Load) -> Layout | None:
    """The layout by which the store has what the load reads, all of it once."""
    source, target = load.buffer, store.buffer
    extents = {it.var: it.extent for it in block.iters}
    simplify = Simplifier({v: Interval(0, n - 1) for v, n in extents.items()})
    if 0 in source.shape or 0 in target.shape:
        return None
    at = _box(store, extents, simplify)
    if at is None:
        return None
    border = zip(at.starts, at.shape, target.shape, strict=True)
    pads = Layout(tuple([PadDim(d, low, whole - low - n) for d, (low, n, whole) in enumerate(border)]))
    for found in (_by_digits(load, at, extents, simplify), reshape_layout(source.shape, at.shape)):
        if found is None:
            continue
        layout = (found + pads).normalised(source.shape)
        indices, inside = layout.inverse(source.shape, store.indices)
        same = all(simplify(i) is simplify(j) for i, j in zip(indices, load.indices, strict=True))
        is_target = layout.buffer(source).sizes == target.sizes
        if same and is_target and simplify(inside) is TRUE:
            return layout
    return None


def _box(store: Store, extents: dict[Var, int], simplify: Simplifier) -> _Box | None:
    """Where the block stores, if each iterator that moves is one dimension."""
    starts, shape, iters = list[int](), list[int](), list[Var | None]()
    for index in store.indices:
        form = simplify.linear(index)
        var = None
        if form.terms:
            (var, k), *others = form.terms
            if others or k != 1 or not isinstance(var, Var) or var not in extents:
                return None
        starts.append(form.const)
        shape.append(1 if var is None else extents[var])
        iters.append(var)
    moving = [v for v in iters if v is not None]
    if sorted(v.name for v in moving) != sorted(v.name for v, n in extents.items() if n > 1):
        return None
    return _Box(tuple(starts), tuple(shape), tuple(iters))


def _by_digits(load: Load, at: _Box, extents: dict[Var, int], simplify: Simplifier) -> Layout | None:
    """Source dimensions as mixed radix numbers whose digits are parts of iterators; these are then put in the order of
    the output. None if they are not.
    """
    cut, shape, digits = list[LayoutPrimitive](), list[int](), list[Digit]()
    for d, (index, extent) in enumerate(zip(load.indices, load.buffer.shape, strict=True)):
        form = simplify.linear(index)
        step, count = 1, 1
        own: list[Digit] = []
        for n, (atom, k) in enumerate(sorted(form.terms, key=lambda t: t[1])):
            digit = digit_of(atom, extents)
            step = k if n == 0 else step
            if digit is None or k <= 0 or k != step * count:
                return None
            own.insert(0, digit)
            count *= digit.extent
        stop = min(form.const + step * count, extent)
        if form.const < 0 or form.const + step * (count - 1) >= extent:
            return None
        cut.append(CropDim(d, form.const, extent - stop))
        if step > 1:
            cut.extend((SplitDim(d, step), CropDim(d + 1, 0, step - 1), FuseDims(d, 2)))
        shape.append(count)
        digits.extend(own)
    if not digits:
        last = reshape_layout(tuple(shape), at.shape)
        return None if last is None else Layout(tuple(cut)) + last
    wanted = [g for v in at.iters if v is not None for g in _most_significant_first(v, digits)]
    if sorted(map(digits.index, wanted)) != list(range(len(digits))):
        return None
    parts = reshape_layout(tuple(shape), tuple([g.extent for g in digits]))
    whole = reshape_layout(tuple([g.extent for g in wanted]), at.shape)
    if parts is None or whole is None or math.prod(shape) != math.prod(at.shape):
        return None
    order = ReorderDims(tuple(map(digits.index, wanted)))
    return Layout(tuple(cut)) + parts + Layout((order,)) + whole


def _most_significant_first(var: Var, digits: list[Digit]) -> list[Digit]:
    return sorted((g for g in digits if g.var is var), key=lambda g: -g.lower)

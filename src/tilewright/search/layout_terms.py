"""What the layouts of buffers cost, block by block, as terms over one buffer or two.

A reduction costs what the cheapest point of its design space does, under the layouts of what it reads and of its
result; the layout of the result says what is in vector lanes. A block without a reduction costs what it takes to bring
what it reads into the order in which it stores. Nothing is scheduled for this, and Funcs that are equal up to renaming
are looked at once. What does not depend on layouts is left out, so terms say nothing about the time of a program.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np

from tilewright.cost.caches import LINE_BYTES
from tilewright.cost.layouts import LaneAccess, access_seconds, copy_cycles, loose_share, unknown_seconds
from tilewright.cost.register_tile import UNROLL
from tilewright.cost.rows import RowReduction, row_seconds
from tilewright.cost.stream import stream_seconds
from tilewright.families.choosing import choosing
from tilewright.families.gemm.cost import Choices, Form, contraction_seconds
from tilewright.families.gemm.recipe import (
    Contraction,
    find_contraction,
    load_strides,
    reduction_order,
    strides_along,
    try_half_contraction,
)
from tilewright.families.gemm.space import form_of, tile_sizes
from tilewright.families.stream.window_space import try_windows, windows_space
from tilewright.families.window.recipe import is_lane_reduction, operand_loads
from tilewright.families.window.space import WindowSpace
from tilewright.ir.expr import Buffer, Const, Expr, Load, Select, Var, as_index, free_vars, loads, walk
from tilewright.ir.layout import Layout
from tilewright.ir.rewrite import transform
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.draft import Draft
from tilewright.search.cut import Table
from tilewright.search.layouts import channels_last, phases, strided_images
from tilewright.target.target import Target
from tilewright.tir.digest import func_digest
from tilewright.tir.func import Func, Module, single
from tilewright.tir.stmt import Block, For, Iter, IterKind, Stmt, Store, store_blocks

# Rows and vectors of tiles that are tried; bound.
_LANE_TILES = ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 1), (4, 2))
MUST = 1.0  # seconds, given: more than any kernel takes


@dataclass(frozen=True, slots=True)
class LayoutTerm:
    """`seconds[x][y]` is the cost if the first of `buffers` has layout x and the second y: 0 is as stated, 1 has
    channels last. Of one buffer alone, y makes no difference.
    """

    buffers: tuple[Buffer, ...]
    seconds: Table


@dataclass(frozen=True, slots=True, eq=False)
class _Around:
    """What a Func is part of."""

    images: Mapping[Buffer, int]
    constants: frozenset[str]
    temps: frozenset[Buffer]
    target: Target

    def layout(self, b: Buffer) -> Layout:
        return channels_last(len(b.shape), self.images[b])

    def choices(self, b: Buffer | None) -> tuple[int, ...]:
        return (0, 1) if b in self.images else (0,)


def layout_terms(module: Module, images: Mapping[Buffer, int], target: Target) -> list[LayoutTerm]:
    """The terms of all Funcs."""
    around = _Around(
        images,
        frozenset(c.buffer.name for c in module.constants),
        frozenset(module.temps),
        target,
    )
    known: dict[str, list[tuple[tuple[int, ...], Table]]] = {}
    found: list[LayoutTerm] = []
    for func in module.funcs:
        own = (*func.params, *func.locals)
        if not any(b in images for b in own):
            continue
        key = func_digest(func, [_mark(b, around) for b in own])
        if key not in known:
            terms = [t for t in _func_terms(func, around) if any(t.seconds[0]) or any(t.seconds[1])]
            known[key] = [(tuple(own.index(b) for b in t.buffers), t.seconds) for t in terms]
        found += [LayoutTerm(tuple(own[n] for n in at), seconds) for at, seconds in known[key]]
    return found


def _mark(b: Buffer, around: _Around) -> str:
    return f"{around.images.get(b)} {b.name in around.constants} {b in around.temps}"


def _func_terms(func: Func, around: _Around) -> Iterator[LayoutTerm]:
    reductions = [b for b, store in store_blocks(func.body) if b.is_reduction and _images(store, around)]
    for block, store in store_blocks(func.body):
        if not block.is_reduction:
            yield from _spatial_terms(func, block, store, around)
        elif len(reductions) == 1:
            yield from _reduction_terms(func, block, store, around)
        else:
            # It holds several because they run in bands, which was decided before, for channels in lanes.
            for b in _images(store, around):
                if b in func.locals:
                    yield LayoutTerm((b,), ((MUST, MUST), (0.0, 0.0)))


def _images(store: Store, around: _Around) -> list[Buffer]:
    """The images that a block reads, and the one that it writes."""
    used = dict.fromkeys([*(ld.buffer for ld in loads(store.value)), store.buffer])
    return [b for b in used if b in around.images]


def _term(
    first: Buffer | None, second: Buffer | None, seconds: Mapping[tuple[int, int], float]
) -> LayoutTerm:
    """A term of those of the two that exist; `seconds` has the layouts that each may have."""
    if first is None:
        assert second is not None
        zero, one = seconds[0, 0], seconds[0, 1]
    elif second is None:
        zero, one = seconds[0, 0], seconds[1, 0]
    else:
        return LayoutTerm((first, second), ((seconds[0, 0], seconds[0, 1]), (seconds[1, 0], seconds[1, 1])))
    buffer = second if first is None else first
    assert buffer is not None
    return LayoutTerm((buffer,), ((zero, zero), (one, one)))


# ------------------------------------------------------------------------------------------- blocks without reduction


def _spatial_terms(func: Func, block: Block, store: Store, around: _Around) -> Iterator[LayoutTerm]:
    sources: dict[Buffer, list[Load]] = {}
    for ld in loads(store.value):
        if ld.buffer is not store.buffer:
            sources.setdefault(ld.buffer, []).append(ld)
    out = store.buffer if store.buffer in around.images else None
    if out is None and not any(b in around.images for b in sources):
        return
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    extents = {it.var: it.extent for it in block.iters if it.extent > 1}
    # Iterators that choose among expressions are written out: what these share is loaded once.
    elements = prod(it.extent for it in block.iters) / prod(it.extent for it in choosing(block))
    lanes = around.target.lanes(max(store.buffer.dtype.bytes, 4))
    lane = {y: _lane(_address(store.buffer, store.indices, y, around), extents, simplify) for y in (0, 1)}
    computed, is_cut = _computed(func), isinstance(store.value, Select)
    for b, found in sources.items():
        image = b if b in around.images else None
        if image is None and out is None:
            continue
        if image is not None and out is not None and image in computed:
            yield LayoutTerm((image, out), ((0.0, MUST), (MUST, 0.0)))
            continue
        seconds: dict[tuple[int, int], float] = {}
        for x in around.choices(image):
            address = _address(b, found[0].indices, x, around)
            for y in around.choices(out):
                at = lane[y]
                is_short = is_cut and at is not None and extents[at] < lanes
                access = LaneAccess.SCATTERED if is_short else _access(address, at, extents, lanes, simplify)
                seconds[x, y] = access_seconds(access, elements * len(found), around.target.machine)
                if access is not LaneAccess.PLAIN and b in around.temps and _only_moves(store.value):
                    m = around.target.machine
                    seconds[x, y] += copy_cycles(elements, b.dtype.bytes, m) / m.hertz
        yield _term(image, out, seconds)


def _computed(func: Func) -> set[Buffer]:
    """What the Func computes element by element for itself: it is computed where it is used, in the order of that."""
    made = {store.buffer for b, store in store_blocks(func.body) if not b.is_reduction}
    return made & set(func.locals)


def _address(b: Buffer, indices: tuple[Expr, ...], choice: int, around: _Around) -> Expr:
    """Where the element is, counted from the first."""
    if choice and b in around.images:
        layout = around.layout(b)
        b, indices = layout.buffer(b), layout.forward(b.shape, indices)
    flat: Expr = as_index(0)
    for i, stride in zip(indices, b.strides, strict=True):
        flat = flat + i * stride
    return flat


def _lane(address: Expr, extents: Mapping[Var, int], simplify: Simplifier) -> Var | None:
    """The iterator along which neighbours are stored side by side."""
    steps = {v: k for v, k in simplify.linear(address).terms if isinstance(v, Var) and v in extents}
    return min(steps, key=lambda v: abs(steps[v]), default=None)


def _access(
    address: Expr, lane: Var | None, extents: Mapping[Var, int], lanes: int, simplify: Simplifier
) -> LaneAccess:
    """How the elements for a vector along `lane` are found."""
    terms = simplify.linear(address).terms
    if lane is None:
        return LaneAccess.PLAIN
    bent = [abs(k) for atom, k in terms if not isinstance(atom, Var) and lane in free_vars(atom)]
    if bent:
        return LaneAccess.INTERLEAVED if min(bent) == 1 else LaneAccess.SCATTERED
    steps = {v: k for v, k in terms if isinstance(v, Var)}
    if steps.get(lane, 0) in (0, 1):
        return LaneAccess.PLAIN
    across = [v for v, k in steps.items() if k == 1 and extents.get(v, 1) >= lanes]
    return LaneAccess.TRANSPOSED if across and extents[lane] >= lanes else LaneAccess.SCATTERED


def _only_moves(e: Expr) -> bool:
    return isinstance(e, Load | Const) or (isinstance(e, Select) and _only_moves(e.a) and _only_moves(e.b))


# -------------------------------------------------------------------------------------------------------- reductions


def _reduction_terms(func: Func, block: Block, store: Store, around: _Around) -> Iterator[LayoutTerm]:
    """Of each image that is read with the result; several that are read are taken to agree."""
    out = store.buffer if store.buffer in around.images else None
    read = [b for b in _images(store, around) if b is not store.buffer]
    plain = without_units(block)
    for image in read or ([None] if out is not None else []):
        seconds: dict[tuple[int, int], float] = {}
        for x in around.choices(image):
            for y in around.choices(out):
                layouts = {b: around.layout(b) for b in read if x}
                if y and out is not None:
                    layouts[out] = around.layout(out)
                if not layouts and try_windows(func) is None:  # as `lay_out` does it then
                    layouts = {b: phases(len(b.shape), n) for b, n in strided_images(func, plain)}
                if (
                    _is_widened(plain) and try_half_contraction(plain) is None
                ):  # for the instructions that multiply narrow numbers, along channels
                    steps = prod(it.extent for it in plain.iters)
                    is_last = x == max(around.choices(image)) and y == max(around.choices(out))
                    total = unknown_seconds(
                        steps, around.target.lanes(4) if is_last else 1, around.target.machine
                    )
                else:
                    laid_out = _laid_out(plain, layouts)
                    total = reduction_seconds(laid_out, around.constants, around.target)
                    swapped = find_contraction(laid_out, around.target, swap=True) if out is None else None
                    if swapped is not None:  # no layout says what is in lanes
                        total = min(total, _gemm_seconds(swapped, around.constants, around.target))
                    if not x and not y:
                        total += sum(
                            access_seconds(LaneAccess.INTERLEAVED, b.size, around.target.machine)
                            for b in layouts
                        )
                seconds[x, y] = total / max(len(read), 1)
        yield _term(image, out, seconds)


def _is_widened(block: Block) -> bool:
    made = block.store.buffer.dtype
    return any(ld.dtype is not made for ld in operand_loads(block))


def without_units(block: Block) -> Block:
    """The block without iterators of one value."""
    kept = [n for n, it in enumerate(block.iters) if it.extent > 1]
    units = {it.var for it in block.iters if it.extent == 1}

    def drop(e: Expr) -> Expr | None:
        return as_index(0) if isinstance(e, Var) and e in units else None

    store = block.store
    return replace(
        block,
        iters=tuple(block.iters[n] for n in kept),
        bindings=tuple(block.bindings[n] for n in kept),
        body=Store(
            store.buffer, tuple(transform(i, drop) for i in store.indices), transform(store.value, drop)
        ),
    )


def _laid_out(block: Block, layouts: Mapping[Buffer, Layout]) -> Block:
    """The block over buffers with these layouts."""
    store = block.store
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})

    def place(b: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        layout = layouts.get(b)
        if layout is None:
            return b, indices
        placed = tuple(simplify(i) for i in layout.forward(b.shape, indices))
        return layout.buffer(b), placed

    def load(e: Expr) -> Expr | None:
        return Load(*place(e.buffer, e.indices)) if isinstance(e, Load) and e.buffer in layouts else None

    return replace(block, body=Store(*place(store.buffer, store.indices), transform(store.value, load)))


def reduction_seconds(block: Block, constants: frozenset[str], target: Target) -> float:
    """By the first rule that fits the block, on one core; its result is in vector lanes as it is in memory."""
    c = find_contraction(block, target)
    if c is not None:
        return _gemm_seconds(c, constants, target)
    alone = _alone(block)
    windows = None if alone is None else windows_space(Draft(single(alone)), target)
    if windows is not None:
        return float(np.min(windows.cost(windows.points())))
    if is_lane_reduction(block):
        space = WindowSpace(Draft(single(Func("estimate", (), (), block))), block.name, target)
        points = np.array([(*tile, UNROLL) for tile in _LANE_TILES], dtype=np.int64)
        return float(np.min(space.cost(points)))
    return _rows_seconds(block, target)


def _alone(block: Block) -> Func | None:
    """The Func that does nothing else, if the block reduces over plain loops."""
    store, init = block.store, block.init
    if not isinstance(init, Store):
        return None
    # What it begins with is stored where the block is laid out now.
    body: Stmt = replace(block, init=Store(store.buffer, store.indices, init.value))
    for it, loop in zip(reversed(block.iters), reversed(block.bindings), strict=True):
        if not isinstance(loop, Var):
            return None
        body = For(loop, it.extent, body)
    read = dict.fromkeys(ld.buffer for ld in loads(store.value) if ld.buffer is not store.buffer)
    return Func("estimate", (*read, store.buffer), (), body, (store.buffer,))


def _gemm_seconds(c: Contraction, constants: frozenset[str], target: Target) -> float:
    """At least as long as its operands stream by."""
    best = min(_tiled_seconds(f, target) for f in _forms(c, constants))
    if c.a.buffer.name not in constants:
        steps = {it: abs(k) for it, k in load_strides(c.a, c.block).items()}
        near = [it for it in c.reduce if steps.get(it.var, 0) * c.a.dtype.bytes < LINE_BYTES]
        if near and near != list(c.reduce):  # else, `contraction_seconds` counts lines
            far = prod(it.extent for it in c.reduce if it not in near)
            inner = steps.get(reduction_order(c)[-1].var, 0) * c.a.dtype.bytes
            best *= 1.0 + (loose_share(far, target.machine) if inner >= LINE_BYTES else 0.0)
    moved = sum(ld.buffer.bytes for ld in (c.a, c.b) if ld.buffer.name not in constants)
    return max(best, stream_seconds(moved, moved, target.machine))


def _forms(c: Contraction, constants: frozenset[str]) -> Iterator[Form]:
    """Of tiles whose rows and columns are all iterators as one, where these follow each other, or else the last."""
    iters = {it.var: it for it in (*c.batch, *c.rows, *c.cols)}
    places = tuple(
        iters[i] if isinstance(i, Var) else Iter(Var(f"unit{n}"), 1) for n, i in enumerate(c.store.indices)
    )
    stored = Store(c.store.buffer, tuple(it.var for it in places), Load(c.store.buffer, c.store.indices))
    epilogue = Block("estimate", places, tuple(it.var for it in places), stored)
    rows, cols = max(len(c.rows), 1), len(c.cols)
    if strides_along(c.b, c.block, c.cols) is None:
        cols = 1
    yield form_of(c, rows, cols, epilogue, constants)
    if rows > 1 and strides_along(c.a, c.block, c.rows) is None:
        yield form_of(c, 1, cols, epilogue, constants)


@lru_cache(maxsize=4096)
def _tiled_seconds(form: Form, target: Target) -> float:
    """Of the best tile, without chunks."""
    tiles = [t for t in tile_sizes(target.vector_registers) if t[0] <= form.rows]
    points = np.array(
        [(*t, a, b, o) for t in tiles for a in (0, 1) for b in (0, 1) for o in (0, 1)], np.int64
    )
    rows, vectors, pack_a, pack_b, outside = points.T
    none = np.zeros(len(points), np.int64)
    choices = Choices(rows, vectors, pack_a > 0, pack_b > 0, outside > 0, none, none + UNROLL)
    return float(np.min(contraction_seconds(form, choices, target)))


def _rows_seconds(block: Block, target: Target) -> float:
    m = target.machine
    reduction = _row_reduction(block)
    seconds = float(row_seconds((reduction,), np.array([4]), target.lanes(4), m)[0])
    # A window of one element has nothing to reduce over.
    inner = [it.var for it in block.iters if it.kind is IterKind.REDUCE][-1:]
    if any(load_strides(ld, block).get(v, 0) not in (0, 1) for v in inner for ld in operand_loads(block)):
        seconds += access_seconds(LaneAccess.SCATTERED, reduction.rows * reduction.k, m)
    return seconds


def _row_reduction(block: Block) -> RowReduction:
    extents = {kind: prod(it.extent for it in block.iters if it.kind is kind) for kind in IterKind}
    nodes = [] if block.try_store is None else list(walk(block.store.value))
    loads = [e for e in nodes if isinstance(e, Load)]
    operations = [e for e in nodes if not isinstance(e, Load | Const | Var) and e.dtype.is_float]
    return RowReduction(
        extents[IterKind.SPATIAL], extents[IterKind.REDUCE], max(len(operations), 1), max(len(loads) - 1, 1)
    )

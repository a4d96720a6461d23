"""Layouts of the buffers between kernels.

A convolution as models state it keeps channels in dimension 1 and pixels innermost. Its register tile wants
channels in vector lanes, so buffers that windowed or channel-mixing reductions read or write are laid out
channels last, and everything that touches them follows: a layout belongs to the Module, not to an op.
Inputs and outputs of the Module keep the layout that the caller knows.
"""

from collections.abc import Collection, Iterator

from tilewright.ir.expr import Buffer, Const, Expr, Load, Scope, Var, free_vars, loads
from tilewright.ir.layout import Layout, Reorder, Split
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.recipes.copies import store_in_place
from tilewright.schedule.step import Step
from tilewright.schedule.steps.fold_padding import FoldPadding, try_padding
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func, Module
from tilewright.tir.stmt import Block, IterKind, Store, blocks, stmt_exprs

_MIN_CHANNELS = 8  # fewer would not fill a vector
_MIN_PIXELS = 32  # in a row: of fewer, too many would be outside of whole vectors


def choose_layouts(module: Module) -> tuple[Module, tuple[Step, ...]]:
    """Channels last where that pays; the module and the steps taken."""
    fixed = {*module.inputs, *module.outputs, *(c.buffer for c in module.constants)}
    alone: list[Block] = []
    chosen: dict[Buffer, int] = {}  # and which of its dimensions has the channels
    for func in module.funcs:
        for block in blocks(func.body):
            if not block.is_reduction:
                chosen.update((b, 1) for b in _tiled_images(block) if b not in fixed)
                continue
            at = _channels(block)
            if at is not None and not _stands_alone(func, block, at, fixed):
                chosen.update((b, d) for b, d in _images(block, at) if b not in fixed)
            elif at is not None and at > 1:
                alone.append(block)
    _spread(module, chosen, fixed)
    steps: list[Step] = []
    for step in (*_phases(module, chosen), *map(_channels_first, alone)):
        module = step.apply(module)
        steps.append(step)
    for b, at in chosen.items():
        order = (*(d for d in range(len(b.shape)) if d != at), at)
        step = TransformLayout(b.name, Layout((Reorder(order),)))
        module = step.apply(module)
        steps.append(step)
    module, placed = store_in_place(module)
    steps.extend(placed)
    for step in _paddings(module):
        try:
            module = step.apply(module)
        except ScheduleError:
            continue  # the padding stays a copy
        steps.append(step)
    return module, tuple(steps)


def _paddings(module: Module) -> list[FoldPadding]:
    """A step for each block that pads a buffer between kernels, of which it is the only such reader."""
    found: dict[str, list[str]] = {}
    for func in module.funcs:
        for block in blocks(func.body):
            padding = try_padding(block)
            if padding is not None and padding.source in module.temps:
                found.setdefault(padding.source.name, []).append(block.name)
    return [FoldPadding(names[0]) for names in found.values() if len(names) == 1]


def _channels_first(block: Block) -> TransformLayout:
    """Parts of the output that are interleaved in the end are computed next to each other, channel by channel."""
    at = _channels(block)
    assert isinstance(block.body, Store) and at is not None
    rank = len(block.body.indices)
    order = (0, at, *range(1, at), *range(at + 1, rank))
    return TransformLayout(block.body.buffer.name, Layout((Reorder(order),)))


def _phases(module: Module, chosen: Collection[Buffer]) -> list[TransformLayout]:
    """A step for each buffer inside a Func that windows walk along its innermost dimension in strides.

    Every stride-th element goes side by side. So pixels in neighbouring lanes are neighbours in memory, and what the
    strides skip is sorted out once, where the buffer is written, instead of at every tap.
    """
    found: dict[str, TransformLayout] = {}
    for func in module.funcs:
        for block in blocks(func.body):
            if not block.is_reduction or not isinstance(block.body, Store) or not block.body.indices:
                continue
            if block.body.buffer in chosen:
                continue
            for ld in loads(block.body.value):
                stride = _stride(block, ld, block.body.indices[-1])
                if ld.buffer in func.locals and ld.buffer not in chosen and stride > 1:
                    last = len(ld.indices) - 1
                    layout = Layout((Split(last, stride), Reorder((*range(last), last + 1, last))))
                    found[ld.buffer.name] = TransformLayout(ld.buffer.name, layout)
    return list(found.values())


def _stride(block: Block, load: Load, var: Expr) -> int:
    """How far the last index moves with `var`."""
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    return sum(k for atom, k in simplify.linear(load.indices[-1]).terms if atom is var)


def _images(block: Block, at: int) -> Iterator[tuple[Buffer, int]]:
    """The buffers of a block whose output has its channels in dimension `at` that have as many pixel dimensions after
    their channels, and where these are.
    """
    assert isinstance(block.body, Store)
    out = block.body.buffer
    if out.scope is Scope.GLOBAL:
        yield out, at
    for ld in loads(block.body.value):
        b = ld.buffer
        if b.scope is Scope.GLOBAL and len(b.shape) == len(out.shape) - at + 1 and _has_channels(b):
            yield b, 1


def _tiled_images(block: Block) -> Iterator[Buffer]:
    """The images that a block cuts into tiles, or puts together from them, where the tiles have channels last."""
    store = block.body
    if not isinstance(store, Store):
        return
    touched = [(store.buffer, store.indices), *((ld.buffer, ld.indices) for ld in loads(store.value))]
    for b, indices in touched:
        if b.scope is not Scope.GLOBAL or not _has_channels(b) or not isinstance(indices[1], Var):
            continue
        for other, at in touched:
            whole = all(isinstance(i, Var) for i in (*indices, *at))
            if other is not b and at and at[-1] is indices[1] and not whole and indices[-1] is not at[-1]:
                yield b


def _has_channels(b: Buffer, at: int = 1) -> bool:
    return len(b.shape) >= at + 2 and b.shape[at] >= _MIN_CHANNELS


def _channels(block: Block) -> int | None:
    """Where the channels of the block's output are, if it reduces over windows or channels of an image, giving one.

    Pixels are after them; before are the batch, and what goes over groups of channels or other parts. An operand with
    as many pixel dimensions moves with them: through windows (pixel and reduce iterators in one index), or
    reducing its own channels, in which case another operand mixes them. A product of matrices looks like the
    latter where there is a single pixel dimension; it is left as it is.
    """
    store = block.body
    if not isinstance(store, Store):
        return None
    reduce = {it.var for it in block.iters if it.kind is IterKind.REDUCE}
    for at in range(1, len(store.indices) - 1):
        if not _has_channels(store.buffer, at) or not isinstance(store.indices[at], Var):
            continue
        pixels = {v for i in store.indices[at + 1 :] for v in free_vars(i)}
        for ld in loads(store.value):
            if ld.buffer is store.buffer or len(ld.indices) != len(store.indices) - at + 1:
                continue
            first, rest = free_vars(ld.indices[1]), [free_vars(i) for i in ld.indices[2:]]
            windows = any(r & pixels and r & reduce for r in rest)
            pools = (
                at == 1
                and not pixels
                and first == frozenset({store.indices[1]})
                and all(r & reduce for r in rest)
            )
            mixes = len(rest) > 1 and bool(first & reduce) and set[Var]().union(*rest) == pixels != set()
            if windows or pools or mixes:
                return at
    return None


def _stands_alone(func: Func, block: Block, at: int, fixed: set[Buffer]) -> bool:
    """Is the block best left as it is, between fixed layouts?

    That is so where pixels fill vectors as well as channels would, and nothing need be transposed on the way in and
    out: where each channel is for itself, and where the result is interleaved anyway, along the pixels.
    """
    assert isinstance(block.body, Store)
    rank = len(block.body.indices) - at + 1
    if any(len(p.shape) == rank and p not in fixed for p in func.params):
        return False
    channel, last = block.body.indices[at], block.body.indices[-1]
    images = [ld for ld in loads(block.body.value) if ld.buffer is not block.body.buffer]
    depthwise = all(channel in {v for i in ld.indices for v in free_vars(i)} for ld in images)
    if not depthwise and not (
        _is_interleaved(func, block.body.buffer) and block.body.buffer.shape[-1] >= _MIN_PIXELS
    ):
        return False
    # Strides cost nothing where the image is copied before, to have a border: see `_phases`.
    return any(
        _stride(block, ld, last) == 1 or (_stride(block, ld, last) > 1 and ld.buffer in func.locals)
        for ld in images
    )


def _is_interleaved(func: Func, buffer: Buffer) -> bool:
    """Do the readers of the buffer run along its last dimension in steps of less than an element?"""
    read = [
        ld for b in blocks(func.body) if not b.is_reduction for e in stmt_exprs(b.body) for ld in loads(e)
    ]
    return any(ld.buffer is buffer and not isinstance(ld.indices[-1], Var | Const) for ld in read)


def _spread(module: Module, chosen: dict[Buffer, int], fixed: set[Buffer]) -> None:
    """Blocks without a reduction follow: what they read and write at the same channel is laid out the same
    way.
    """
    changed = True
    while changed:
        changed = False
        for func in module.funcs:
            for group in _same_channel(func):
                if any(chosen.get(b) == at for b, at in group):
                    new = [b for b, at in group if at == 1 and b not in chosen and b not in fixed]
                    new = [b for b in new if _has_channels(b)]
                    chosen.update(dict.fromkeys(new, 1))
                    changed = changed or bool(new)


def _same_channel(func: Func) -> Iterator[set[tuple[Buffer, int]]]:
    """For each all-spatial block, its output and the buffers that it reads at the output's channel, and which of their
    dimensions that is. Those of another rank (sums that are yet to be put together) have it anywhere.
    """
    for block in blocks(func.body):
        store = block.body
        if block.is_reduction or not isinstance(store, Store) or len(store.indices) < 3:
            continue
        channel = store.indices[1]
        group = {(store.buffer, 1)}
        for ld in loads(store.value):
            same = len(ld.indices) == len(store.indices)
            group |= {(ld.buffer, d) for d, i in enumerate(ld.indices) if i is channel and (d == 1) == same}
        yield group

"""Layouts of the buffers between kernels: which buffers may have their channels last, and the steps that do so.

A convolution as models state it keeps channels in dimension 1 and pixels innermost. Its register tile may want
channels in vector lanes, so buffers that windowed or channel-mixing reductions read or write are *images*: they may be
laid out channels last, and so may everything that is computed from them element by element. A layout belongs to the
Module, not to an op: whoever touches a buffer follows. Inputs and outputs of the Module, and what external code sees,
keep the layout that the caller knows.

Which of the images have their channels last is not decided here: `search/layout_choice.py` does that, by cost.
"""

from collections.abc import Collection, Iterator, Mapping

from tilewright.families.stream.window_space import try_windows
from tilewright.ir.expr import Buffer, Const, Expr, Load, Scope, Var, free_vars, loads
from tilewright.ir.layout import Layout, ReorderDims, SplitDim
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.step import Step
from tilewright.schedule.steps.fold_padding import FoldPadding, try_padding
from tilewright.schedule.steps.transform_layout import TransformLayout, transform_layouts
from tilewright.search.copies import store_in_place
from tilewright.search.split_iterators import split_iterators
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func, Module, outside_kernels
from tilewright.tir.stmt import Block, IterKind, blocks, stmt_exprs, store_blocks

_WORD = 4  # channels of bytes that an instruction reads at a time; given
_MIN_CHANNELS = 8  # channels, given: fewer would not fill a vector


def channels_last(rank: int, at: int) -> Layout:
    """Dimension `at` goes behind the others."""
    return Layout((ReorderDims((*(d for d in range(rank) if d != at), at)),))


def phases(rank: int, stride: int) -> Layout:
    """Every stride-th element of the last dimension goes side by side."""
    last = rank - 1
    return Layout((SplitDim(last, stride), ReorderDims((*range(last), last + 1, last))))


def fixed_buffers(module: Module) -> set[Buffer]:
    """Those whose layout is not ours to choose."""
    outside = outside_kernels(module.program)
    return {*module.inputs, *module.outputs, *(c.buffer for c in module.constants), *outside}


def find_images(module: Module) -> dict[Buffer, int]:
    """The buffers that may have their channels last, and which of their dimensions has them."""
    fixed = fixed_buffers(module)
    found: dict[Buffer, int] = {}
    for func in module.funcs:
        for block in blocks(func.body):
            if not block.is_reduction:
                found.update((b, 1) for b in tiled_images(block) if b not in fixed)
                continue
            at = channels_of(block)
            if at is not None:
                found.update((b, d) for b, d in _images(block, at) if b not in fixed)
    _spread(module, found, fixed)
    return found


def lay_out(
    module: Module, last: Mapping[Buffer, int], given: Mapping[Buffer, Layout] | None = None
) -> tuple[Module, tuple[Step, ...]]:
    """Channels last for the images in `last`, other buffers as `given`, and what follows from it for what is copied
    between kernels; the module and the steps taken.
    """
    steps: list[Step] = []
    layouts = {b: channels_last(len(b.shape), at) for b, at in last.items()} | dict(given or {})
    chosen = [TransformLayout(b.name, layout) for b, layout in layouts.items()]
    for transforms in (_phases(module, layouts), list(_channels_first(module, layouts)), chosen):
        module = transform_layouts(module, transforms)
        steps.extend(transforms)
    factors = {
        p.factor for layout in (given or {}).values() for p in layout.primitives if isinstance(p, SplitDim)
    }
    if factors:
        module, splits = split_iterators(module, factors)
        steps.extend(splits)
    module, placed = store_in_place(module)
    steps.extend(placed)
    for step in _paddings(module):
        try:
            module = step.apply(module)
        except ScheduleError:
            continue  # the paddings stay copies
        steps.append(step)
    return module, tuple(steps)


def _paddings(module: Module) -> list[FoldPadding]:
    """A step for each buffer between kernels that blocks pad, with all of them."""
    found: dict[str, list[str]] = {}
    for func in module.funcs:
        for block in blocks(func.body):
            padding = try_padding(block)
            if padding is not None and padding.source in module.temps:
                found.setdefault(padding.source.name, []).append(block.name)
    return [FoldPadding(first, tuple(others)) for first, *others in found.values()]


def _channels_first(module: Module, last: Collection[Buffer]) -> Iterator[TransformLayout]:
    """Parts of the output that are interleaved in the end are computed next to each other, channel by channel."""
    for func in module.funcs:
        for block, store in store_blocks(func.body):
            at = channels_of(block) if block.is_reduction else None
            if at is None or at == 1:
                continue
            made = store.buffer
            if made not in last and made in func.locals and is_interleaved(func, made):
                rank = len(made.shape)
                order = (0, at, *range(1, at), *range(at + 1, rank))
                yield TransformLayout(made.name, Layout((ReorderDims(order),)))


def _phases(module: Module, last: Collection[Buffer]) -> list[TransformLayout]:
    """A step for each buffer inside a Func that windows walk along its innermost dimension in strides.

    Every stride-th element goes side by side. So pixels in neighbouring lanes are neighbours in memory, and what the
    strides skip is sorted out once, where the buffer is written, instead of at every tap. Windows that can be folded
    axis by axis need no such buffer.
    """
    found: dict[str, TransformLayout] = {}
    for func in module.funcs:
        for block, store in store_blocks(func.body):
            if block.is_reduction and store.buffer not in last and try_windows(func) is None:
                for b, stride in strided_images(func, block):
                    if b not in last:
                        found[b.name] = TransformLayout(b.name, phases(len(b.shape), stride))
    return list(found.values())


def strided_images(func: Func, block: Block) -> Iterator[tuple[Buffer, int]]:
    """The buffers inside of the Func along whose last dimension a reduction moves in strides, as its output moves along
    its own.
    """
    if not block.store.indices:
        return
    for ld in loads(block.store.value):
        if ld.buffer in func.locals and ld.indices:
            stride = _stride(block, ld, block.store.indices[-1])
            if stride > 1:
                yield ld.buffer, stride


def _stride(block: Block, load: Load, var: Expr) -> int:
    """How far the last index moves with `var`."""
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    return sum(k for atom, k in simplify.linear(load.indices[-1]).terms if atom is var)


def _images(block: Block, at: int) -> Iterator[tuple[Buffer, int]]:
    """The buffers of a block whose output has its channels in dimension `at` that have as many pixel dimensions after
    their channels, and where these are.
    """
    out = block.store.buffer
    if out.scope is Scope.GLOBAL:
        yield out, at
    for ld in loads(block.store.value):
        b = ld.buffer
        if b.scope is Scope.GLOBAL and len(b.shape) == len(out.shape) - at + 1 and _has_channels(b):
            yield b, 1


def tiled_images(block: Block) -> Iterator[Buffer]:
    """The images that a block cuts into tiles, or puts together from them, where the tiles have channels last."""
    store = block.try_store
    if store is None:
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
    least = _WORD if b.dtype.bytes == 1 else _MIN_CHANNELS
    return len(b.shape) >= at + 2 and b.shape[at] >= least


def channels_of(block: Block) -> int | None:
    """Where the channels of the block's output are, if it reduces over windows or channels of an image, giving one.

    Pixels are after them; before are the batch, and what goes over groups of channels or other parts. An operand with
    as many pixel dimensions moves with them: through windows (pixel and reduce iterators in one index), or
    reducing its own channels, in which case another operand mixes them. A matrix gemm (GEMM) looks like the
    latter where there is a single pixel dimension; it is left as it is.
    """
    store = block.try_store
    if store is None:
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


def is_interleaved(func: Func, buffer: Buffer) -> bool:
    """Do the readers of the buffer run along its last dimension in steps of less than an element?"""
    read = [
        ld for b in blocks(func.body) if not b.is_reduction for e in stmt_exprs(b.body) for ld in loads(e)
    ]
    return any(ld.buffer is buffer and not isinstance(ld.indices[-1], Var | Const) for ld in read)


def _spread(module: Module, found: dict[Buffer, int], fixed: set[Buffer]) -> None:
    """Blocks without a reduction follow: what they read and write at the same channel may be laid out the same way."""
    changed = True
    while changed:
        changed = False
        for func in module.funcs:
            for group in _same_channel(func):
                if any(found.get(b) == at for b, at in group):
                    new = [b for b, at in group if at == 1 and b not in found and b not in fixed]
                    new = [b for b in new if _has_channels(b)]
                    found.update(dict.fromkeys(new, 1))
                    changed = changed or bool(new)


def _same_channel(func: Func) -> Iterator[Collection[tuple[Buffer, int]]]:
    """For each all-spatial block, its output and the buffers that it reads at the output's channel, and which of their
    dimensions that is. Those of another rank (sums that are yet to be put together) have it anywhere.
    """
    for block in blocks(func.body):
        store = block.try_store
        if block.is_reduction or store is None or len(store.indices) < 3:
            continue
        channel = store.indices[1]
        group = {(store.buffer, 1): None}  # in order: buffers hash by where they are
        for ld in loads(store.value):
            same = len(ld.indices) == len(store.indices)
            found = [d for d, i in enumerate(ld.indices) if i is channel and (d == 1) == same]
            group.update(dict.fromkeys((ld.buffer, d) for d in found))
        yield group

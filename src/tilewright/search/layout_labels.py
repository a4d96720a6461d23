"""Layouts with factors that buffers between kernels may have beside the two of `search/layout_choice.py`.

*Blocks* of a few vectors of channels, which are last: neighbouring pixels are beside each other whatever the number of
channels, and a block is as wide as a tile of the kernel that makes it. Of matrices that one GEMM hands to the next,
columns take the part of channels and rows that of pixels.

Rows *padded*: a GEMM reads a tile of A as one line of each of its rows at a time. Where rows are a multiple of 1 KiB
apart, these lines fall into few sets of the first-level cache, and push each other out before all of a line is used. A
line more behind each row puts neighbours into different sets. It makes no other work: nobody touches what is added.
"""

from collections.abc import Iterator, Mapping

from tilewright.cost.caches import LINE_BYTES, SET_BYTES
from tilewright.families.gemm.recipe import load_strides, try_contraction
from tilewright.ir.expr import Buffer, Const, Indices, Load, Var, loads
from tilewright.ir.layout import Layout, PadDim, ReorderDims, SplitDim
from tilewright.search.layout_terms import without_units
from tilewright.search.layouts import fixed_buffers, tiled_images
from tilewright.tir.func import Func, Module
from tilewright.tir.stmt import Block, blocks, stmt_exprs

# Bytes: rows this far apart, or a multiple of it, fall into four sets at most. Counted: a tile has up to 14 rows, and
# lines of B pass through the same sets, which have 8 to 12 lines.
_FEW_SETS_BYTES = SET_BYTES // 4


def padded_rows(laid_out: Module) -> dict[str, Layout]:
    """The buffers of a Module whose rows should be a line longer, by name, and the layouts that make them so: of the
    shapes that they have there.
    """
    own = set(laid_out.temps) - fixed_buffers(laid_out)
    found: dict[str, Layout] = {}
    for func in laid_out.funcs:
        for block in blocks(func.body):
            for b in _rows_in_few_sets(block):
                if b in own:
                    found[b.name] = Layout((PadDim(len(b.shape) - 1, 0, LINE_BYTES // b.dtype.bytes),))
    return found


def _rows_in_few_sets(block: Block) -> Iterator[Buffer]:
    """The operands of a contraction that it reads along rows which are so far apart."""
    if not block.is_reduction or block.try_store is None:
        return
    block = without_units(block)
    c = try_contraction(block)
    if c is None:
        return
    for operand, own in ((c.a, c.rows), (c.b, c.cols)):
        steps = load_strides(operand, block)
        along = any(steps.get(it.var) == 1 for it in c.reduce)
        if along and own and _is_few_sets(operand, steps.get(own[-1].var, 0)):
            yield operand.buffer


def _is_few_sets(load: Load, step: int) -> bool:
    width = load.buffer.shape[-1]
    return step > 0 and step % width == 0 and step * load.dtype.bytes % _FEW_SETS_BYTES == 0


def channel_blocks(module: Module, images: Mapping[Buffer, int], factor: int) -> dict[Buffer, Layout]:
    """Images in blocks of `factor` channels, which are last, where that divides them (NCHW16c, say), and where
    everybody who uses them can: tiles of Winograd's algorithm and bands have all channels of a pixel side by side.
    """
    tiled = _in_tiles_or_bands(module)
    found: dict[Buffer, Layout] = {}
    for b, at in images.items():
        if b not in tiled and b.shape[at] % factor == 0 and b.shape[at] > factor:
            order = (*range(at + 1), *range(at + 2, len(b.shape) + 1), at + 1)
            found[b] = Layout((SplitDim(at, factor), ReorderDims(order)))
    return found


def _in_tiles_or_bands(module: Module) -> set[Buffer]:
    """What is cut into tiles, or made of them, and what is made with it; and all that is used by Funcs of several
    reductions, which run in bands.
    """
    found: set[Buffer] = set()
    for func in module.funcs:
        every = list(blocks(func.body))
        cut = [b for block in every if not block.is_reduction for b in tiled_images(block)]
        if cut:
            found.update((*cut, *func.locals, *func.outputs))
        elif sum(block.is_reduction for block in every) > 1:
            found.update((*func.params, *func.locals))
    return found


def column_blocks(module: Module, factor: int) -> dict[Buffer, Layout]:
    """Matrices in blocks of `factor` columns, where a GEMM makes them (with what it does to its result) and GEMMs alone
    read them, along their columns.
    """
    own = set(module.temps) - fixed_buffers(module)
    found: dict[Buffer, Layout] = {}
    for func in module.funcs:
        made = [b for b in func.outputs if b in own and _is_wide(b, factor)]
        for b in made:
            readers = [f for f in module.users(b) if f is not func]
            if readers and all(_reads_along_columns(f, b) for f in readers) and _is_product(func, b):
                same = [x for x in func.locals if x.shape == b.shape]
                found.update((x, _column_blocks(x, factor)) for x in (b, *same))
    return found


def _is_wide(b: Buffer, factor: int) -> bool:
    return len(b.shape) >= 2 and b.shape[-1] % factor == 0 and b.shape[-1] > factor and b.shape[-2] > 1


def _column_blocks(b: Buffer, factor: int) -> Layout:
    rank = len(b.shape)
    return Layout((SplitDim(rank - 1, factor), ReorderDims((*range(rank - 2), rank - 1, rank - 2, rank))))


def _reads_along_columns(func: Func, b: Buffer) -> bool:
    """Is every block that reads the buffer a contraction whose rows are those of the buffer?"""
    for block in blocks(func.body):
        used = [ld for e in stmt_exprs(block.body) for ld in loads(e) if ld.buffer is b]
        if not used:
            continue
        c = try_contraction(without_units(block)) if block.is_reduction and block.try_store else None
        if c is None or c.a.buffer is not b or not _is_plain(c.a.indices):
            return False
        if c.a.indices[-1] not in [it.var for it in c.reduce]:
            return False
    return True


def _is_product(func: Func, b: Buffer) -> bool:
    """Is it a contraction, or made of one element by element?"""
    every = [x for x in blocks(func.body) if x.try_store is not None]
    last = next((x for x in every if x.store.buffer is b), None)
    makes = [x for x in every if x.store.buffer.shape == b.shape]
    if last is None or sum(x.is_reduction for x in makes) != 1:
        return False
    return all(
        _is_plain(x.store.indices) and (not x.is_reduction or try_contraction(without_units(x)) is not None)
        for x in makes
    )


def _is_plain(indices: Indices) -> bool:
    return all(isinstance(i, Var | Const) for i in indices)

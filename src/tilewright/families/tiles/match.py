"""Contractions of bytes that registers for matrices compute: those of the gemm family, if the target has such."""

from dataclasses import replace

from tilewright.families.gemm.dot_products import DotProduct
from tilewright.families.gemm.recipe import Contraction, reduction_order, try_integer_contraction
from tilewright.target.target import Target
from tilewright.target.x86_amx import GROUP, TILE_BYTES, TILE_FEATURES, product_name
from tilewright.tir.stmt import Block


def find_tiled(block: Block, target: Target, swap: bool = False) -> Contraction | None:
    """The block as a contraction of bytes, whose groups of the reduction tiles take as they are."""
    if not target.features >= TILE_FEATURES:
        return None
    c = try_integer_contraction(block, target, swap)
    if c is None or c.a.dtype.bytes != 1 or c.b.dtype.bytes != 1:
        return None
    if reduction_order(c)[-1].extent % GROUP or any(
        c.store.buffer.is_open(d) for d in range(len(c.store.indices))
    ):
        return None
    return replace(c, dot=DotProduct(c.a.dtype, c.b.dtype, GROUP, 1.0, {}))


def depth_of(c: Contraction) -> int:
    """How many products of an element one instruction adds up: the most that divide the reduction's innermost loop."""
    extent = reduction_order(c)[-1].extent
    return max(n for n in range(GROUP, TILE_BYTES + 1, GROUP) if not extent % n)


def tile_product(c: Contraction, rows: int, columns: int, depth: int) -> str:
    """The name of the intrinsic."""
    return product_name(c.a.dtype, c.b.dtype, rows, columns, depth)

"""Contractions of bytes that tiles of matrices compute: those of the gemm family, if the target has such."""

from dataclasses import replace

from tilewright.families.gemm.dot_products import DotProduct
from tilewright.families.gemm.recipe import Contraction, reduction_order, try_integer_contraction
from tilewright.target.matrix_units import MatrixUnit, matrix_unit
from tilewright.target.target import Target
from tilewright.tir.stmt import Block


def find_tiled(block: Block, target: Target, swap: bool = False) -> Contraction | None:
    """The block as a contraction of bytes, whose groups of the reduction tiles take as they are."""
    unit = matrix_unit(target)
    c = None if unit is None else try_integer_contraction(block, target, swap)
    if unit is None or c is None or (c.a.dtype, c.b.dtype) not in unit.types:
        return None
    if reduction_order(c)[-1].extent % unit.group or any(
        c.store.buffer.is_open(d) for d in range(len(c.store.indices))
    ):
        return None
    return replace(c, dot=DotProduct(c.a.dtype, c.b.dtype, unit.group, 1.0, {}))


def depth_of(c: Contraction, unit: MatrixUnit) -> int:
    """How many products of an element one intrinsic adds up: the most that divide the reduction's innermost loop."""
    extent = reduction_order(c)[-1].extent
    return max(n for n in range(unit.group, unit.depth + 1, unit.group) if not extent % n)


def tile_product(c: Contraction, unit: MatrixUnit, rows: int, columns: int, depth: int) -> str:
    """The name of the intrinsic."""
    return unit.product((c.a.dtype, c.b.dtype), rows, columns, depth)

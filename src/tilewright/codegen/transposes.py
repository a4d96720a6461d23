"""Transposes of vectors, inside of registers.

    rows a0 a1 a2 a3, b0 b1 b2 b3, …      ──>      columns a0 b0 c0 d0, a1 b1 c1 d1, …

Two neighbouring rows are woven into two vectors that hold both, element by element; then two such pairs, by twos; and
so on, until every vector holds a column: n · log n instructions for n rows of n elements.
"""

from collections.abc import Sequence

from tilewright.codegen.builder import TextBuilder
from tilewright.codegen.values import Val
from tilewright.ir.dtype import DType

_NEAR_BYTES = 16  # what every vector unit can shuffle in one instruction


def can_turn(dtype: DType, width: int, rows: int) -> bool:
    """Are `rows` vectors of `width` elements transposed by weaving?"""
    return dtype is not DType.BOOL and 1 < rows <= width and width & (width - 1) == 0


def transpose_vectors(b: TextBuilder, rows: Sequence[Val]) -> list[Val]:
    """The columns of vectors that all have the same number of elements, at least as many as there are vectors."""
    dtype, width = rows[0].dtype, rows[0].lanes
    near = min(width, max(1, _NEAR_BYTES // dtype.bytes))
    missing = [Val("poison", dtype, width)] * (width - len(rows))
    # With each vector goes which column its elements are of.
    groups = [[(v, list(range(width)))] for v in (*rows, *missing)]
    unit = 1
    while unit < width:
        woven: list[list[tuple[Val, list[int]]]] = []
        for one, other in zip(groups[::2], groups[1::2], strict=True):
            group: list[tuple[Val, list[int]]] = []
            for (v, columns), (w, _) in zip(one, other, strict=True):
                for picks in _weave(width, unit, near):
                    group.append((_shuffle(b, v, w, picks), [columns[p % width] for p in picks]))
            woven.append(group)
        groups, unit = woven, 2 * unit
    ordered = [v for v, _ in sorted(groups[0], key=lambda c: c[1][0])]
    return ordered if len(rows) == width else [_shuffle(b, v, v, range(len(rows))) for v in ordered]


def _weave(width: int, unit: int, near: int) -> tuple[list[int], list[int]]:
    """The picks of two shuffles that alternate two vectors by units: of the first and of the second half of every
    `near` elements, or of every two units where these are longer.
    """
    low: list[int] = []
    high: list[int] = []
    block = max(near, 2 * unit)
    for start in range(0, width, block):
        for half, picks in ((start, low), (start + block // 2, high)):
            for k in range(half, half + block // 2, unit):
                picks += [*range(k, k + unit), *range(width + k, width + k + unit)]
    return low, high


def _shuffle(b: TextBuilder, v: Val, w: Val, picks: Sequence[int]) -> Val:
    mask = ", ".join(f"i32 {p}" for p in picks)
    return b.op(f"shufflevector {v}, {w}, <{len(picks)} x i32> <{mask}>", v.dtype, len(picks))

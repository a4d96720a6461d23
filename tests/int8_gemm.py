"""A GEMM of bytes, u8 · s8 → s32, scheduled step by step around a tensor instruction.

The schedule is that of a float32 GEMM: tiles of 6 × 16 accumulators in registers. The difference is the innermost
step, where `x86.i16.dot2_8` (vpmaddwd and vpaddd) takes two steps of the reduction at once for eight columns, and the
layouts that it asks for: both operands are widened to 16 bits, which is exact, and B lies in panels [N/16, K/2, 16, 2].
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tilewright.families.gemm.tiles import row_tiles
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Scope, cast
from tilewright.ir.layout import Layout, ReorderDims, SplitDim
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps.distribute import Distribute
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single

ROWS, COLUMNS, LANES = 6, 16, 8
BLOCK = 128  # columns of B that stay in L2 while A streams past


def int8_gemm(m: int, n: int, k: int) -> Func:
    """The GEMM as it is written down: operands widened, then a sum of products."""
    b = FuncBuilder("int8_gemm")
    x, y = b.param("A", (m, k), DType.U8), b.param("B", (k, n), DType.I8)

    def widened(of: Buffer) -> Callable[[Expr, Expr], Expr]:
        return lambda i, k: cast(DType.I16, of[i, k])

    wide_x = b.compute("A16", (m, k), widened(x), axes=("i", "k"))
    wide_y = b.compute("B16", (k, n), widened(y), axes=("k", "j"))

    def term(i: Expr, j: Expr, k: Expr) -> Expr:
        return cast(DType.I32, wide_x[i, k]) * cast(DType.I32, wide_y[k, j])

    return b.finish(b.reduce("C", (m, n), (k,), term))


def schedule_int8_gemm(func: Func) -> Schedule:
    """Register tiles of vpmaddwd. Columns come in multiples of 16 and the reduction in pairs."""
    s = Schedule(single(func))
    _pack(s)
    out = s.cache_write("C", "C", Scope.REGISTER)
    m, n = func.outputs[0].shape
    outer, j, col = s.split("C_j", (None, BLOCK // COLUMNS if n % BLOCK == 0 else 1, COLUMNS))
    s.reorder(outer, "C_i", j, col, "C_k")
    s.reverse_compute_at(out, col)
    sizes = row_tiles(m, ROWS)
    ends = [sum(size * count for size, count in list(sizes.items())[: p + 1]) for p in range(len(sizes))]
    if len(sizes) > 1:
        s.loop_partition("C_i", ends[:-1])
    for part, rows in enumerate(sizes):
        _tile(s, f"_p{part}" if len(sizes) > 1 else "", rows, j, col)
    return s


def _pack(s: Schedule) -> None:
    """A keeps its layout, in which pairs lie side by side; B goes from [K, N] to [N/16, K/2, 16, 2]."""
    s.vectorize(s.split("A16_k", (None, 16))[1])
    s.transform_layout("B16", Layout((SplitDim(1, COLUMNS), SplitDim(0, 2), ReorderDims((2, 0, 3, 1)))))
    k, pair = s.split("B16_k", (None, 2))
    j, lane = s.split("B16_j", (None, COLUMNS))
    s.reorder(j, k, lane, pair)


def _tile(s: Schedule, part: str, rows: int, j: str, col: str) -> None:
    """One part of the rows as tiles: rows x 2 accumulators of 8 lanes through the whole reduction."""
    _, row = s.split(f"C_i{part}", (None, rows))
    j, col = j + part, col + part
    s.reorder(j, row, col)
    store_col = s.apply(Distribute(col)).part(1)
    store_row = s.apply(Distribute(row)).part(1)
    k, pair = s.split(f"C_k{part}", (None, 2))
    vector, lane = s.split(col, (None, LANES))
    s.reorder(k, row, vector, lane, pair)
    s.unroll(row)
    s.unroll(vector)
    s.decompose_reduction(f"C{part}", k)
    s.vectorize(f"{lane}_init")
    s.tensorize(lane, "x86.i16.dot2_8")
    s.unroll(store_row)
    store_vector, store_lane = s.split(store_col, (None, LANES))
    s.unroll(store_vector)
    s.vectorize(store_lane)


def operands(m: int, n: int, k: int) -> tuple[NDArray[np.uint8], NDArray[np.int8]]:
    """Random bytes; the first rows and columns are at the ends of the ranges."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (m, k), np.uint8)
    b = rng.integers(-128, 128, (k, n), np.int8)
    a[:2], b[:, 0], b[:, 1] = 255, -128, 127
    return a, b

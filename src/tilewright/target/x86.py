"""Tensor intrinsics of x86-64 with AVX2."""

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Fma, Scope, Var
from tilewright.target.intrinsic import MEMORY, REGISTERS, BodyLoop, Intrinsic, Operand, state
from tilewright.tir.stmt import LoopKind

_AVX2 = frozenset({"avx2", "fma"})
_REGISTERS = 16  # vector registers
_LANES = 8


def _f32_tile(rows: int, vectors: int) -> Intrinsic:
    """C[i, j] += A[i, k] · B[k, j] on rows × vectors accumulators, one fused multiply-add each for a step of k."""
    columns, steps = _LANES * vectors, 4
    c = Buffer("C", (rows, columns), DType.F32, Scope.REGISTER)
    a, b = Buffer("A", (rows, steps), DType.F32), Buffer("B", (steps, columns), DType.F32)
    i, j, k = Var("i"), Var("j"), Var("k")
    inner = BodyLoop("j", LoopKind.VECTORIZED, _LANES)
    return Intrinsic(
        f"x86.f32.tile_{rows}x{columns}",
        state("tile", (c, a, b), {i: rows, j: columns}, {k: steps}, c[i, j], Fma(a[i, k], b[k, j], c[i, j])),
        (Operand("C", REGISTERS, 1), Operand("A", MEMORY), Operand("B", MEMORY, 1)),
        _AVX2,
        free=frozenset({"k"}),
        body=(
            BodyLoop("k"),
            BodyLoop("i", LoopKind.UNROLLED),
            *((BodyLoop("j", LoopKind.UNROLLED), inner) if vectors > 1 else (inner,)),
        ),
    )


# A step of k needs the accumulators, a vector of B per column of them, and one broadcast element of A.
F32_TILES: tuple[Intrinsic, ...] = tuple(
    _f32_tile(rows, vectors)
    for vectors in range(1, _REGISTERS)
    for rows in range(1, _REGISTERS)
    if rows * vectors + vectors + 1 <= _REGISTERS
)

"""Tiles of a GEMM that stay in registers: the same program on every machine with fused multiply-adds."""

from collections.abc import Iterable

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Fma, Scope, Var
from tilewright.target.intrinsic import MEMORY, REGISTERS, BodyLoop, Intrinsic, Operand, state
from tilewright.tir.stmt import LoopKind

_STEPS = 4  # steps of the reduction, in the meaning, which stands for any number; given


def f32_tiles(
    family: str, lanes: int, features: Iterable[str], sizes: Iterable[tuple[int, int]]
) -> tuple[Intrinsic, ...]:
    """C[i, j] += A[i, k] · B[k, j] on rows × vectors accumulators for each of `sizes`, one fused multiply-add each for
    a step of k.
    """
    return tuple(_f32_tile(family, lanes, frozenset(features), rows, vectors) for rows, vectors in sizes)


def _f32_tile(family: str, lanes: int, features: frozenset[str], rows: int, vectors: int) -> Intrinsic:
    columns = lanes * vectors
    c = Buffer("C", (rows, columns), DType.F32, Scope.REGISTER)
    a, b = Buffer("A", (rows, _STEPS), DType.F32), Buffer("B", (_STEPS, columns), DType.F32)
    i, j, k = Var("i"), Var("j"), Var("k")
    inner = BodyLoop("j", LoopKind.VECTORIZED, lanes)
    return Intrinsic(
        f"{family}.f32.tile_{rows}x{columns}",
        state("tile", (c, a, b), {i: rows, j: columns}, {k: _STEPS}, c[i, j], Fma(a[i, k], b[k, j], c[i, j])),
        (Operand("C", REGISTERS, 1), Operand("A", MEMORY), Operand("B", MEMORY, 1)),
        features,
        free=frozenset({"k"}),
        body=(
            BodyLoop("k"),
            BodyLoop("i", LoopKind.UNROLLED),
            *((BodyLoop("j", LoopKind.UNROLLED), inner) if vectors > 1 else (inner,)),
        ),
    )

"""The array as a tensor intrinsic, so that Tilewright's scheduler maps loops to it as to any instruction.

    C[i, j] += i32(A[i, k]) · i32(B[k, j])        16 rows against a tile of weights of 16 × 16

This is one pass of the array. Compiled for a processor, it is the plain loops of its meaning: programs that are
scheduled for it can be run and compared anywhere.
"""

from dataclasses import replace

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Var, cast
from tilewright.target.intrinsic import MEMORY, BodyLoop, Intrinsic, Operand, state
from tilewright.target.intrinsics import register_intrinsics
from tilewright.target.target import BASELINE, Target
from tilewright_npu.machine import NPU

FEATURE = "tilewright-npu"


def _matmul(side: int) -> Intrinsic:
    c = Buffer("C", (side, side), DType.I32)
    a, b = Buffer("A", (side, side), DType.I8), Buffer("B", (side, side), DType.I8)
    i, j, k = Var("i"), Var("j"), Var("k")
    value = c[i, j] + cast(DType.I32, a[i, k]) * cast(DType.I32, b[k, j])
    return Intrinsic(
        f"npu.i8.matmul_{side}x{side}x{side}",
        state("matmul", (c, a, b), {i: side, j: side}, {k: side}, c[i, j], value),
        (Operand("C", MEMORY, 1), Operand("A", MEMORY, 1), Operand("B", MEMORY, 1)),
        frozenset({FEATURE}),
        body=(BodyLoop("i"), BodyLoop("k"), BodyLoop("j")),
    )


MATMUL = _matmul(NPU.side)
FAMILY = (MATMUL,)


def declare() -> Target:
    """Add the array to the intrinsics that Tilewright knows in this process; the target that has it."""
    register_intrinsics(*FAMILY)
    return replace(BASELINE, features=BASELINE.features | {FEATURE})

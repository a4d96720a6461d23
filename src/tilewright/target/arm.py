"""Tensor intrinsics of aarch64: NEON, its dot products (dotprod) and its matrix multiplication of bytes (i8mm)."""

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Fma, Scope, Var, cast
from tilewright.target.intrinsic import (
    ANYWHERE,
    MEMORY,
    EmitContext,
    Emitter,
    Intrinsic,
    Operand,
    state,
)
from tilewright.target.lane_products import (
    adding_halves,
    calling,
    half_products,
    in_every_lane,
    lane_products,
)
from tilewright.target.register_tiles import f32_tiles

_REGISTERS = 32  # vector registers, of 16 bytes; given
_LANES = 4  # of 32 bits; given
_MAX_ROWS = 8  # taller tiles load more of A per step and save little of B; bound

# Accumulators, a vector of B per column of them, and as many broadcast elements of A as are in flight.
F32_TILES: tuple[Intrinsic, ...] = f32_tiles(
    "arm",
    _LANES,
    {"neon"},
    (
        (rows, vectors)
        for vectors in range(1, 5)
        for rows in range(1, _MAX_ROWS + 1)
        if rows * vectors + vectors + 2 <= _REGISTERS
    ),
)


# --------------------------------------------------------------------------------------------------- bytes


def _matrix(function: str) -> Emitter:
    def write(c: EmitContext) -> None:
        """Two rows of eight bytes in each operand, the four sums in one register."""
        sums = (("<4 x i32>", c.get(0, 0, 4)), ("<16 x i8>", c.get(1, 0, 16)), ("<16 x i8>", c.get(2, 0, 16)))
        c.put(0, 0, 4, c.call(f"llvm.aarch64.neon.{function}.v4i32.v16i8", "<4 x i32>", *sums))

    return write


def _dot4(function: str, a: DType, b: DType, feature: str) -> Intrinsic:
    add = calling(f"llvm.aarch64.neon.{function}.v4i32.v16i8", _LANES)
    return lane_products(f"arm.{a}{b}.{function}", (a, b), _LANES, frozenset({feature}), add)


def _matrix_2x2x8(function: str, a_type: DType, b_type: DType) -> Intrinsic:
    """C[i, j] += Σ A[i, k] · B[j, k]: rows of eight bytes, two of them side by side in each operand."""
    c = Buffer("C", (2, 2), DType.I32, Scope.REGISTER)
    a, b = Buffer("A", (2, 8), a_type), Buffer("B", (2, 8), b_type)
    i, j, k = Var("i"), Var("j"), Var("k")
    value = c[i, j] + cast(DType.I32, a[i, k]) * cast(DType.I32, b[j, k])
    return Intrinsic(
        f"arm.{a_type}{b_type}.{function}",
        state(function, (c, a, b), {i: 2, j: 2}, {k: 8}, c[i, j], value),
        (Operand("C", ANYWHERE, 2), Operand("A", MEMORY, 2), Operand("B", MEMORY, 2)),
        frozenset({"i8mm"}),
        emitter=_matrix(function),
    )


DOT_PRODUCTS: tuple[Intrinsic, ...] = (
    _dot4("sdot", DType.I8, DType.I8, "dotprod"),
    _dot4("udot", DType.U8, DType.U8, "dotprod"),
    _dot4("usdot", DType.U8, DType.I8, "i8mm"),
)
MATRIX_PRODUCTS: tuple[Intrinsic, ...] = (
    _matrix_2x2x8("smmla", DType.I8, DType.I8),
    _matrix_2x2x8("ummla", DType.U8, DType.U8),
    _matrix_2x2x8("usmmla", DType.U8, DType.I8),
)


# ------------------------------------------------------------------------------------------------------------- bf16


def _widened_pairs(c: EmitContext) -> None:
    """The elements of even number in order, then those of odd number: the steps of k one after the other."""
    pair = in_every_lane(c, 1, 0, _LANES, DType.BF16)
    a = c.op(f"bitcast <8 x i16> {pair} to <8 x bfloat>")
    b = c.op(f"bitcast <8 x i16> {c.get(2, 0, 8)} to <8 x bfloat>")
    total = c.get(0, 0, _LANES)
    for which in "bt":
        factors = ("<8 x bfloat>", a), ("<8 x bfloat>", b)
        total = c.call(f"llvm.aarch64.neon.bfmlal{which}", "<4 x float>", ("<4 x float>", total), *factors)
    c.put(0, 0, _LANES, total)


def _mlal2() -> Intrinsic:
    """C[j] = fma(f32(A[k]), f32(B[j, k]), C[j]), for k = 0 and then for 1, each rounded once."""
    c = Buffer("C", (_LANES,), DType.F32, Scope.REGISTER)
    a, b = Buffer("A", (2,), DType.BF16), Buffer("B", (_LANES, 2), DType.BF16)
    j, k = Var("j"), Var("k")
    value = Fma(cast(DType.F32, a[k]), cast(DType.F32, b[j, k]), c[j])
    return Intrinsic(
        "arm.bf16.mlal2",
        state("mlal2", (c, a, b), {j: _LANES}, {k: 2}, c[j], value),
        (Operand("C", ANYWHERE, 1), Operand("A", MEMORY, 1), Operand("B", MEMORY, 2)),
        frozenset({"bf16"}),
        emitter=_widened_pairs,
        steps=2.0,
    )


# `bfdot` and `bfmmla` are not here: they round in ways of their own (docs/decisions/low-precision.md).
HALF_PRODUCTS: tuple[Intrinsic, ...] = (_mlal2(),)

# Halves of bytes are signed bytes that are not negative. Steps: instructions for a vector of one row; counted.
FEW_BITS: tuple[Intrinsic, ...] = (
    half_products(
        "arm.i8u4.dot8",
        _LANES,
        1,
        frozenset({"dotprod"}),
        adding_halves(_LANES, calling("llvm.aarch64.neon.sdot.v4i32.v16i8", _LANES)),
        2.0,
    ),
)

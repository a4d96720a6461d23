"""Expressions: folding constructors, types, and their meaning under `evaluate`."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.evaluate import Evaluated, constant_value, evaluate
from tilewright.ir.expr import (
    COMPARISONS,
    FALSE,
    TRUE,
    Binary,
    BinaryOp,
    Bitcast,
    Buffer,
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Select,
    Unary,
    UnaryOp,
    Var,
    binary,
    cast,
    const,
    free_vars,
    loads,
    select,
    walk,
)
from tilewright.ir.rewrite import substitute, transform

i, j = Var("i"), Var("j")
F32 = DType.F32
INTS = [d for d in DType if d.is_int]
FLOATS = [d for d in DType if d.is_float]


def value(e: Expr, **env: int | float) -> Evaluated:
    """Of an expression over index variables."""
    return evaluate(e, {Var(n): np.int64(v) for n, v in env.items()}, _no_load)


def _no_load(node: Load, indices: tuple[Evaluated, ...]) -> Evaluated:
    raise AssertionError(f"{node} was loaded")


# ------------------------------------------------------------------------------------------------- constructors


def test_constructors_fold_literals_and_identities() -> None:
    assert i + 0 is i and 0 + i is i and i - 0 is i and i * 1 is i and 1 * i is i
    assert i * 0 is Const(INDEX, 0) and i // 1 is i and i % 1 is Const(INDEX, 0)
    assert Const(INDEX, 7) // 2 is Const(INDEX, 3) and Const(INDEX, -7) // 2 is Const(INDEX, -4)
    assert Const(INDEX, -7) % 4 is Const(INDEX, 1)
    assert (Const(INDEX, 2) < 3) is TRUE and (Const(INDEX, 3) <= 2) is FALSE
    assert logical_and(TRUE, i < 3, TRUE) is (i < 3) and logical_and(FALSE, i < 3) is FALSE
    assert select(TRUE, i, j) is i and select(i < j, j, j) is j
    assert cast(DType.F32, const(3, DType.I32)) is const(3.0, DType.F32)


def test_float_arithmetic_is_never_folded() -> None:
    x = Var("x", F32)
    assert isinstance(x + 0.0, Binary)  # -0.0 + 0.0 is 0.0
    assert isinstance(x * 1.0, Binary) and isinstance(x * 0.0, Binary)
    assert isinstance(const(1.0, F32) + const(2.0, F32), Binary)


def test_literals_come_into_the_range_of_their_type() -> None:
    assert const(300, DType.U8).value == 44 and const(200, DType.I8).value == -56
    assert const(0.1, F32).value == float(np.float32(0.1))
    assert const(1e39, F32).value == math.inf and const(70000.0, DType.F16).value == math.inf


def test_operands_of_two_types_are_refused() -> None:
    with pytest.raises(TypeError, match="add of f32 and i64"):
        Var("x", F32) + i
    with pytest.raises(TypeError, match="select between"):
        Select(i < j, i, Var("x", F32))
    with pytest.raises(TypeError, match="truth value"):
        bool(i < j)


def test_walk_visits_each_node_once() -> None:
    e: Expr = Var("x", F32)
    for _ in range(200):
        e = e * e + e
    assert len(list(walk(e))) == 401
    assert free_vars(e) == {Var("x", F32)} and not list(loads(e))


def test_substitution_is_simultaneous() -> None:
    assert substitute(i * 2 + j, {i: j, j: i}) is j * 2 + i
    assert substitute(i // 4, {i: Const(INDEX, 9)}) is Const(INDEX, 2)


def test_transform_keeps_sharing() -> None:
    e: Expr = Var("x", F32)
    for _ in range(100):
        e = e * e
    y = Var("y", F32)
    calls = 0

    def rename(n: Expr) -> Expr | None:
        nonlocal calls
        calls += 1
        return y if n is Var("x", F32) else None

    assert free_vars(transform(e, rename)) == {y}
    assert calls == 101


# ------------------------------------------------------------------------------------------------------- meaning


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers_wrap(dtype: DType) -> None:
    info = np.iinfo(dtype.numpy)
    top, one = Const(dtype, int(info.max)), Const(dtype, 1)
    assert constant_value(Binary(BinaryOp.ADD, top, one)) == info.min
    assert constant_value(Binary(BinaryOp.SUB, Const(dtype, int(info.min)), one)) == info.max
    assert constant_value(Binary(BinaryOp.MUL, top, top)) == 1


@given(st.integers(-100, 100), st.integers(-9, 9))
@settings(max_examples=60, deadline=None)
def test_floordiv_and_mod_round_down(a: int, b: int) -> None:
    x, y = Const(INDEX, a), Const(INDEX, b)
    q, r = (constant_value(Binary(op, x, y)) for op in (BinaryOp.FLOORDIV, BinaryOp.MOD))
    if b:
        assert (q, r) == (a // b, a % b)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_min_and_max_propagate_nan(dtype: DType) -> None:
    nan, one = const(math.nan, dtype), const(1.0, dtype)
    for op in (BinaryOp.MIN, BinaryOp.MAX):
        for a, b in ((nan, one), (one, nan)):
            out = constant_value(Binary(op, a, b))
            assert out.dtype == dtype.numpy and np.isnan(np.float64(out))


def test_round_is_to_even_and_shifts_keep_the_sign() -> None:
    halves = [constant_value(Unary(UnaryOp.ROUND, const(h, F32))) for h in (0.5, 1.5, 2.5, -0.5)]
    assert halves == [0.0, 2.0, 2.0, 0.0] and np.signbit(halves[3])
    assert constant_value(Binary(BinaryOp.SHR, const(-8, DType.I32), const(1, DType.I32))) == -4
    assert constant_value(Binary(BinaryOp.SHR, const(0xF8, DType.U8), const(1, DType.U8))) == 0x7C


def _round_exactly(x: Fraction, dtype: DType) -> float:
    """`x` rounded to the nearest value of a short float type, half to even, by looking at the neighbours."""
    bits = {2: np.uint16, 4: np.uint32}[dtype.bytes]
    with np.errstate(all="ignore"):
        near = int(np.asarray(np.float32(float(x))).astype(dtype.numpy).view(bits))
    best: tuple[Fraction, int, float] | None = None
    for n in range(near - 2, near + 3):
        if 0 <= n < 1 << (8 * dtype.bytes):
            v = float(np.asarray(bits(n)).view(dtype.numpy).astype(np.float64))
            if math.isfinite(v):
                here = (abs(Fraction(v) - x), n & 1, v)
                best = here if best is None else min(best, here)
    assert best is not None
    return best[2]


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32], ids=str)
def test_fma_rounds_once(dtype: DType) -> None:
    rng = np.random.default_rng(1)
    scale = 10.0 ** rng.integers(-2, 2, (3, 600))
    a, b, c = (rng.standard_normal((3, 600)) * scale).astype(np.float32).astype(dtype.numpy)
    product = a.astype(np.float64) * b.astype(np.float64)
    c[:200] = (-product[:200]).astype(np.float32).astype(dtype.numpy)  # cancellation keeps the low half
    x, y, z = (Var(n, dtype) for n in "xyz")
    out = evaluate(Fma(x, y, z), {x: a, y: b, z: c}, _no_load)
    twice = evaluate(x * y + z, {x: a, y: b, z: c}, _no_load)
    for n in range(600):
        exact = Fraction(float(a[n])) * Fraction(float(b[n])) + Fraction(float(c[n]))
        assert float(out[n]) == _round_exactly(exact, dtype) or exact == 0
    assert (np.asarray(out) != np.asarray(twice)).any()


def test_fma_of_doubles_is_exact_at_every_scale() -> None:
    rng = np.random.default_rng(2)
    values = [rng.standard_normal(400) * 10.0 ** rng.integers(-320, 300, 400) for _ in range(3)]
    for v in values:
        v[:200] = rng.standard_normal(200)
    values[2][:100] = -(values[0][:100] * values[1][:100])
    x, y, z = (Var(n, DType.F64) for n in "xyz")
    out = np.asarray(evaluate(Fma(x, y, z), dict(zip((x, y, z), values, strict=True)), _no_load))
    for n, (a, b, c) in enumerate(zip(*(v.tolist() for v in values), strict=True)):
        total = Fraction(a) * Fraction(b) + Fraction(c)
        try:
            expected = float(total)
        except OverflowError:
            expected = math.inf if total > 0 else -math.inf
        assert out[n] == expected


def test_fma_special_values() -> None:
    def fma(a: float, b: float, c: float, dtype: DType) -> float:
        return float(constant_value(Fma(const(a, dtype), const(b, dtype), const(c, dtype))))

    big = 1e300
    assert fma(big, big, -math.inf, DType.F64) == -math.inf  # the product overflows only as a double
    assert fma(big, big, -1.0, DType.F64) == math.inf
    assert math.isnan(fma(0.0, math.inf, 1.0, DType.F64))
    for dtype in (F32, DType.F64):
        assert math.copysign(1, fma(-0.0, 1.0, -0.0, dtype)) == -1
        assert math.copysign(1, fma(-1.0, 1.0, 1.0, dtype)) == 1
    assert math.copysign(1, fma(-1e-300, 1e-300, 0.0, DType.F64)) == -1


def test_casts_never_trap() -> None:
    for bad in (math.nan, math.inf, -math.inf, 1e30, -1e30):
        for to in DType:
            assert constant_value(Cast(to, const(bad, F32))).dtype == to.numpy
    assert constant_value(Cast(DType.I32, const(-2.7, F32))) == -2
    assert constant_value(Cast(DType.BOOL, const(0.5, F32))) == np.True_
    assert constant_value(Bitcast(DType.U32, const(-0.0, F32))) == 0x80000000


def test_conversion_to_short_floats_rounds_once() -> None:
    above_half = 1.0 + 2.0**-8 + 2.0**-40  # above the middle of two bf16 values, but exactly on it as an f32
    assert constant_value(Cast(DType.BF16, const(above_half, DType.F64))) == ml_dtypes.bfloat16(1.0 + 2.0**-7)
    whole = (1 << 60) + (1 << 52) + 1  # the same, with an integer that no double holds
    assert constant_value(Cast(DType.BF16, Const(INDEX, whole))) == ml_dtypes.bfloat16(2.0**60 + 2.0**53)


@pytest.mark.parametrize("op", [o for o in UnaryOp if o is not UnaryOp.NOT], ids=lambda o: o.value)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_are_near_float64_and_silent(op: UnaryOp, dtype: DType) -> None:
    reference = {
        UnaryOp.RSQRT: lambda x: 1 / math.sqrt(x),
        UnaryOp.SIGMOID: lambda x: 1 / (1 + math.exp(-x)),
        UnaryOp.EXP_NONPOSITIVE: math.exp,
        UnaryOp.GELU: lambda x: 0.5 * x * math.erfc(-x * math.sqrt(0.5)),
        UnaryOp.NEG: lambda x: -x,
        UnaryOp.ABS: abs,
        UnaryOp.ROUND: round,
    }.get(op) or getattr(math, op.value)
    x = Var("x", dtype)
    points = np.array([0.25, 0.5, 1.0, 2.5, 6.0]).astype(dtype.numpy)
    out = np.asarray(evaluate(Unary(op, x), {x: points}, _no_load))
    assert out.dtype == dtype.numpy
    expected = np.array([float(reference(float(p))) for p in points])
    eps = float(ml_dtypes.finfo(dtype.numpy).eps)
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=eps, atol=0)
    special = np.array([0.0, -0.0, -1.0, 1e4, -1e4, np.inf, -np.inf, np.nan]).astype(dtype.numpy)
    out = np.asarray(evaluate(Unary(op, x), {x: special}, _no_load))
    assert np.isnan(out[-1].astype(np.float64))


def _is_defined(op: BinaryOp, dtype: DType) -> bool:
    if op in (BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR):
        return not dtype.is_float
    if op in (BinaryOp.SHL, BinaryOp.SHR):
        return dtype.is_int
    if op is BinaryOp.DIV:
        return dtype.is_float
    numbers = (BinaryOp.SUB, BinaryOp.FLOORDIV, BinaryOp.MOD, BinaryOp.POW)
    return dtype is not DType.BOOL or op not in numbers


@pytest.mark.parametrize("op", BinaryOp, ids=lambda o: o.value)
@pytest.mark.parametrize("dtype", DType, ids=str)
def test_arrays_and_scalars_agree_and_keep_the_type(op: BinaryOp, dtype: DType) -> None:
    if not _is_defined(op, dtype):
        return
    x, y = Var("x", dtype), Var("y", dtype)
    e = Binary(op, x, y)
    a = np.array([0, 1, 3, 100, 1, 7]).astype(dtype.numpy)
    b = np.array([1, 0, 2, 3, 5, 7]).astype(dtype.numpy)
    together = np.asarray(evaluate(e, {x: a, y: b}, _no_load))
    assert together.dtype == (DType.BOOL if op in COMPARISONS else dtype).numpy
    for n in range(len(a)):
        alone = evaluate(e, {x: a[n], y: b[n]}, _no_load)
        assert alone.dtype == together.dtype
        np.testing.assert_array_equal(np.float64(alone), np.float64(together[n]))


def test_integer_powers() -> None:
    def power(a: int, b: int) -> Evaluated:
        return constant_value(Binary(BinaryOp.POW, const(a, DType.I8), const(b, DType.I8)))

    assert [power(2, 3), power(2, 7), power(-2, -1), power(1, -5), power(-1, -3)] == [8, -128, 0, 1, -1]


def test_select_evaluates_only_the_chosen_side() -> None:
    a = Buffer("A", (4,), F32)
    data = np.arange(4, dtype=np.float32)

    def load(node: Load, indices: tuple[Evaluated, ...]) -> Evaluated:
        (at,) = indices
        assert np.all((np.asarray(at) >= 0) & (np.asarray(at) < 4))
        return data[np.asarray(at)]

    shifted = Select(logical_and(Const(INDEX, 0) <= i - 1, i - 1 < 4), a[i - 1], const(9.0, F32))
    nested = Select(i < 2, shifted, Select(i < 6, a[i - 2], a[i - 6]))
    for n in range(8):
        assert evaluate(nested, {i: np.int64(n)}, load) == [9, 0, 0, 1, 2, 3, 0, 1][n]
    np.testing.assert_array_equal(
        np.asarray(evaluate(nested, {i: np.arange(8)}, load)), [9, 0, 0, 1, 2, 3, 0, 1]
    )


def test_evaluate_visits_a_dag_once() -> None:
    e: Expr = Buffer("A", (), F32)[()]
    for _ in range(100):
        e = binary(BinaryOp.MIN, e + e, e)
    count = 0

    def load(node: Load, indices: tuple[Evaluated, ...]) -> Evaluated:
        nonlocal count
        count += 1
        return np.float32(1)

    assert evaluate(e, {}, load) == 1 and count == 1
    assert value(i * 2 + j, i=3, j=4) == 10

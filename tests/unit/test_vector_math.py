"""Our own elementary functions: errors over the whole range, special values, and what they are made of."""

import math

import numpy as np
import pytest
from native import TARGETS, check_same_bits, kernels_of, target_name
from numpy.typing import NDArray

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Bitcast,
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Select,
    Unary,
    UnaryOp,
    Var,
    const,
    walk,
)
from tilewright.ir.rewrite import transform
from tilewright.search.default import schedule_func
from tilewright.target.target import Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.interp import run_func
from tilewright.tir.passes.expand_math import expand_expr, expand_math
from tilewright.tir.passes.split_fma import split_expr, without_fma
from tilewright.tir.stmt import stmt_exprs, walk_stmts

FUNCTIONS = [
    UnaryOp.EXP,
    UnaryOp.EXP_NONPOSITIVE,
    UnaryOp.LOG,
    UnaryOp.TANH,
    UnaryOp.SIGMOID,
    UnaryOp.ERF,
    UnaryOp.GELU,
    UnaryOp.SIN,
    UnaryOp.COS,
    UnaryOp.RSQRT,
]
BOUND = {op: {UnaryOp.ERF: 4.0, UnaryOp.GELU: 18.0}.get(op, 2.0) for op in FUNCTIONS}
BOUND_WITHOUT_FMA = {op: 20.0 if op is UnaryOp.GELU else 4.0 for op in FUNCTIONS}
LEAST = {UnaryOp.GELU: -3.0}  # of the arguments that such bounds are about
MOST = {UnaryOp.EXP_NONPOSITIVE: 0.0}
INF, NAN = math.inf, math.nan
DENORMAL = 2.0**-149


def value(e: Expr, **arrays: NDArray[np.generic]) -> NDArray[np.generic]:
    def no_load(node: Load, indices: tuple[object, ...]) -> np.generic:
        raise KeyError(node)

    variables = {Var(n, DType.of(a.dtype)): a for n, a in arrays.items()}
    return np.asarray(evaluate(e, variables, no_load))


def expanded(e: Expr, has_fma: bool = True) -> Expr:
    out = expand_expr(e)
    assert out is not None
    return out if has_fma else transform(out, split_expr)


def ulps(got: NDArray[np.generic], exact: NDArray[np.float64], dtype: DType) -> NDArray[np.float64]:
    """Distance in units of the last place of the exact value; infinite where infinities or NaN differ."""
    digits, smallest = {DType.F32: (24, -149), DType.F64: (53, -1074)}[dtype]
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype.numpy).astype(np.float64)
        unit = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - digits, smallest))
        error = np.abs(got.astype(np.float64) - exact) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(exact))
    comparable = np.isfinite(got.astype(np.float64)) & np.isfinite(exact)
    return np.where(comparable, error, np.where(same, 0.0, INF))


def sweep(count: int, dtype: DType = DType.F32) -> NDArray[np.generic]:
    """Floats of every exponent and both signs, evenly spread over their bits."""
    step = (1 << dtype.bits) // count | 1
    start = np.arange(count, dtype=np.uint64) * np.uint64(step)
    values = start.astype(f"u{dtype.bytes}").view(dtype.numpy)
    return values[~np.isnan(values)]


def around(*centres: float) -> NDArray[np.float32]:
    """Where most calls are, and the neighbourhoods where the formulas change."""
    near = [np.linspace(c - 0.05 * abs(c), c + 0.05 * abs(c), 400) for c in centres]
    return np.concatenate([np.linspace(-20, 20, 6000), np.linspace(-1.2, 1.2, 3000), *near]).astype(
        np.float32
    )


def within(op: UnaryOp, x: NDArray[np.generic], least: float | None = None) -> NDArray[np.generic]:
    with np.errstate(invalid="ignore"):  # NaN of halves
        wide = x.astype(np.float64)
    low = LEAST.get(op, -INF) if least is None else least
    return x[~((wide < low) | (wide > MOST.get(op, INF)))]


POINTS = np.concatenate([sweep(9001), around(0.5497, -87.33, -103.97, 88.72, 9.0, 3.92, -16.64, 2.0**80)])


@pytest.mark.parametrize("has_fma", [True, False])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_error_in_f32(op: UnaryOp, has_fma: bool) -> None:
    x = Var("x", DType.F32)
    points = within(op, POINTS)
    exact = value(Unary(op, Var("x", DType.F64)), x=points.astype(np.float64)).astype(np.float64)
    error = ulps(value(expanded(Unary(op, x), has_fma), x=points), exact, DType.F32)
    worst = int(np.argmax(error))
    assert error[worst] <= (BOUND if has_fma else BOUND_WITHOUT_FMA)[op], f"{op.value}({points[worst]!r})"


@pytest.mark.parametrize("op", FUNCTIONS)
def test_error_in_f64(op: UnaryOp) -> None:
    # The reference is a libm, with errors of its own up to 1 ULP.
    x = Var("x", DType.F64)
    points = np.linspace(-30, 30, 1500) if op in (UnaryOp.SIN, UnaryOp.COS) else sweep(1001, DType.F64)
    points = np.concatenate([points.astype(np.float64), np.linspace(-8, 8, 1001) + 1e-3])
    points = within(op, points, -1.0 if op is UnaryOp.GELU else None)
    error = ulps(
        value(expanded(Unary(op, x)), x=points), value(Unary(op, x), x=points).astype(np.float64), DType.F64
    )
    worst = int(np.argmax(error))
    assert error[worst] <= 3.0, f"{op.value}({points[worst]!r})"


SPECIAL: dict[UnaryOp, list[tuple[float, float]]] = {
    UnaryOp.EXP: [
        (-INF, 0.0),
        (INF, INF),
        (0.0, 1.0),
        (-0.0, 1.0),
        (88.72284, INF),
        (-104.0, 0.0),
        (-103.0, DENORMAL),
    ],
    UnaryOp.EXP_NONPOSITIVE: [
        (-INF, 0.0),
        (0.0, 1.0),
        (-0.0, 1.0),
        (-1e38, 0.0),
        (-104.0, 0.0),
        (-103.0, DENORMAL),
    ],
    UnaryOp.LOG: [
        (0.0, -INF),
        (-0.0, -INF),
        (INF, INF),
        (-1.0, NAN),
        (-INF, NAN),
        (-DENORMAL, NAN),
        (1.0, 0.0),
    ],
    UnaryOp.TANH: [(INF, 1.0), (-INF, -1.0), (0.0, 0.0), (-0.0, -0.0), (-DENORMAL, -DENORMAL), (20.0, 1.0)],
    UnaryOp.SIGMOID: [
        (INF, 1.0),
        (-INF, 0.0),
        (0.0, 0.5),
        (-0.0, 0.5),
        (-103.0, DENORMAL),
        (-1e38, 0.0),
        (1e38, 1.0),
    ],
    UnaryOp.ERF: [(INF, 1.0), (-INF, -1.0), (0.0, 0.0), (-0.0, -0.0), (DENORMAL, DENORMAL), (-7.0, -1.0)],
    UnaryOp.GELU: [
        (INF, INF),
        (-INF, 0.0),
        (0.0, 0.0),
        (-0.0, -0.0),
        (-1e38, 0.0),
        (-11.0, 0.0),
        (40.0, 40.0),
    ],
    UnaryOp.SIN: [(INF, NAN), (-INF, NAN), (0.0, 0.0), (-0.0, -0.0), (-DENORMAL, -DENORMAL)],
    UnaryOp.COS: [(INF, NAN), (-INF, NAN), (0.0, 1.0), (-0.0, 1.0), (DENORMAL, 1.0)],
    UnaryOp.RSQRT: [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-1.0, NAN), (4.0, 0.5)],
}


@pytest.mark.parametrize("has_fma", [True, False])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_special_values(op: UnaryOp, dtype: DType, has_fma: bool) -> None:
    rows = [*SPECIAL[op], (NAN, NAN)]
    if dtype is DType.F64:  # what concerns the denormals and limits of f32
        rows = [
            (x, y)
            for x, y in rows
            if abs(x) != DENORMAL and abs(y) != DENORMAL and x not in (88.72284, -104.0)
        ]
    x, want = np.array(rows).T.astype(dtype.numpy)
    got = value(expanded(Unary(op, Var("x", dtype)), has_fma), x=x)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(want)]), np.signbit(want[~np.isnan(want)]))


@pytest.mark.parametrize("op", [UnaryOp.EXP, UnaryOp.EXP_NONPOSITIVE])
def test_gradual_underflow_of_exp(op: UnaryOp) -> None:
    x = np.linspace(-103.9, -95, 2000).astype(np.float32)
    got = value(expanded(Unary(op, Var("x", DType.F32))), x=x)
    assert (np.abs(got.astype(np.float64) - np.exp(x.astype(np.float64))) <= 0.51 * DENORMAL).all()


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_what_is_masked_makes_no_denormal(dtype: DType) -> None:
    """The factors are 0 or normal: a product that underflows takes some processors a hundred cycles."""
    product = expanded(Unary(UnaryOp.EXP_NONPOSITIVE, Var("x", dtype)))
    assert isinstance(product, Binary) and product.op is BinaryOp.MUL
    x = np.array([-INF, -1e38, -1e9, -1e4, -747.0], dtype.numpy)
    assert (value(product.b, x=x) == 0).all()


@pytest.mark.parametrize(("dtype", "bound"), [(DType.F32, 1.3e-9), (DType.F64, 2e-17)])
def test_gelu_vanishes_smoothly(dtype: DType, bound: float) -> None:
    # Through the part where the polynomial leaves the function behind, and on: nowhere above 0, and 0 in the end.
    x = np.linspace(-14, -4, 5001).astype(dtype.numpy)
    got = value(expanded(Unary(UnaryOp.GELU, Var("x", dtype))), x=x)
    exact = value(Unary(UnaryOp.GELU, Var("x", DType.F64)), x=x.astype(np.float64))
    assert np.abs(got - exact).max() <= bound
    assert (got <= 0).all() and (got[x < -11] == 0).all()


def test_gelu_keeps_its_digits_where_it_is_small() -> None:
    x = np.linspace(-4, -2, 2001).astype(np.float32)
    got = value(expanded(Unary(UnaryOp.GELU, Var("x", DType.F32))), x=x)
    exact = np.array([0.5 * v * math.erfc(-v * math.sqrt(0.5)) for v in x.tolist()])
    assert (np.abs(got / exact - 1) <= 6e-6).all()


@pytest.mark.parametrize("op", [UnaryOp.SIN, UnaryOp.COS])
def test_huge_arguments(op: UnaryOp) -> None:
    # The last one is, of all f32, the closest to a multiple of π/2 in relation to its size.
    rng = np.random.default_rng(0)
    huge = np.ldexp(rng.uniform(0.5, 1.0, 4000), rng.integers(1, 129, 4000)).astype(np.float32)
    hard = np.array([2.0**127, 3.4028235e38, 2.0**80, 2.0**79, 1e30, 16367173 * 2.0**72], np.float32)
    x = np.concatenate([huge, -huge, hard])
    exact = np.array([(math.sin if op is UnaryOp.SIN else math.cos)(float(v)) for v in x])
    assert ulps(value(expanded(Unary(op, Var("x", DType.F32))), x=x), exact, DType.F32).max() <= 2.0


# ------------------------------------------------------------------------------------------------------ pow


def power(dtype: DType, has_fma: bool = True) -> Expr:
    return expanded(Binary(BinaryOp.POW, Var("x", dtype), Var("y", dtype)), has_fma)


@pytest.mark.parametrize("has_fma", [True, False])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_special_values_of_pow(dtype: DType, has_fma: bool) -> None:
    tiny, big = (DENORMAL, 3e38) if dtype is DType.F32 else (5e-324, 1.7e308)
    odd = 2.0**24 - 1 if dtype is DType.F32 else 2.0**53 - 1
    positive = [0.0, tiny, 0.3, 0.5, 1.0, 1.0 + 2.0**-20, 2.0, 3.0, odd, odd + 1, big, INF, NAN]
    all_values = np.array([*positive, *(-v for v in positive)], dtype.numpy)
    x, y = (a.ravel() for a in np.meshgrid(all_values, all_values))
    with np.errstate(all="ignore"):
        want = np.power(x, y)  # as C99 says
    got = value(power(dtype, has_fma), x=x, y=y)
    regular = np.isfinite(want) & (want != 0)
    np.testing.assert_array_equal(got[~regular], want[~regular])
    np.testing.assert_allclose(
        got[regular], want[regular], rtol=1e-6 if dtype is DType.F32 else 1e-14, atol=tiny
    )
    known = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(want[known]))


@pytest.mark.parametrize("has_fma", [True, False])
def test_error_of_pow(has_fma: bool) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([np.exp(rng.uniform(-88, 88, 5000)), rng.uniform(0.5, 2.0, 5000)]).astype(np.float32)
    y = (rng.uniform(-150, 130, 10000) / np.log2(x.astype(np.float64))).astype(np.float32)
    with np.errstate(over="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    assert ulps(value(power(DType.F32, has_fma), x=x, y=y), exact, DType.F32).max() <= 1.0


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, 4.0, -1.0, 0.5])
def test_written_exponents_need_no_logarithm(exponent: float) -> None:
    x = Var("x", DType.F32)
    short = transform(Binary(BinaryOp.POW, x, const(exponent, DType.F32)), expand_expr)
    assert len(list(walk(short))) <= 8
    with np.errstate(all="ignore"):
        exact = np.power(POINTS.astype(np.float64), exponent)
    assert ulps(value(short, x=POINTS), exact, DType.F32).max() <= 2.0
    special = [0.0, -0.0, INF, -INF, NAN]
    got = value(short, x=np.array(special, np.float32))
    want = np.array([math.pow(v, exponent) if v or exponent > 0 else math.copysign(INF, v) for v in special])
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[:4]), np.signbit(want[:4]))


# ------------------------------------------------------------------------------------------- what they are made of

PRIMITIVE = {UnaryOp.ABS, UnaryOp.NEG, UnaryOp.SQRT, UnaryOp.FLOOR, UnaryOp.ROUND}
SIZE = {
    UnaryOp.EXP: 40,
    UnaryOp.EXP_NONPOSITIVE: 32,
    UnaryOp.LOG: 50,
    UnaryOp.TANH: 46,
    UnaryOp.SIGMOID: 43,
    UnaryOp.ERF: 50,
    UnaryOp.GELU: 52,
    UnaryOp.SIN: 78,
    UnaryOp.COS: 76,
    UnaryOp.RSQRT: 4,
}


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_only_primitive_operations(op: UnaryOp, dtype: DType) -> None:
    x = Var("x", dtype)
    for e in (expanded(Unary(op, x)), power(dtype)):
        for n in walk(e):
            match n:
                case Unary():
                    assert n.op in PRIMITIVE
                case Binary():
                    assert n.op is not BinaryOp.POW
                case Cast():  # a float out of an integer's range has no specified value, so none is converted
                    assert n.dtype.is_float or not n.a.dtype.is_float
                case _:
                    assert isinstance(n, Const | Var | Fma | Select | Bitcast)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_parts_are_shared(op: UnaryOp) -> None:
    assert len(list(walk(expanded(Unary(op, Var("x", DType.F32)))))) <= SIZE[op]


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_halves_compute_in_f32(op: UnaryOp, dtype: DType) -> None:
    # Rounded to f32 first, a result may end up one unit off where it lies between two halves: rarely.
    u = Unary(op, Var("x", dtype))
    x = within(op, np.arange(0, 1 << 16, 37, dtype=np.uint16).view(dtype.numpy))
    got, want = value(expanded(u), x=x), value(u, x=x)
    finite = np.isfinite(want.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    apart = np.abs(got.view(np.int16)[finite].astype(np.int32) - want.view(np.int16)[finite])
    assert apart.max() <= 1
    assert (apart != 0).mean() < 0.002


def test_expand_math_rewrites_a_func() -> None:
    b = FuncBuilder("f")
    a = b.param("A", (7,), DType.F32)
    c = b.compute("B", (7,), lambda i: Unary(UnaryOp.EXP, a[i]) / (1.0 + Unary(UnaryOp.EXP, a[i])))
    func = b.finish(c)
    out = expand_math(func)
    exprs = [e for s in walk_stmts(out.body) for e in stmt_exprs(s)]
    assert not any(isinstance(n, Unary) and n.op is UnaryOp.EXP for e in exprs for n in walk(e))
    assert expand_math(out) is out
    split_func = without_fma(out)
    assert not any(
        isinstance(n, Fma) for s in walk_stmts(split_func.body) for e in stmt_exprs(s) for n in walk(e)
    )
    assert without_fma(split_func) is split_func
    x = np.linspace(-3, 3, 7).astype(np.float32)
    for f in (func, out, split_func):
        (got,) = run_func(f, x)
        np.testing.assert_allclose(got, 1 / (1 + np.exp(-x.astype(np.float64))), rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS, ids=target_name)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("op", [*FUNCTIONS, BinaryOp.POW])
def test_native_code_gives_the_same_bits(op: UnaryOp | BinaryOp, dtype: DType, target: Target) -> None:
    special = np.array([0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 2.0**80, -104.0, 89.0, 3.5, -7.0])
    x = np.concatenate([sweep(301, dtype), np.tile(special, len(special)), np.linspace(-10, 10, 207)]).astype(
        dtype.numpy
    )
    y = np.roll(x, 13)
    b = FuncBuilder("f")
    first, second = b.param("X", x.shape, dtype), b.param("Y", x.shape, dtype)
    out = b.compute(
        "Z",
        x.shape,
        lambda i: Unary(op, first[i]) if isinstance(op, UnaryOp) else Binary(op, first[i], second[i]),
    )
    kernels, shared = kernels_of(schedule_func(b.finish(out), target).func, target)
    assert not shared
    for kernel in kernels:  # whole vectors, and the rest
        check_same_bits(kernel, {first: x, second: y, out: np.zeros_like(x)}, target)

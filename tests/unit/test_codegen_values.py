"""Operations on values: NaN and signs, division, rounding, every type. Interpreter and native code agree to the bit."""

import itertools
import re

import numpy as np
import pytest
from guarded import in_child
from native import (
    arrays_of,
    bits,
    check,
    check_same_bits,
    every_target,
    legal,
    load,
    program,
    run_kernel,
    run_native,
)

from tilewright.codegen.kernel import kernel_ir
from tilewright.ir.dtype import DType
from tilewright.search.default import schedule_func
from tilewright.support.arrays import Array
from tilewright.target.target import Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func

INF, NAN = np.inf, np.nan
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    1e-40,
    -1e-45,
    3e38,
    8388607.5,
    -8388609.0,
    INF,
    -INF,
    NAN,
]


def over(loop: str, n: int, *stores: str, suffix: str = "") -> str:
    """A loop over n elements (a multiple of 8) one by one or in vectors; `i` is the element in the stores."""
    if loop == "range":
        head, index = f"    for i{suffix} in range({n}):\n", f"i{suffix}"
    else:
        head = f"    for k{suffix} in range({n // 8}):\n      for lane{suffix} in vectorized(8):\n"
        index = f"k{suffix} * 8 + lane{suffix}"
    return head + re.sub(r"\bi\b", index, "".join(f"        {s}\n" for s in stores))


def elementwise(loop: str, n: int, params: str, *stores: str) -> Func:
    return program(f"def f({params}):\n{over(loop, n, *stores)}")


def fill(x: object) -> Array:
    """Repeated to a multiple of 8 elements."""
    a = np.asarray(x)
    return np.resize(a, -(-len(a) // 8) * 8)


each_loop = pytest.mark.parametrize("loop", ["vectorized", "range"])


# ------------------------------------------------------------------------------------------------ special values


@every_target
def test_padding_beside_nan_is_zero(target: Target) -> None:
    func = program("""
def padded(X: f32[13], Y: out(f32[32])):
    for k in range(4):
        for i in vectorized(8):
            Y[k * 8 + i] = select(9 <= k * 8 + i and k * 8 + i < 22, X[k * 8 + i - 9], f32(0))
""")
    y = check(func, target, X=np.full(13, NAN))["Y"]
    assert np.isnan(y[9:22]).all() and (y[:9] == 0).all() and (y[22:] == 0).all()


@each_loop
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@every_target
def test_nan_propagates_through_min_max_and_relu(loop: str, dtype: str, target: Target) -> None:
    pairs = list(itertools.product(SPECIAL, SPECIAL))
    a, b = (fill([p[side] for p in pairs]) for side in (0, 1))
    t = f"{dtype}[{len(a)}]"
    func = elementwise(
        loop,
        len(a),
        f"A: {t}, B: {t}, L: out({t}), H: out({t}), R: out({t})",
        "L[i] = min(A[i], B[i])",
        "H[i] = max(A[i], B[i])",
        f"R[i] = select(A[i] < 0, {dtype}(0), A[i])",
    )
    done = check(func, target, A=a, B=b)
    either = np.isnan(done["A"]) | np.isnan(done["B"])
    assert either.any()
    for name in "LH":
        np.testing.assert_array_equal(np.isnan(done[name]), either)
    np.testing.assert_array_equal(np.isnan(done["R"]), np.isnan(done["A"]))


@each_loop
@pytest.mark.parametrize("bound", ["0", "-0.0", "6", "-1.5", "inf", "nan"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@every_target
def test_bounds_that_are_literals_are_like_others(loop: str, dtype: str, bound: str, target: Target) -> None:
    a = fill([*SPECIAL, 6.0, -6.0, 7.0])
    number = f"{dtype}({bound})"
    t = f"{dtype}[{len(a)}]"
    sides = {"A[i]": number, number: "A[i]"}
    stores = [
        f"{v}[i] = {op}({x}, {y})"
        for v, (op, (x, y)) in zip("LHKG", itertools.product(("min", "max"), sides.items()), strict=True)
    ]
    done = check(
        elementwise(loop, len(a), f"A: {t}, L: out({t}), H: out({t}), K: out({t}), G: out({t})", *stores),
        target,
        A=a,
    )
    for name in "LHKG":
        np.testing.assert_array_equal(np.isnan(done[name]), np.isnan(a) | (bound == "nan"))


@pytest.mark.parametrize("size", [3, 40])
@every_target
def test_a_maximum_of_rows_keeps_nan(size: int, target: Target) -> None:
    b = FuncBuilder("f")
    x = b.param("X", (8, size), DType.F32)
    func = b.finish(b.reduce("M", (8,), (size,), lambda i, k: x[i, k], "max"))
    data = np.random.default_rng(0).standard_normal((8, size)).astype(np.float32)
    for row in range(7):
        data[row, min(row * 6, size - 1)] = NAN
    (m,) = run_native(schedule_func(func, target).func, [data], target)
    np.testing.assert_array_equal(m, data.max(axis=1))
    assert np.isnan(m[:7]).all() and not np.isnan(m[7])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@each_loop
@every_target
def test_rounding_is_exact_and_keeps_signs_and_nan(dtype: str, loop: str, target: Target) -> None:
    rng = np.random.default_rng(0)
    big = 2.0 ** np.array([22, 23, 24, 51, 52, 53, 62, 63, 64])
    ties = np.arange(-8, 8) + 0.5
    some = np.concatenate([rng.standard_normal(64) * 100, [-0.7, -0.3, 0.3, 0.7]])
    x = fill(np.concatenate([SPECIAL, ties, ties + 4194304.0, big, -big, big - 0.5, some]))
    names, t = ("floor", "ceil", "round", "trunc"), f"{dtype}[{len(x)}]"
    params = ", ".join((f"X: {t}", *(f"{f}_: out({t})" for f in names)))
    done = check(elementwise(loop, len(x), params, *(f"{f}_[i] = {f}(X[i])" for f in names)), target, X=x)
    for name, reference in zip(names, (np.floor, np.ceil, np.rint, np.trunc), strict=True):
        expected = reference(x.astype(done["X"].dtype))
        np.testing.assert_array_equal(bits(done[f"{name}_"]), bits(expected), err_msg=name)


@every_target
def test_denormals_are_kept(target: Target) -> None:
    func = program("""
def f(X: f32[8], Y: out(f32[8])):
    for i in vectorized(8):
        Y[i] = X[i] * f32(0.25) + f32(1e-45)
""")
    y = check(func, target, X=np.full(8, 1e-39))["Y"]
    assert (y > 0).all() and (y < np.finfo(np.float32).tiny).all()


# ------------------------------------------------------------------------------------------------------ integers


@each_loop
@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"])
@every_target
def test_division_rounds_down_and_never_traps(dtype: str, loop: str, target: Target) -> None:
    info = np.iinfo(DType(dtype).numpy)
    some = sorted({info.min, info.min + 1, -8, -7, -1, 0, 1, 2, 3, 7, 8, info.max - 1, info.max})
    some = [v for v in some if v >= info.min]
    pairs = list(itertools.product(some, some))
    a, b = (fill(np.array([p[side] for p in pairs], info.dtype)) for side in (0, 1))
    n = len(a)
    t = f"{dtype}[{n}]"
    func = elementwise(
        loop,
        n,
        f"A: {t}, B: {t}, Q: out({t}), R: out({t}), C: out({dtype}[4, {n}])",
        "Q[i] = A[i] // B[i]",
        "R[i] = A[i] % B[i]",
        f"C[0, i] = A[i] // {dtype}(7)",
        f"C[1, i] = A[i] % {dtype}(7)",
        f"C[2, i] = A[i] // {dtype}(8)",
        f"C[3, i] = A[i] % {dtype}(8)",
    )
    arrays = arrays_of(func, A=a, B=b)
    kernel = legal(func, target)
    # A trap would end this process: first in one that may end.
    assert in_child(lambda: run_kernel(kernel, arrays, target)) == 0
    done = check_same_bits(kernel, arrays, target)
    q, r = done[func.params[2]], done[func.params[3]]
    for (x, y), quotient, remainder in zip(pairs, q, r, strict=False):
        if y not in (0, -1):
            assert (quotient, remainder) == (x // y, x % y)


@pytest.mark.parametrize("by", [-1, 0])
def test_division_by_a_literal_that_would_trap(by: int) -> None:
    func = program(f"""
def f(A: i32[4], Q: out(i32[4]), R: out(i32[4])):
    for i in range(4):
        Q[i] = A[i] // i32({by})
        R[i] = A[i] % i32({by})
""")
    arrays = arrays_of(func, A=[-(1 << 31), 5, -5, 0])
    assert in_child(lambda: run_kernel(func, arrays)) == 0
    check_same_bits(func, arrays)


@every_target
def test_integers_of_users_wrap_like_any_other(target: Target) -> None:
    """i64 is the type of indices, which never overflow; data of that type may."""
    func = program("""
def f(A: i64[8], B: i64[8], Y: out(i64[8]), Z: out(bool[8])):
    for i in vectorized(8):
        Y[i] = A[i] * B[i] + A[i]
        Z[i] = A[i] + B[i] < A[i]
""")
    check(func, target, A=[(1 << 63) - 1] * 8, B=[1, -1, 2, 3, 5, 7, 1 << 62, -(1 << 63)])


@every_target
def test_absolute_values(target: Target) -> None:
    for dtype in ("i8", "u8", "i32", "u64"):
        func = program(
            f"def f(X: {dtype}[9], Y: out({dtype}[9])):\n    for i in vectorized(9):\n        Y[i] = abs(X[i])\n"
        )
        low = np.iinfo(DType(dtype).numpy).min
        check(func, target, X=[low, low + 1, 0, 1, 2, 100, 126, 127, low + 200 if low == 0 else 5])


# ------------------------------------------------------------------------------------------------------- dtypes


def _sources(source: DType, to: DType) -> Array:
    """Values of `source` that mean something in `to`."""
    if source is DType.BOOL:
        return np.array([True, False, True, True, False] * 4)
    rng = np.random.default_rng(3)
    if not source.is_float:
        info = np.iinfo(source.numpy)
        wide = rng.integers(info.min, info.max, 400, source.numpy, endpoint=True)
        small = rng.integers(max(info.min, -9), 10, 13).astype(source.numpy)
        edges = np.array([info.min, info.max, info.min + 1, info.max - 1, 0, 1], source.numpy)
        # Integers around the places where floats lose their last bits.
        near = [(1 << k) + d for k in (8, 11, 24, 25, 53, 54, 60, 63) for d in (-3, -1, 0, 1, 3)]
        fit = np.array([v for v in near if info.min <= v <= info.max], source.numpy)
        return np.concatenate([wide, small, edges, fit])
    if to.is_float or to is DType.BOOL:
        x = np.concatenate(
            [SPECIAL, rng.standard_normal(300), rng.standard_normal(300) * 10.0 ** rng.integers(-45, 39, 300)]
        )
        halves = np.array(
            [65519.99, 65520.0, 65504.0, 5.96e-8, 2.98e-8, 2.99e-8, 6.1e-5, 6.09e-5, 3.3895e38, 3.4e38]
        )
        ties = 1.0 + np.arange(40) / 4096.0
        with np.errstate(all="ignore"):
            return np.concatenate([x, halves, -halves, ties, ties * (1 + 2**-40)]).astype(source.numpy)
    info = np.iinfo(to.numpy)
    fraction = rng.random(200)
    scaled = (fraction * min(info.max, 2.0**20)) + ((1 - fraction) * max(info.min, -(2.0**20)))
    with np.errstate(all="ignore"):
        x = np.concatenate([scaled, [0.0, 0.9, 1.5]]).astype(source.numpy)
    whole = x.astype(np.float64)
    return x[(whole > info.min - 0.99) & (whole < float(info.max) * (1 - 2**-20)) & np.isfinite(whole)]


@pytest.mark.parametrize("source", DType, ids=str)
@every_target
def test_every_cast(source: DType, target: Target) -> None:
    params, loops, given = list[str](), list[str](), dict[str, Array]()
    for to, loop in itertools.product(DType, ("vectorized", "range")):
        x = fill(_sources(source, to))
        name, n = f"{to}_{loop}", len(x)
        params += [f"X_{name}: {source}[{n}]", f"Y_{name}: out({to}[{n}])"]
        loops.append(over(loop, n, f"Y_{name}[i] = cast({to}, X_{name}[i])", suffix=f"_{name}"))
        given[f"X_{name}"] = x
    check(program(f"def casts({', '.join(params)}):\n{''.join(loops)}"), target, **given)


HALF_OPS = (
    "S[0, i] = A[i] + B[i]",
    "S[1, i] = A[i] * B[i]",
    "S[2, i] = A[i] / B[i]",
    "S[3, i] = fma(A[i], B[i], C[i])",
    "S[4, i] = min(A[i], B[i])",
    "S[5, i] = sqrt(abs(A[i]))",
    "S[6, i] = -floor(A[i])",
    "S[7, i] = select(A[i] < B[i], A[i], {t}(0.1))",
    "S[8, i] = (A[i] - B[i]) * C[i]",
    "S[9, i] = bitcast({t}, bitcast(u16, A[i]) ^ u16(1))",
    "L[i] = A[i] <= B[i]",
)


@each_loop
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@every_target
def test_half_precision_arithmetic_rounds_once_per_operation(dtype: str, loop: str, target: Target) -> None:
    rng = np.random.default_rng(5)
    n = 1024
    a, b, c = (d.view(DType(dtype).numpy) for d in rng.integers(0, 1 << 16, (3, n)).astype(np.uint16))
    with np.errstate(over="ignore"):
        a[:8], b[:8] = SPECIAL[:8], SPECIAL[5:13]
    params = f"A: {dtype}[{n}], B: {dtype}[{n}], C: {dtype}[{n}], S: out({dtype}[10, {n}]), L: out(bool[{n}])"
    check(elementwise(loop, n, params, *(op.format(t=dtype) for op in HALF_OPS)), target, A=a, B=b, C=c)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@every_target
def test_all_halves_convert_to_f32_and_back(dtype: str, target: Target) -> None:
    n = 1 << 16
    params = f"X: {dtype}[{n}], Y: out(f32[{n}]), Z: out({dtype}[{n}])"
    stores = ("Y[i] = cast(f32, X[i])", f"Z[i] = cast({dtype}, cast(f32, X[i]))")
    func = elementwise("vectorized", n, params, *stores)
    x = np.arange(n).astype(np.uint16).view(DType(dtype).numpy)
    done = check(func, target, X=x)
    np.testing.assert_array_equal(bits(done["Z"]), bits(x))


@pytest.mark.parametrize("dtype", [d.value for d in DType])
@every_target
def test_every_dtype_in_every_kind_of_memory(dtype: str, target: Target) -> None:
    func = program(f"""
def f(X: {dtype}[4, 6], Y: out({dtype}[4, 6]), Z: out({dtype}[6])):
    with alloc({dtype}[6], "register") as r:
        with alloc({dtype}[6], "local") as t:
            for i in vectorized(6):
                r[i] = X[0, i]
            for k in range(3):
                for i2 in vectorized(6):
                    t[i2] = X[k, i2]
                for i3 in vectorized(6):
                    r[i3] = select(t[i3] != r[i3], t[i3], r[i3])
                    Y[k, i3] = t[5 - i3]
                for j in range(6):
                    if j < 3:
                        Y[3, j * 2] = t[j]
                        Y[3, j * 2 + 1] = X[k, j]
            for i4 in vectorized(6):
                Z[i4] = r[i4]
""")
    check(func, target)


@every_target
def test_bools_are_bytes_and_any_byte_but_zero_is_true(target: Target) -> None:
    func = program("""
def f(X: bool[8], Y: out(bool[8]), Z: out(i32[8])):
    for i in vectorized(8):
        Y[i] = not X[i]
        Z[i] = cast(i32, X[i])
""")
    arrays = arrays_of(func)
    arrays[func.params[0]] = np.array([0, 1, 2, 255, 0, 128, 7, 0], np.uint8).view(np.bool_)
    run_kernel(func, arrays, target)
    y, z = (arrays[p] for p in func.outputs)
    assert y.view(np.uint8).tolist() == [1, 0, 0, 0, 1, 0, 0, 1]
    assert z.tolist() == [0, 1, 1, 1, 0, 1, 1, 0]


@every_target
def test_nothing_undefined_is_called(target: Target) -> None:
    """Every operation there is, in one kernel of scalars and one of vectors."""
    for loop, dtype in itertools.product(("range", "vectorized"), ("f32", "f64")):
        func = program(f"""
def all_ops(X: {dtype}[8], Y: out({dtype}[8])):
    for i in {loop}(8):
        Y[i] = floor(X[i]) + ceil(X[i]) + round(X[i]) + trunc(X[i]) + sqrt(X[i]) + abs(X[i]) + fma(X[i], X[i], X[i])
        Y[i] = Y[i] + cast({dtype}, cast(u64, X[i])) + cast({dtype}, cast(i8, X[i])) + min(X[i], max(Y[i], X[i]))
        Y[i] = Y[i] + exp(X[i]) + log(X[i]) + tanh(X[i]) + sigmoid(X[i]) + erf(X[i])
        Y[i] = Y[i] + sin(X[i]) + cos(X[i]) + rsqrt(X[i]) + pow(X[i], Y[i])
""")
        load(kernel_ir(legal(func, target)), "all_ops", target)  # the loader refuses what is undefined

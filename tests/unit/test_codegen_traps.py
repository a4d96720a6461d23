"""The traps of code generation, each with a test: memory outside of arrays, masks, registers, loops, limits.

Programs are lowered TIR text. The interpreter says what they mean, and native code must agree to the bit.
"""

import numpy as np
import pytest
from guarded import run_guarded
from native import (
    TARGETS,
    arrays_of,
    bits,
    check,
    every_target,
    kernels_of,
    legal,
    program,
    run_kernel,
    run_native,
    values,
    zero_of,
)

from tilewright.codegen import kernel as codegen_kernel
from tilewright.codegen.kernel import kernel_ir
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer
from tilewright.search.default import schedule_func
from tilewright.support.arrays import Array
from tilewright.support.errors import InternalError
from tilewright.target.target import Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.interp import interpret_func, poisoned_array, run_func
from tilewright.tir.parser import parse_func
from tilewright.tir.pipeline import lower_func

# ------------------------------------------------------------------------------------------ outside of arrays


COPY_TAIL = """
def tail(X: {t}[13], Y: out({t}[13])):
    for i in vectorized(8):
        Y[i] = X[i]
    for j in vectorized(5):
        Y[j + 8] = X[j + 8]
"""
MASKED = """
def masked(X: {t}[13], Y: out({t}[13])):
    for k in range(2):
        for i in vectorized(8):
            if k * 8 + i < 13:
                Y[k * 8 + i] = X[k * 8 + i]
"""
PADDED = """
def padded(X: {t}[13], Y: out({t}[32])):
    for k in range(4):
        for i in vectorized(8):
            Y[k * 8 + i] = select(9 <= k * 8 + i and k * 8 + i < 22, X[k * 8 + i - 9], {zero})
"""
SCALAR_PADDED = """
def scalar_padded(X: {t}[13], Y: out({t}[32])):
    for i in range(32):
        Y[i] = select(9 <= i and i < 22, X[i - 9], {zero})
"""
GATHER = """
def gather(X: {t}[13], I: i64[8], Y: out({t}[8])):
    for i in vectorized(8):
        Y[i] = X[I[i]]
"""
GUARDED_GATHER = """
def guarded_gather(X: {t}[13], I: i64[8], Y: out({t}[8])):
    for i in vectorized(8):
        Y[i] = select(0 <= I[i] and I[i] < 13, X[I[i]], {zero})
"""
STRIDED = """
def strided(X: {t}[13], Y: out({t}[13])):
    for i in vectorized(7):
        Y[i * 2] = X[12 - i * 2]
    for j in range(6):
        Y[j * 2 + 1] = X[j * 2 + 1]
"""
BACKWARDS = """
def backwards(X: {t}[13], Y: out({t}[13])):
    for i in vectorized(13):
        Y[i] = X[12 - i]
"""
BROADCAST = """
def broadcast(X: {t}[13], Y: out({t}[3, 13])):
    for k in range(3):
        for i in vectorized(13):
            Y[k, i] = select(k < 1, X[0], X[12])
"""
OUTSIDE = [COPY_TAIL, MASKED, PADDED, SCALAR_PADDED, GATHER, GUARDED_GATHER, STRIDED, BACKWARDS, BROADCAST]


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("text", OUTSIDE, ids=lambda t: t.split("(")[0].split()[-1])
@pytest.mark.parametrize("dtype", ["f32", "u8", "i64", "bool"])
@every_target
def test_nothing_outside_of_an_array_is_touched(text: str, dtype: str, at_end: bool, target: Target) -> None:
    func = program(text.format(t=dtype, zero=zero_of(dtype)))
    index = [-1, 0, 12, 13, 1 << 40, -5, 7, 3] if "0 <= I" in text else [0, 12, 12, 5, 0, 1, 11, 3]
    arrays = arrays_of(func, I=index)
    expected = {b: a.copy() for b, a in arrays.items()}
    interpret_func(func, expected)
    actual = run_guarded(func, arrays, target, at_end=at_end)
    for b in func.params:
        np.testing.assert_array_equal(bits(actual[b]), bits(expected[b]), err_msg=str(b))


@pytest.mark.parametrize("size", [1, 3, 7, 8, 9, 17, 31, 33])
@every_target
def test_scheduled_tails_stay_inside(size: int, target: Target) -> None:
    b = FuncBuilder("f")
    x, w = b.param("X", (5, size), DType.F32), b.param("W", (size, size), DType.F32)
    c = b.reduce("C", (5, size), (size,), lambda i, j, k: (x[i, k], w[k, j]))
    func = b.finish(b.compute("Y", (size, 5), lambda i, j: c[j, i] + x[j, i]))
    kernels, shared = kernels_of(schedule_func(func, target).func, target)
    arrays = arrays_of(func) | {s: poisoned_array(s) for s in shared}
    for kernel in kernels:
        arrays |= run_guarded(kernel, arrays, target)
    (expected,) = run_func(func, *(arrays[p] for p in func.params[:2]))
    np.testing.assert_allclose(arrays[func.outputs[0]], expected, rtol=1e-4, atol=1e-5)


def test_the_guard_finds_reads_outside() -> None:
    func = program("def over(X: f32[14], Y: out(f32[1])):\n    Y[0] = X[13]\n")
    arrays = arrays_of(func) | {func.params[0]: np.zeros(13, np.float32)}
    with pytest.raises(AssertionError, match="outside of its arrays"):
        run_guarded(func, arrays)


def test_a_side_that_reads_an_empty_buffer_reads_nothing() -> None:
    text = """
def f(E: f32[0], X: f32[4], N: i64[1], Y: out(f32[4])):
    for i in range(4):
        Y[i] = select(i < N[0], E[i], X[i])
"""
    func = program(text)
    arrays = arrays_of(func, N=[0])
    actual = run_guarded(func, arrays)
    np.testing.assert_array_equal(actual[func.outputs[0]], arrays[func.params[1]])


@every_target
def test_user_pointers_need_no_alignment(target: Target) -> None:
    b = FuncBuilder("f")
    x, w = b.param("X", (6, 16), DType.F32), b.param("W", (16, 32), DType.F32)
    func = b.finish(b.reduce("C", (6, 32), (16,), lambda i, j, k: (x[i, k], w[k, j])))
    kernels, shared = kernels_of(schedule_func(func, target).func, target)
    arrays: dict[Buffer, Array] = {}
    for p in (*func.params, *shared):
        raw = np.zeros(p.bytes + 4 + 64, np.uint8)
        start = -raw.ctypes.data % 64 + 4  # one element past any boundary
        arrays[p] = raw[start : start + p.bytes].view(p.dtype.numpy).reshape(p.shape)
        arrays[p][...] = values(p)
    for kernel in kernels:
        run_kernel(kernel, arrays, target)
    expected = arrays[x].astype(np.float64) @ arrays[w]
    np.testing.assert_allclose(arrays[func.outputs[0]], expected, rtol=1e-4, atol=1e-5)


# -------------------------------------------------------------------------------------------- masks and scatter


@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "bool", "f16"])
@every_target
def test_stores_under_conditions_that_differ_by_lane(dtype: str, target: Target) -> None:
    zero = zero_of(dtype)
    func = program(f"""
def f(X: {dtype}[13], M: i32[13], Y: out({dtype}[13]), Z: out({dtype}[26]), P: i64[13], W: out({dtype}[13])):
    for i in vectorized(13):
        if i32(0) < M[i]:
            Y[i] = X[i]
            Z[i * 2] = X[i]
            if M[i] < i32(2):
                Z[i * 2 + 1] = {zero}
                W[P[i]] = X[i]
""")
    given = [1, 0, 2, 1, -1, 1, 1, 0, 3, 1, 0, 0, 1]
    check(func, target, M=given, P=np.random.default_rng(0).permutation(13))


@every_target
def test_conditions_and_selects_nest(target: Target) -> None:
    func = program("""
def f(X: f32[10], N: i64[1], Y: out(f32[16])):
    for k in range(2):
        for i in vectorized(8):
            if k < N[0]:
                Y[k * 8 + i] = select(k * 8 + i < 10, select(3 <= i, X[k * 8 + i] * f32(2), f32(1)), f32(-1))
                Y[k * 8 + i] = Y[k * 8 + i] + select(i < 2, X[i], f32(0.5))
""")
    for n in range(3):
        check(func, target, N=[n], X=np.arange(10))


# ----------------------------------------------------------------------------------------------------- registers


@every_target
def test_registers_read_in_another_width_than_written(target: Target) -> None:
    func = program(
        """
def f(X: f32[16], Y: out(f32[16]), S: out(f32[()]), E: out(f32[8])):
    with alloc(f32[2, 8], "register") as r:
        for i in vectorized(8):
            r[0, i] = X[i]
            r[1, i] = X[i + 8]
        for k in range(3):
            for j in vectorized(4):
                r[0, j] = r[0, j] + r[1, j + 4]
                r[1, j + 2] = r[1, j + 2] * f32(0.5)
            for e in vectorized(4):
                r[0, e * 2] = r[0, e * 2 + 1] - r[1, e]
        for i2 in vectorized(8):
            Y[i2] = r[0, i2]
            Y[i2 + 8] = r[1, i2]
        S[()] = r[0, 3] + r[1, 7]
        for j2 in vectorized(8):
            E[j2] = r[1, 7 - j2]
"""
    )
    check(func, target)


@every_target
def test_strided_register_stores_are_carried_by_loops(target: Target) -> None:
    func = program("""
def f(X: f32[5, 4], Y: out(f32[8])):
    with alloc(f32[8], "register") as r:
        for i in vectorized(8):
            r[i] = f32(1)
        for k in range(5):
            for j in vectorized(4):
                r[j * 2] = r[j * 2] + X[k, j]
        for i2 in vectorized(4):
            Y[i2] = r[i2]
        for i3 in vectorized(4):
            Y[i3 + 4] = r[i3 + 4]
""")
    y = check(func, target, X=np.ones((5, 4)))["Y"]
    assert y.tolist() == [6, 1, 6, 1, 6, 1, 6, 1]


@every_target
def test_registers_through_conditions_and_nested_loops(target: Target) -> None:
    func = program("""
def f(X: f32[3, 4, 8], N: i64[1], Y: out(f32[8]), Z: out(f32[()])):
    with alloc(f32[8], "register") as a:
        with alloc(f32[()], "register") as b:
            for i in vectorized(8):
                a[i] = f32(0)
            b[()] = f32(1)
            for k in range(3):
                if k < N[0]:
                    b[()] = b[()] * f32(2)
                    for m in range(4):
                        for j in vectorized(8):
                            a[j] = fma(X[k, m, j], b[()], a[j])
                        if m == N[0]:
                            b[()] = b[()] + f32(1)
                for j2 in vectorized(8):
                    if X[k, 0, j2] < 0:
                        a[j2] = a[j2] - f32(1)
            for i2 in vectorized(8):
                Y[i2] = a[i2]
            Z[()] = b[()]
""")
    for n in range(5):
        check(legal(func, target), target, N=[n])


@every_target
def test_a_loop_variable_inside_and_outside_of_conditions_shares_no_value(target: Target) -> None:
    """What is computed in a branch does not exist behind it, and loads after a store see it."""
    func = program("""
def f(X: i32[4], N: i64[1], Y: out(i32[4]), Z: out(i32[4])):
    for i in range(4):
        if i < N[0]:
            Y[i] = X[i] * i32(3) + i32(1)
        if N[0] <= i:
            Y[i] = X[i] * i32(3)
        Z[i] = Y[i] + X[i] * i32(3)
        Y[i] = Y[i] + i32(1)
        Z[i] = Z[i] + Y[i]
""")
    for n in range(5):
        check(func, target, N=[n])


# --------------------------------------------------------------------------------------------------- loops, limits


@pytest.mark.parametrize("kind", ["range", "parallel", "vectorized"])
@pytest.mark.parametrize("extent", [0, 1])
def test_loops_of_no_and_one_iteration(kind: str, extent: int) -> None:
    func = program(f"""
def f(X: f32[3, 4], Y: out(f32[3, 4])):
    for i in {kind}({extent}):
        for j in range({extent}):
            for k in vectorized({extent}):
                Y[i, j] = X[i, j] + f32(1)
        Y[i, 3] = X[i, 3]
""")
    check(func, TARGETS[0], Y=np.zeros((3, 4)))


def test_a_vectorised_loop_around_others_runs_one_by_one() -> None:
    func = program("""
def f(X: f32[6, 5], Y: out(f32[6])):
    for i in vectorized(6):
        Y[i] = f32(0)
        for k in range(5):
            Y[i] = Y[i] + X[i, k]
""")
    check(func, TARGETS[0])


def test_a_kernel_of_too_many_instructions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert codegen_kernel.MAX_INSTRUCTIONS == 20_000
    monkeypatch.setattr(codegen_kernel, "MAX_INSTRUCTIONS", 100)
    for n, fits in ((10, True), (40, False)):
        lines = "".join(f"        Y[i] = Y[i] * X[i + {k}] + X[i]\n" for k in range(n))
        func = program(f"def long(X: f32[90], Y: out(f32[8])):\n    for i in vectorized(8):\n{lines}")
        if fits:
            assert 50 < kernel_ir(func).count("\n") < 100
        else:
            with pytest.raises(
                InternalError, match=r"long: \d+ LLVM instructions, more than 100; its schedule"
            ):
                kernel_ir(func)


BIG = """
@func
def big(X: f32[{p}, 600, 1000], Y: out(f32[{p}, 1000])):
    T = alloc(f32[{p}, 600, 1000])
    for i in {kind}({p}):
        for j in range(600):
            for k in range(1000):
                T[i, j, k] = X[i, j, k] * f32(2)
        for k2 in range(1000):
            Y[i, k2] = T[i, 599 - 7, k2] + T[i, 3, 999 - k2]
"""


@pytest.mark.parametrize(("kind", "shape"), [("range", (1, 600, 1000)), ("parallel", (2, 1, 600, 1000))])
def test_scratch_too_large_for_a_stack_is_shared_memory(kind: str, shape: tuple[int, ...]) -> None:
    func = parse_func(BIG.format(kind=kind, p=2))
    phases, shared = lower_func(func)
    assert [s.shape for s in shared] == [shape] and len(phases) == 1
    x = np.random.default_rng(0).standard_normal((2, 600, 1000)).astype(np.float32)
    (y,) = run_native(func, [x])
    np.testing.assert_array_equal(y, 2 * x[:, 592] + 2 * x[:, 3, ::-1])


@pytest.mark.parametrize("parts", [6, 7])
def test_parts_that_need_too_much_scratch_together_are_run_one_after_the_other(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.tir.passes.split_phases.MAX_SHARED_SCRATCH", 4 * 2_400_000)
    phases, shared = lower_func(parse_func(BIG.format(kind="parallel", p=parts)))
    assert [s.shape[0] for s in shared] == [-(-parts // 2)] and len(phases) == 1
    x = np.random.default_rng(0).standard_normal((parts, 600, 1000)).astype(np.float32)
    (y,) = run_native(parse_func(BIG.format(kind="parallel", p=parts)), [x])
    np.testing.assert_array_equal(y, 2 * x[:, 592] + 2 * x[:, 3, ::-1])


def test_scratch_of_one_part_may_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.tir.passes.split_phases.MAX_SHARED_SCRATCH", 2_000_000)
    with pytest.raises(InternalError, match=r"a part of the parallel loop i needs more than 2000000 bytes"):
        lower_func(parse_func(BIG.format(kind="parallel", p=2)))


def test_local_buffers_over_the_limit_never_reach_a_stack() -> None:
    func = program("""
def f(Y: out(f32[1])):
    with alloc(f32[300000], "local") as T:
        T[0] = f32(1)
        Y[0] = T[0]
""")
    with pytest.raises(InternalError, match="local buffers take 1200000 bytes"):
        kernel_ir(func)

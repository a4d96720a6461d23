"""tw.build and tw.interpret: native code of a program exactly as it is scheduled, and times of it."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.native import bits
from tilewright.support.errors import UserError
from tilewright.target.target import BASELINE
from tilewright.tir.func import Module, single

M, N, K = 6, 16, 5


@tw.func
def matmul(A: tw.f32[M, K], B: tw.f32[K, N], C: tw.out(tw.f32[M, N])):
    for i, j, k in tw.grid(M, N, K):
        with tw.init():
            C[i, j] = 0.0
        C[i, j] = tw.fma(A[i, k], B[k, j], C[i, j])


@tw.func
def moments(X: tw.f32[N], S: tw.out(tw.f32[1]), Q: tw.out(tw.f32[1])):
    for i in range(N):
        with tw.init():
            S[0] = 0.0
        S[0] += X[i]
    for i in range(N):
        with tw.init():
            Q[0] = 0.0
        Q[0] += X[i] * X[i]


@tw.func
def accumulate(X: tw.i32[4], Y: tw.out(tw.i32[4])):
    for i in range(4):
        Y[i] += X[i]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


A, B = normal(M, K), normal(K, N)


def test_naive_loops_compute_what_the_interpreter_does() -> None:
    run = tw.build(matmul)
    np.testing.assert_array_equal(bits(run(A, B)), bits(tw.interpret(matmul, A, B)))
    np.testing.assert_allclose(run(A, B), A @ B, rtol=1e-5, atol=1e-6)


def test_a_schedule_is_compiled_as_it_stands() -> None:
    s = tw.Schedule(matmul)
    s.reorder("k", "j")
    s.vectorize("j")
    run = tw.build(s)
    assert run.func is s.func
    assert "<16 x float>" in run.llvm() and "<16 x float>" not in tw.build(matmul).llvm()
    np.testing.assert_array_equal(bits(run(A, B)), bits(tw.interpret(s, A, B)))


def test_loops_as_written_are_not_vectorized() -> None:
    (kernel,) = tw.build(matmul).kernels
    assert " x float>" not in kernel.llvm and kernel.parts == 1


def test_parallel_loops_are_parts() -> None:
    s = tw.Schedule(matmul)
    s.parallel("i")
    run = tw.build(s, threads=2)
    assert [k.parts for k in run.kernels] == [M]
    np.testing.assert_array_equal(bits(run(A, B)), bits(tw.interpret(matmul, A, B)))


def test_several_outputs_and_kernels() -> None:
    run = tw.build(moments)
    s, q = run(A.reshape(-1)[:N].copy())
    x = A.reshape(-1)[:N].astype(float)
    np.testing.assert_allclose([s[0], q[0]], [x.sum(), (x * x).sum()], rtol=1e-5)
    assert len(run.kernels) == len({k.name for k in run.kernels}) >= 1


def test_given_outputs_are_written_in_place() -> None:
    run = tw.build(accumulate)
    y = np.array([10, 20, 30, 40], np.int32)
    assert run(np.arange(4, dtype=np.int32), out=y) is y
    assert y.tolist() == [10, 21, 32, 43]
    tw.interpret(accumulate, np.arange(4, dtype=np.int32), out=[y])
    assert y.tolist() == [10, 22, 34, 46]


def test_buffers_between_kernels() -> None:
    @tw.func
    def softmax(X: tw.f32[4, 64], Y: tw.out(tw.f32[4, 64])):
        T = tw.alloc(tw.f32[4, 64])
        S = tw.alloc(tw.f32[4])
        for i, j in tw.grid(4, 64):
            T[i, j] = tw.exp(X[i, j])
        for i, j in tw.grid(4, 64):
            with tw.init():
                S[i] = 0.0
            S[i] += T[i, j]
        for i, j in tw.grid(4, 64):
            Y[i, j] = T[i, j] / S[i]

    x = normal(4, 64)
    e = np.exp(x.astype(float))
    np.testing.assert_allclose(tw.build(softmax)(x), e / e.sum(1, keepdims=True), rtol=1e-5)


def test_time_is_of_one_run() -> None:
    run = tw.build(matmul)
    t = run.time(A, B, repeat=3, seconds=0.002)
    assert 0 < t.best <= t.median and t.measurements == 3 and t.runs > 1
    # 480 multiply-adds take less than Python takes for a call
    assert t.best < 20e-6
    assert t.gflops(1000) == pytest.approx(1e-6 / t.best)
    assert "µs" in str(t)
    assert run.time(repeat=1, seconds=0.001).best > 0  # on random inputs


def test_texts() -> None:
    run = tw.build(matmul, target="x86-64-v3")
    assert "define" in run.llvm() and "vfmadd" in run.asm()
    assert "vfmadd" not in tw.build(matmul, target=BASELINE).asm()
    assert "matmul" in repr(run)


def test_module_of_one_function() -> None:
    np.testing.assert_array_equal(tw.build(single(matmul))(A, B), tw.build(matmul)(A, B))


def test_build_is_the_function_also_after_its_module_was_imported() -> None:
    code = "import tilewright.build\nimport tilewright as tw\nassert callable(tw.build)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------------------ refusals


RUNS: dict[str, Callable[..., Any]] = {
    "native": tw.build(matmul),
    "interpreter": partial(tw.interpret, matmul),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
class TestArraysThatDoNotFit:
    def test_too_few(self, run: Callable[..., Any]) -> None:
        with pytest.raises(UserError, match="takes 2 inputs, 1 were given"):
            run(A)

    def test_shape(self, run: Callable[..., Any]) -> None:
        with pytest.raises(
            UserError, match=r"B: f32\[5, 16\] is given an array of float32 and shape \[16, 5\]"
        ):
            run(A, B.T.copy())

    def test_dtype(self, run: Callable[..., Any]) -> None:
        with pytest.raises(UserError, match=r"of float64 .*\n.*astype\(np.float32\)"):
            run(A.astype(float), B)

    def test_order(self, run: Callable[..., Any]) -> None:
        with pytest.raises(UserError, match="not contiguous"):
            run(np.asfortranarray(A), B)

    def test_no_array(self, run: Callable[..., Any]) -> None:
        with pytest.raises(UserError, match="is given a list"):
            run(A.tolist(), B)

    def test_number_of_outputs(self, run: Callable[..., Any]) -> None:
        with pytest.raises(UserError, match="has 1 outputs, 2 arrays"):
            run(A, B, out=[A @ B, A @ B])

    def test_output_that_is_an_input(self, run: Callable[..., Any]) -> None:
        with pytest.raises(UserError, match="shares memory"):
            memory = np.zeros(M * N, np.float32)
            run(A, memory[: K * N].reshape(K, N), out=memory.reshape(M, N))

    def test_output_that_is_constant(self, run: Callable[..., Any]) -> None:
        c = A @ B
        c.flags.writeable = False
        with pytest.raises(UserError, match="cannot be written to"):
            run(A, B, out=c)


def test_threads_of_a_gpu() -> None:
    s = tw.Schedule(matmul)
    s.bind("i", "thread_x")
    with pytest.raises(UserError, match="no code generator for GPU thread axes; i is on thread_x"):
        tw.build(s)
    np.testing.assert_allclose(tw.interpret(s, A, B), A @ B, rtol=1e-5, atol=1e-6)


def test_module_of_several_functions() -> None:
    module = single(matmul)
    with pytest.raises(UserError, match="the module has 2 functions"):
        tw.build(Module((matmul, moments), module.program, module.inputs, module.outputs))


def test_not_a_program() -> None:
    with pytest.raises(UserError, match="a str is not a tensor program"):
        tw.build("matmul")  # pyright: ignore


def test_unknown_target() -> None:
    with pytest.raises(UserError, match="unknown target 'z80'"):
        tw.build(matmul, target="z80")


def test_time_of_no_measurement() -> None:
    with pytest.raises(UserError, match="repeat is 0"):
        tw.build(matmul).time(A, B, repeat=0)

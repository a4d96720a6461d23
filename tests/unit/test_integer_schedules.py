"""Which rules schedule sums of products of bytes: intrinsics for dot products, but not where they would copy more than
they compute."""

import numpy as np
import pytest

from tilewright.ops.core.integer import ConvInteger, MatMulInteger
from tilewright.ops.opdef import Op, Sample, TensorType
from tilewright.search.default import choose_schedule
from tilewright.target.target import AVX2
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.stmt import Emit, walk_stmts

ZERO = np.array(7, np.uint8)


def unsigned(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.uint8)


def func_of(sample: Sample) -> Func:
    op: Op = sample.op
    b = FuncBuilder("kernel")
    types = [TensorType.of(x) for x in sample.inputs]
    params = [b.param(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)]
    return b.finish(*op.compute(b, params, "out"))


def first_rule(sample: Sample, *constants: str) -> str:
    return choose_schedule(func_of(sample), AVX2, frozenset(constants)).family


@pytest.mark.parametrize("rows", [1, 64])
def test_products_with_constant_weights_are_dot_products(rows: int) -> None:
    sample = MatMulInteger.sample(unsigned(rows, 64), unsigned(64, 32), ZERO)
    chosen = choose_schedule(func_of(sample), AVX2, frozenset({"x1"}))
    assert chosen.family == "gemm"
    emitted = {s.intrinsic for s in walk_stmts(chosen.draft.func.body) if isinstance(s, Emit)}
    assert emitted == {"x86.i16.dot2_8"}


def test_convolutions_are_dot_products() -> None:
    sample = ConvInteger.sample(unsigned(1, 16, 14, 14), unsigned(32, 16, 3, 3), ZERO, pads=[1, 1, 1, 1])
    assert first_rule(sample, "x1") == "tensor"


def test_a_vector_times_a_matrix_that_comes_at_run_time_is_not_copied() -> None:
    sample = MatMulInteger.sample(unsigned(1, 64), unsigned(64, 32), ZERO)
    assert first_rule(sample) == "window"


def test_depthwise_convolution_is_not_copied() -> None:
    sample = ConvInteger.sample(
        unsigned(1, 16, 14, 14), unsigned(16, 1, 3, 3), ZERO, pads=[1, 1, 1, 1], group=16
    )
    assert first_rule(sample, "x1") == "window"

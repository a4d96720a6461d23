"""What kernels are called in results: by what they compute, whatever it was written as."""

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.lowered import lowered
from tilewright.ops.accuracy import Accuracy
from tilewright.search.default import spaces
from tilewright.support.program import leaves
from tilewright.target.target import AVX2
from tilewright.tir.func import Call, Func
from tilewright.tir.parser import parse_func
from tilewright.training.kinds import kernel_kind
from tilewright.training.net import Net


def funcs(make: Callable[[Net], object], accuracy: str = "exact") -> list[Func]:
    """Of a small model, in the order in which they are called."""
    net = Net(np.random.default_rng(0))
    make(net)
    module = lowered(net.model("small"), accuracy=Accuracy.of(accuracy), target=AVX2)
    return [module.func(c.func) for c in leaves(module.program) if isinstance(c, Call)]


def kind(func: Func) -> str:
    return kernel_kind(func, {s.family for s in spaces(func, AVX2, frozenset())})


def convolution(c_in: int, c_out: int, kernel: int, stride: int = 1, group: int = 1) -> Callable[[Net], str]:
    """Over 12×12 pixels."""
    return lambda net: net.conv(
        net.input(1, c_in, 12, 12),
        c_out,
        (kernel, kernel),
        strides=[stride] * 2,
        group=group,
        is_valid=kernel == stride,
    )


MODELS: list[tuple[str, Callable[[Net], object]]] = [
    ("convolution", convolution(16, 24, 3)),
    ("convolution", convolution(32, 32, 3, group=2)),
    ("stem", convolution(3, 24, 3, stride=2)),
    ("stem", convolution(32, 32, 3, group=4)),  # of few channels each
    ("depthwise", convolution(16, 16, 3, group=16)),
    ("pointwise", convolution(16, 24, 1)),
    ("gemm", convolution(16, 24, 4, stride=4)),  # windows that do not overlap are rows of a matrix
    ("gemm", lambda net: net.linear(net.input(20, 32), 24)),
    ("gemm", lambda net: net.matmul(net.input(3, 20, 32), net.input(3, 32, 24))),
    ("memory-bound", lambda net: net.matmul(net.input(20, 1, 32), net.input(20, 32, 1))),  # read once
    ("memory-bound", lambda net: net.same("Softmax", net.input(20, 32), axis=-1)),
    ("memory-bound", lambda net: net.layer_norm(net.input(20, 32))),
    ("memory-bound", lambda net: net.pool("MaxPool", net.input(1, 16, 12, 12), 3, 2)),
]


@pytest.mark.parametrize(("wanted", "make"), MODELS)
def test_models_of_one_kernel(wanted: str, make: Callable[[Net], object]) -> None:
    (func,) = funcs(make)
    assert kind(func) == wanted


def test_what_stands_around_a_contraction_does_not_count() -> None:
    def make(net: Net) -> str:
        y = net.linear(net.layer_norm(net.input(20, 32)), 24)
        return net.activation(y, "Gelu")

    assert kind(funcs(make)[-1]) == "gemm"


def test_transformed_tiles_are_winograd() -> None:
    *_, func = funcs(convolution(64, 64, 3), "2e-5")
    assert kind(func) == "winograd"


def test_a_chain_with_a_softmax_is_attention_and_one_without_is_not() -> None:
    def attention(net: Net) -> str:
        q, k, v = (net.input(2, 64, 32) for _ in range(3))
        weights = net.same("Softmax", net.matmul(q, net.transpose(k, 0, 2, 1)), axis=-1)
        return net.matmul(weights, v)

    (func,) = funcs(attention)
    assert kind(func) == "attention"
    two_layers = parse_func(TWO_LAYERS)
    assert kernel_kind(two_layers, {"chain", "gemm"}) == "gemm"


def test_a_loop_over_steps_is_recurrent() -> None:
    def lstm(net: Net) -> str:
        parts = net.normal(1, 32, 8), net.normal(1, 32, 8), net.normal(1, 64)
        return net.op("LSTM", (4, 1, 2, 8), net.input(4, 2, 8), *parts, hidden_size=8)

    kinds = [kind(f) for f in funcs(lstm)]
    assert "recurrent" in kinds and set(kinds) <= {"recurrent", "gemm", "memory-bound"}


def test_nothing_to_compute_is_memory_bound() -> None:
    assert kernel_kind(parse_func(COPY), set()) == "memory-bound"


TWO_LAYERS = """
@func
def layers(x: f32[16, 8], v: f32[8, 24], w: f32[24, 4], z: out(f32[16, 4])):
    y = alloc(f32[16, 24])
    for i in range(16):
        for j in range(24):
            for k in range(8):
                with block("y"):
                    vi = spatial(16, i)
                    vj = spatial(24, j)
                    vk = reduce(8, k)
                    with init():
                        y[vi, vj] = f32(0.0)
                    y[vi, vj] = fma(x[vi, vk], v[vk, vj], y[vi, vj])
    for i1 in range(16):
        for j1 in range(4):
            for k1 in range(24):
                with block("z"):
                    vi = spatial(16, i1)
                    vj = spatial(4, j1)
                    vk = reduce(24, k1)
                    with init():
                        z[vi, vj] = f32(0.0)
                    z[vi, vj] = fma(y[vi, vk], w[vk, vj], z[vi, vj])
"""
COPY = """
@func
def copy(x: f32[16], y: out(f32[16])):
    for i in range(16):
        with block("y"):
            vi = spatial(16, i)
            y[vi] = x[vi]
"""

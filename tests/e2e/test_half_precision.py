"""Models of float16 and bfloat16: every node rounds once, to nearest, however its neighbours are fused with it.

What a graph means is each op's numpy reference (`graph.interp`), which rounds after each node. Sums may differ in their
order before they are rounded, so a result may be off by one unit where its exact value is near the middle of two; more
than that, or often, is a rounding that was left out or done twice.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from tests.onnx_cases import Array
from tilewright.compiler import compile
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.interp import interpret_graph

HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def network(
    dtype: np.dtype[Any], *nodes: Any, weights: dict[str, Array], shape: tuple[int, ...]
) -> ModelProto:
    number = helper.np_dtype_to_tensor_dtype(dtype)
    x = helper.make_tensor_value_info("x", number, shape)
    y = helper.make_empty_tensor_value_info("y")
    stored = [
        numpy_helper.from_array(w.astype(dtype) if w.dtype.kind == "f" else w, n) for n, w in weights.items()
    ]
    graph = helper.make_graph(list(nodes), "half", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def units(got: Array, want: Array) -> Array:
    """How many representable numbers lie between."""

    def ordered(a: Array) -> Array:
        bits = a.view(np.int16).astype(np.int32)
        return np.where(bits < 0, -(bits & 0x7FFF), bits)

    return np.abs(ordered(got) - ordered(want))


def check(model: ModelProto, x: Array, *, off_by_one: float, most: int = 1) -> None:
    with compile(model).session(threads=1) as session:
        got = session.run({"x": x})["y"]
    want = interpret_graph(load_graph(model), {"x": x})["y"]
    assert got.dtype == want.dtype and np.isfinite(want.astype(np.float64)).all()
    off = units(got, want)
    assert off.max() <= most
    assert (off > 0).mean() <= off_by_one


@pytest.mark.parametrize("dtype", HALVES.values(), ids=list(HALVES))
def test_a_chain_of_elementwise_nodes_rounds_after_each(dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(0)
    node = helper.make_node
    model = network(
        dtype,
        node("Mul", ["x", "a"], ["1"]),
        node("Add", ["1", "b"], ["2"]),
        node("Div", ["2", "a"], ["3"]),
        node("Sub", ["3", "b"], ["4"]),
        node("Sqrt", ["5"], ["6"]),
        node("Abs", ["4"], ["5"]),
        node("Relu", ["6"], ["y"]),
        weights={"a": rng.standard_normal(33) + 3, "b": rng.standard_normal(33)},
        shape=(7, 33),
    )
    check(model, rng.standard_normal((7, 33)).astype(dtype), off_by_one=0, most=0)


@pytest.mark.parametrize("dtype", HALVES.values(), ids=list(HALVES))
def test_a_convolution_with_bias_and_activation(dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(1)
    model = network(
        dtype,
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Add", ["r", "x"], ["y"]),
        weights={"w": rng.standard_normal((8, 8, 3, 3)) / 9, "b": rng.standard_normal(8)},
        shape=(1, 8, 9, 9),
    )
    check(model, rng.standard_normal((1, 8, 9, 9)).astype(dtype), off_by_one=0.02)


@pytest.mark.parametrize("dtype", HALVES.values(), ids=list(HALVES))
def test_a_layer_of_a_transformer(dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(2)
    node = helper.make_node
    model = network(
        dtype,
        node("LayerNormalization", ["x", "g", "h"], ["n"], axis=-1),
        node("MatMul", ["n", "w"], ["q"]),
        node("Transpose", ["q"], ["t"], perm=[1, 0]),
        node("MatMul", ["q", "t"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "q"], ["o"]),
        node("Add", ["o", "x"], ["y"]),
        weights={
            "g": rng.standard_normal(32),
            "h": rng.standard_normal(32),
            "w": rng.standard_normal((32, 32)) / 12,
        },
        shape=(12, 32),
    )
    # A unit early in the layer becomes a few behind its MatMuls.
    check(model, rng.standard_normal((12, 32)).astype(dtype), off_by_one=0.1, most=4)

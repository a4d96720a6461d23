"""Attention over long rows, from a model to its results: against float64, and the same with any number of threads."""

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw


def model(heads: int, rows: int, keys: int, size: int, causal: bool) -> ModelProto:
    """softmax(q · kᵀ / √size) · v; causal masks are added, as transformers export them."""
    shapes = {"q": (1, heads, rows, size), "k": (1, heads, size, keys), "v": (1, heads, keys, size)}
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["raw"]),
        helper.make_node("Div", ["raw", "by"], ["s"]),
        helper.make_node("Add", ["s", "mask"], ["x"])
        if causal
        else helper.make_node("Identity", ["s"], ["x"]),
        helper.make_node("Softmax", ["x"], ["w"], axis=-1),
        helper.make_node("MatMul", ["w", "v"], ["y"]),
    ]
    mask = np.where(np.tri(rows, keys, keys - rows, dtype=np.bool_), 0, np.finfo(np.float32).min)
    constants = [numpy_helper.from_array(np.array(np.sqrt(size), np.float32), "by")]
    if causal:
        constants.append(numpy_helper.from_array(mask.astype(np.float32)[None, None], "mask"))
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, heads, rows, size))
    graph = helper.make_graph(nodes, "attention", inputs, [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(
    ("rows", "keys", "causal"), [(300, 300, True), (64, 520, True), (48, 4100, False)], ids=str
)
def test_long_rows(rows: int, keys: int, causal: bool) -> None:
    heads, size = 2, 16
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, heads, n, size)).astype(np.float32) for n in (rows, keys, keys))
    kt = np.ascontiguousarray(k.transpose(0, 1, 3, 2))
    made = model(heads, rows, keys, size, causal)
    got, again = (tw.load(made, threads=n).run({"q": q, "k": kt, "v": v})["y"] for n in (1, 2))
    np.testing.assert_array_equal(got, again)
    scores = (q.astype(np.float64) @ kt) / np.sqrt(size)
    if causal:
        scores = np.where(np.tri(rows, keys, keys - rows, dtype=np.bool_), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    want = powers @ v / powers.sum(-1, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())

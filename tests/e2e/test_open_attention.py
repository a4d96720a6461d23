"""Attention over open lengths is one chain of contractions, also where heads share keys; and right at each length."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tilewright.compiler import compile as compile_model
from tilewright.driver.decisions import Kernel

RNG = np.random.default_rng(0)
HEADS, WIDTH = 4, 16
node = helper.make_node


def attention(groups: int) -> ModelProto:
    """Of `n` queries and `m` keys; keys and values have `groups` heads, each of which several heads of queries read."""
    every = HEADS // groups
    wide = np.array([1, groups, every, 1, 1], np.int64)
    given = [
        numpy_helper.from_array(a, n)
        for n, a in (("two", np.array([2], np.int64)), ("wide", wide), ("scale", np.array(0.25, np.float32)))
    ]
    nodes: list[Any] = []
    for x in "kv":
        shape = [f"{x}_batch", f"{x}_heads", f"{x}_length", f"{x}_width"]
        nodes += [
            node("Unsqueeze", [x, "two"], [f"{x}_5"]),
            node("Expand", [f"{x}_5", "wide"], [f"{x}_e"]),
            node("Shape", [x], [shape[2] + "0"], start=2, end=3),
            node("Constant", [], [shape[0]], value_ints=[1, HEADS]),
            node("Constant", [], [shape[3]], value_ints=[WIDTH]),
            node("Concat", [shape[0], shape[2] + "0", shape[3]], [shape[1]], axis=0),
            node("Reshape", [f"{x}_e", shape[1]], [f"{x}_4"]),
        ]
    nodes += [
        node("Transpose", ["k_4"], ["k_t"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "k_t"], ["s"]),
        node("Mul", ["s", "scale"], ["t"]),
        node("Softmax", ["t"], ["p"], axis=3),
        node("MatMul", ["p", "v_4"], ["y"]),
    ]
    shapes = {"q": [1, HEADS, "n", WIDTH], "k": [1, groups, "m", WIDTH], "v": [1, groups, "m", WIDTH]}
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, HEADS, "n", WIDTH])
    graph = helper.make_graph(nodes, "g", infos, [out], given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("groups", [HEADS, HEADS // 2])
def test_open_attention_is_a_chain(groups: int) -> None:
    made = compile_model(attention(groups), dims={"n": (1, 48), "m": (1, 96)})
    families = [d.family for d in made.trace.sections["kernels"] if isinstance(d, Kernel)]
    assert "chain" in families and "block_by_block" not in families
    session = made.session(1)
    for n, m in ((48, 96), (1, 7), (1, 96), (17, 33)):
        q, k, v = (
            RNG.standard_normal((1, h, t, WIDTH), np.float32)
            for h, t in ((HEADS, n), (groups, m), (groups, m))
        )
        all_k, all_v = (np.repeat(a, HEADS // groups, axis=1) for a in (k, v))
        s = 0.25 * (q @ all_k.transpose(0, 1, 3, 2))
        p = np.exp(s - s.max(axis=3, keepdims=True))
        got: Any = session.run({"q": q, "k": k, "v": v})["y"]
        np.testing.assert_allclose(got, p / p.sum(axis=3, keepdims=True) @ all_v, rtol=1e-4, atol=1e-5)

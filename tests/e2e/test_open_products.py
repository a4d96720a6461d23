"""Products of integers with an open number of rows: as with given rows, by the schedules that were chosen, and with one
copy of the weights.
"""

import logging
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.compiler import compile as compile_model
from tilewright.runtime.dtypes import numpy_dtype

MOST, COLUMNS, COUNT = 40, 64, 48
SIZES = (1, 2, 3, 7, 8, 9, 17, MOST)
TARGETS = ("native", "x86-64-v3")


def one_node(node: Any, x: Any, y: Any, weights: dict[str, Any]) -> ModelProto:
    arrays = [numpy_helper.from_array(w, name) for name, w in weights.items()]
    graph = helper.make_graph([node], "g", [x], [y], arrays)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def few_bits(rows: str | int, *, accuracy: int = 4) -> ModelProto:
    random = np.random.default_rng(3)
    weights: dict[str, Any] = {
        "w": random.integers(0, 256, (COUNT, COLUMNS // 32, 16)).astype(np.uint8),
        "s": random.uniform(0.5, 2, (COUNT, COLUMNS // 32)).astype(np.float32),
    }
    given: dict[str, Any] = {
        "K": COLUMNS,
        "N": COUNT,
        "bits": 4,
        "block_size": 32,
        "accuracy_level": accuracy,
    }
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **given)
    x, y = (helper.make_tensor_value_info(n, 1, [1, rows, k]) for n, k in (("x", COLUMNS), ("y", COUNT)))
    return one_node(node, x, y, weights)


def bytes_product(rows: str) -> ModelProto:
    w = np.random.default_rng(4).integers(-128, 128, (COLUMNS, COUNT)).astype(np.int8)
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, [rows, COLUMNS])
    y = helper.make_tensor_value_info("y", TensorProto.INT32, [rows, COUNT])
    return one_node(helper.make_node("MatMulInteger", ["x", "w"], ["y"]), x, y, {"w": w})


@pytest.mark.parametrize("target", TARGETS)
def test_few_bits_are_there_once(target: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = compile_model(few_bits("n"), dims={"n": (1, MOST)}, target=target)
    assert not caplog.records
    nbytes = sum(c.nbytes for c in made.artifact.constants)
    assert nbytes < COLUMNS * COUNT  # in 8 bits, without scales
    session, whole = made.session(1), tw.load(few_bits(MOST), target=target)
    x = np.random.default_rng(5).standard_normal((1, MOST, COLUMNS), np.float32)
    want: Any = whole.run({"x": x})["y"]
    for n in SIZES:
        np.testing.assert_array_equal(session.run({"x": x[:, :n]})["y"], want[:, :n])


@pytest.mark.parametrize("target", TARGETS)
def test_bytes_have_a_schedule(target: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = compile_model(bytes_product("n"), dims={"n": (1, MOST)}, target=target)
    assert not caplog.records
    session = made.session(1)
    x = np.random.default_rng(6).integers(0, 256, (MOST, COLUMNS)).astype(np.uint8)
    w = numpy_helper.to_array(bytes_product("n").graph.initializer[0])
    want = x.astype(np.int32) @ w.astype(np.int32)
    for n in SIZES:
        np.testing.assert_array_equal(session.run({"x": x[:n]})["y"], want[:n])


@pytest.mark.parametrize("rows", [1, "n", 64])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_in_halves_stay_so_for_few_rows(dtype: str, target: str, rows: int | str) -> None:
    """They are widened in registers; with many rows, at compile time."""
    w = numpy_dtype(dtype).type(np.random.default_rng(4).standard_normal((COLUMNS, COUNT)))
    element = helper.np_dtype_to_tensor_dtype(w.dtype)
    tensor = helper.make_tensor("w", element, w.shape, w.tobytes(), raw=True)
    nodes = [
        helper.make_node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "wide"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, 1, [rows, k]) for n, k in (("x", COLUMNS), ("y", COUNT)))
    graph = helper.make_graph(nodes, "g", [x], [y], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    made = compile_model(model, target=target, **({"dims": {"n": (1, MOST)}} if rows == "n" else {}))
    kept = numpy_dtype("float32" if rows == 64 else dtype)
    assert {c.dtype for c in made.artifact.constants} == {kept}
    session = made.session(1)
    for count in SIZES if rows == "n" else (rows,):
        given = np.random.default_rng(5).standard_normal((count, COLUMNS)).astype(np.float32)
        found = session.run({"x": given})["y"]
        np.testing.assert_allclose(found, given @ w.astype(np.float32), rtol=1e-4, atol=1e-4)

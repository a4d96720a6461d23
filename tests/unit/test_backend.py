"""Tilewright behind ONNX's own interface."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from tilewright import backend
from tilewright.backend import TilewrightBackend, type_of
from tilewright.support.errors import UserError


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")


def model(op: str = "Sub", domain: str = "") -> ModelProto:
    infos = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "abc"}
    node = helper.make_node(op, ["a", "b"], ["c"], domain=domain)
    graph = helper.make_graph([node], "g", [infos["a"], infos["b"]], [infos["c"]])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


A, B = np.array([3, 5], np.float32), np.array([1, 2], np.float32)


@pytest.mark.parametrize("inputs", [[A, B], (A, B), {"b": B, "a": A}])
def test_inputs_are_in_order_or_by_name(inputs: Any) -> None:
    results: Any = backend.prepare(model()).run(inputs)
    assert len(results) == 1
    np.testing.assert_array_equal(results[0], [2, 3])
    np.testing.assert_array_equal(results["c"], [2, 3])
    np.testing.assert_array_equal(backend.run_model(model(), inputs)[0], [2, 3])


def test_too_few_inputs() -> None:
    with pytest.raises(UserError, match=r"1 inputs were given, and the model takes 2"):
        backend.run_model(model(), [A])


def test_only_the_processor_is_supported() -> None:
    assert backend.supports_device("CPU") and backend.supports_device("CPU:0")
    assert not any(backend.supports_device(d) for d in ("CUDA", "CUDA:1", "TPU", "CPU:x"))
    with pytest.raises(UserError, match="CUDA"):
        backend.prepare(model(), "CUDA")


def test_a_model_with_unknown_nodes_is_not_compatible() -> None:
    assert backend.is_compatible(model())
    assert not backend.is_compatible(model(), "CUDA")
    assert not backend.is_compatible(model("Nonsense", "org.example"))


def test_one_node() -> None:
    clip = helper.make_node("Clip", ["x", "", "high"], ["y"])
    results = TilewrightBackend.run_node(clip, [A, np.array(4, np.float32)])
    np.testing.assert_array_equal(results[0], [3, 4])
    by_name = backend.run_node(clip, {"x": A, "high": np.array(4, np.float32)}, opset_version=13)
    np.testing.assert_array_equal(by_name[0], [3, 4])
    with pytest.raises(UserError, match="the node takes 2"):
        backend.run_node(clip, [A])


def test_one_node_on_a_sequence() -> None:
    (found,) = backend.run_node(helper.make_node("Identity", ["s"], ["y"]), [[A, B[:1]]])
    assert len(found) == 2
    np.testing.assert_array_equal(found[1], B[:1])


def test_types_of_values() -> None:
    assert type_of(A).tensor_type.shape.dim[0].dim_value == 2
    sequence = type_of([A, B[:1]]).sequence_type.elem_type.tensor_type
    assert sequence.elem_type == TensorProto.FLOAT and not sequence.HasField("shape")
    assert type_of([]).HasField("sequence_type")
    assert type_of(None).HasField("optional_type")

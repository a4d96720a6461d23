"""Every op of the host, on its samples, against onnxruntime or ONNX's own reference.

An op that is declared in `tilewright.ops` is tested here without a line of test code.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TypeProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.frontend.onnx.write import attribute
from tilewright.ops.hostop import HostSample, HostValue
from tilewright.ops.registry import HOST_OPS, host_by_onnx, qualified

SAMPLES = [
    pytest.param(sample, id=f"{op.__name__}-{k}")
    for op in HOST_OPS
    for k, sample in enumerate(op.samples(np.random.default_rng(7)))
]


OWN: dict[str, Callable[..., list[Any]]] = {"FirstRows": lambda x, count: [x[: count[0]]]}


def type_of(value: HostValue) -> TypeProto:
    match value:
        case np.ndarray():
            number = (
                onnx.TensorProto.STRING
                if value.dtype == object
                else helper.np_dtype_to_tensor_dtype(value.dtype)
            )
            return helper.make_tensor_type_proto(number, value.shape)
        case list():
            inner = (
                type_of(value[0]) if value else helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
            )
            if value and isinstance(value[0], np.ndarray):
                inner.tensor_type.ClearField("shape")
            return helper.make_sequence_type_proto(inner)
        case dict():
            key, example = next(iter(value.items()))
            kind = onnx.TensorProto.STRING if isinstance(key, str) else onnx.TensorProto.INT64
            return helper.make_map_type_proto(kind, type_of(np.array(example, np.float32)))
        case None:
            raise AssertionError("a sample with an empty optional says its type by other means")


def model_of(sample: HostSample) -> onnx.ModelProto:
    names = [f"x{i}" if v is not None else "" for i, v in enumerate(sample.inputs)]
    outputs = [f"y{i}" for i in range(sample.outputs)]
    attrs = {name: attribute(value) for name, value in sample.attrs.items()}
    node = helper.make_node(sample.op_type, names, outputs, domain=sample.domain, **attrs)
    graph = helper.make_graph(
        [node],
        "sample",
        [helper.make_value_info(n, type_of(v)) for n, v in zip(names, sample.inputs, strict=True) if n],
        [onnx.ValueInfoProto(name=o) for o in outputs],
    )
    opsets = [helper.make_opsetid("", sample.opset)]
    if sample.domain:
        opsets.append(helper.make_opsetid(sample.domain, sample.version))
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def check_equal(got: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        assert isinstance(got, list) and len(got) == len(wanted)
        for g, w in zip(got, wanted, strict=True):
            check_equal(g, w)
    elif isinstance(wanted, dict):
        assert got == pytest.approx(wanted)
    elif wanted is None:
        assert got is None
    elif isinstance(wanted, np.ndarray) and wanted.dtype.kind in "fc":
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    elif isinstance(got, np.ndarray) and got.dtype.kind == "V":
        # A type of ml_dtypes; onnxruntime gives its bytes.
        same = wanted.view(got.dtype) if wanted.dtype == np.uint8 else wanted
        assert got.dtype == same.dtype and got.shape == same.shape
        np.testing.assert_array_equal(got.astype(np.float32), same.astype(np.float32))
    else:
        assert np.shape(got) == np.shape(wanted)
        assert np.array_equal(np.asarray(got), np.asarray(wanted))


def judge(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    """onnxruntime's results; where it does not have the op or the type, those of ONNX's own reference."""
    if model.graph.node[0].domain == "tilewright":  # a part of how we write another operator
        return OWN[model.graph.node[0].op_type](*feeds.values())
    try:
        return ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    except Exception:
        for node in model.graph.node:  # what onnxruntime has of ONNX's operators, it has for more types
            node.domain = "" if onnx.defs.has(node.op_type) else node.domain
        return list(ReferenceEvaluator(model).run(None, feeds))


@pytest.mark.parametrize("sample", SAMPLES)
def test_agrees_with_the_reference(sample: HostSample) -> None:
    model = model_of(sample)
    feeds = {f"x{i}": v for i, v in enumerate(sample.inputs) if v is not None}
    wanted = judge(model, feeds)
    got = tw.load(model, threads=1).run(feeds)
    check_equal(list(got.values()), list(wanted))


def test_every_host_op_is_a_frozen_value_and_says_why() -> None:
    for op in HOST_OPS:
        assert dataclasses.is_dataclass(op) and getattr(op, "__dataclass_params__").frozen, op  # noqa: B009
        assert op.why, op


def test_onnx_names_are_claimed_once_and_have_samples() -> None:
    names = [name for op in HOST_OPS for name in op.onnx]
    assert len(set(names)) == len(names)
    for op in HOST_OPS:
        tried = {qualified(s.op_type, s.domain) for s in op.samples(np.random.default_rng(7))}
        assert tried == set(op.onnx), op
    assert host_by_onnx("NoSuchOperator") is None

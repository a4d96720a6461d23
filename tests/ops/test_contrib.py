"""Every composite on its samples: the nodes it stands for give what onnxruntime gives for it.

Operators that onnxruntime has on no CPU are held to numpy, below.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as OrtNotImplemented

import tilewright as tw
from tilewright.ops.hostop import HostSample
from tilewright.ops.opdef import Array
from tilewright.ops.pointwise import erf
from tilewright.ops.registry import COMPOSITES, by_onnx, composite_by_onnx, host_by_onnx, qualified
from tilewright.support.errors import UserError

SAMPLES = [
    pytest.param(sample, id=f"{op.__name__}-{k}")
    for op in COMPOSITES
    for k, sample in enumerate(op.samples(np.random.default_rng(7)))
]


def model_of(sample: HostSample) -> onnx.ModelProto:
    names = [f"x{i}" if v is not None else "" for i, v in enumerate(sample.inputs)]
    outputs = [f"y{i}" for i in range(sample.outputs)]
    node = helper.make_node(sample.op_type, names, outputs, domain=sample.domain, **sample.attrs)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in zip(names, sample.inputs, strict=True)
        if isinstance(v, np.ndarray)
    ]
    graph = helper.make_graph([node], "sample", inputs, [onnx.ValueInfoProto(name=o) for o in outputs])
    imports = [helper.make_opsetid("", sample.opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def feeds_of(sample: HostSample) -> dict[str, Any]:
    return {f"x{i}": v for i, v in enumerate(sample.inputs) if v is not None}


def run_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


@pytest.mark.parametrize("sample", SAMPLES)
def test_agrees_with_onnxruntime(sample: HostSample) -> None:
    model, feeds = model_of(sample), feeds_of(sample)
    got = list(tw.load(model, threads=1).run(feeds).values())
    reference = REFERENCES.get(sample.op_type)
    if reference is None:
        wanted = run_onnxruntime(model, feeds)
    else:
        wanted = reference(sample.attrs, *sample.inputs)
        with pytest.raises(OrtNotImplemented):  # otherwise it should be the judge
            run_onnxruntime(model, feeds)
    for g, w in zip(got, wanted, strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape
        unit = ROUGH.get(sample.op_type, 1e-5 if w.dtype == np.float32 else 4e-3)
        np.testing.assert_allclose(g, w, rtol=unit, atol=unit)


def test_names_are_claimed_once_and_have_samples() -> None:
    names = [name for op in COMPOSITES for name in op.onnx]
    assert len(set(names)) == len(names)
    for op in COMPOSITES:
        tried = {qualified(s.op_type, s.domain) for s in op.samples(np.random.default_rng(7))}
        assert tried == set(op.onnx), op
        for name in op.onnx:
            domain, _, plain = name.rpartition(".")
            assert composite_by_onnx(plain, domain) is op
            assert by_onnx(plain, domain) is None and host_by_onnx(plain, domain) is None, name


def test_an_output_that_nothing_computes_is_refused_only_if_it_is_used() -> None:
    x = np.ones((2, 4), np.float32)
    sample = HostSample("SkipSimplifiedLayerNormalization", (x, x, x[0]), outputs=4, domain="com.microsoft")
    model = model_of(sample)
    with pytest.raises(UserError, match="'y1' is computed by no node"):
        tw.load(model).run(feeds_of(sample))
    model.graph.node[0].output[1] = ""
    del model.graph.output[1]
    np.testing.assert_array_equal(tw.load(model).run(feeds_of(sample))["y3"], x + x)


# ------------------------------------------------------------------------------- what onnxruntime has on no CPU


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def bias_split_gelu(attrs: Mapping[str, Any], x: Array, bias: Array) -> list[Array]:
    value, gate = np.split(x + bias, 2, -1)
    return [(value * gate * (1 + erf(gate.astype(np.float64) / np.sqrt(2))) / 2).astype(np.float32)]


def bias_add(attrs: Mapping[str, Any], x: Array, bias: Array, skip: Array) -> list[Array]:
    return [x + bias + skip]


def bias_dropout(
    attrs: Mapping[str, Any], x: Array, bias: Array, residual: Array | None = None
) -> list[Array]:
    return [x + bias] if residual is None else [x + bias + residual, np.ones(x.shape, bool)]


def bias_softmax(attrs: Mapping[str, Any], x: Array, bias: Array) -> list[Array]:
    over = tuple(range(attrs.get("axis", 1), x.ndim))
    power = np.exp(x + bias)
    return [power / power.sum(over, keepdims=True)]


def matmul_relu(attrs: Mapping[str, Any], a: Array, b: Array) -> list[Array]:
    return [np.maximum(a @ b.T, 0)]


def nhwc_conv(attrs: Mapping[str, Any], x: Array, w: Array, bias: Array) -> list[Array]:
    down, right = attrs["strides"]
    rows, columns = range(0, x.shape[1] - w.shape[1] + 1, down), range(0, x.shape[2] - w.shape[2] + 1, right)
    out = np.empty((len(x), len(rows), len(columns), len(w)), np.float32)
    for i, r in enumerate(rows):
        for j, c in enumerate(columns):
            part = x[:, r : r + w.shape[1], c : c + w.shape[2]]
            out[:, i, j] = np.einsum("nhwc,ohwc->no", part, w) + bias
    return [out]


def group_norm(attrs: Mapping[str, Any], x: Array, gain: Array, beta: Array) -> list[Array]:
    last = attrs.get("channels_last", 1)
    images = np.moveaxis(x, -1, 1) if last else x
    groups = images.reshape(len(x), attrs["groups"], -1)
    normed = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-5)
    y = normed.reshape(images.shape) * gain[:, None, None] + beta[:, None, None]
    y = y * sigmoid(y) if attrs["activation"] else y
    return [np.moveaxis(y, 1, -1) if last else y]


def skip_group_norm(
    attrs: Mapping[str, Any], x: Array, gain: Array, beta: Array, skip: Array, bias: Array
) -> list[Array]:
    total = x + skip[:, None, None] + bias
    return [*group_norm(attrs, total, gain, beta), total]


def qlinear_reduce_mean(attrs: Mapping[str, Any], x: Array, *parameters: Array) -> list[Array]:
    scale, zero, down, offset = (p.astype(np.float64) for p in parameters)
    mean = ((x - zero) * scale).mean(tuple(attrs["axes"]), keepdims=bool(attrs["keepdims"]))
    return [np.clip(np.rint(mean / down) + offset, 0, 255).astype(x.dtype)]


# Where onnxruntime rounds on the way, and we do not: it brings what it multiplies to bytes.
ROUGH = {"DynamicQuantizeLSTM": 5e-3}

REFERENCES: dict[str, Callable[..., list[Array]]] = {
    "BiasSplitGelu": bias_split_gelu,
    "BiasAdd": bias_add,
    "BiasDropout": bias_dropout,
    "BiasSoftmax": bias_softmax,
    "FusedMatMulActivation": matmul_relu,
    "NhwcConv": nhwc_conv,
    "GroupNorm": group_norm,
    "SkipGroupNorm": skip_group_norm,
    "QLinearReduceMean": qlinear_reduce_mean,
}

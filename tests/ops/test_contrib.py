"""Every composite on its samples: the nodes it stands for give what onnxruntime gives for it.

Operators that onnxruntime has on no CPU are held to numpy, below.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as OrtNotImplemented

import tilewright as tw
from tilewright.frontend.onnx.write import attribute
from tilewright.ops.core.pointwise import erf_array
from tilewright.ops.hostop import HostSample
from tilewright.ops.registry import COMPOSITES, by_onnx, composite_by_onnx, host_by_onnx, qualified
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

SAMPLES = [
    pytest.param(sample, id=f"{op.__name__}-{k}")
    for op in COMPOSITES
    for k, sample in enumerate(op.samples(np.random.default_rng(7)))
]


def is_single(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float32


def is_float(sample: HostSample) -> bool:
    """Does it take f32, and nothing that is quantised?"""
    types = [v.dtype for v in sample.inputs if isinstance(v, np.ndarray)]
    return np.dtype(np.float32) in types and not {np.dtype(np.int8), np.dtype(np.uint8)} & set(types)


def model_of(sample: HostSample) -> onnx.ModelProto:
    names = [f"x{i}" if v is not None else "" for i, v in enumerate(sample.inputs)]
    outputs = [f"y{i}" for i in range(sample.outputs)]
    attrs = {name: attribute(value) for name, value in sample.attrs.items()}
    node = helper.make_node(sample.op_type, names, outputs, domain=sample.domain, **attrs)
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


@pytest.mark.parametrize("sample", [p for p in SAMPLES if p.id.endswith("-0") and is_float(p.values[0])])
def test_half_precision_is_close_to_single(sample: HostSample) -> None:
    halves = [v.astype(np.float16) if is_single(v) else v for v in sample.inputs]
    singles = [
        v.astype(np.float32) if isinstance(v, np.ndarray) and v.dtype == np.float16 else v for v in halves
    ]
    wanted, got = (
        list(tw.load(model_of(s), threads=1).run(feeds_of(s)).values())
        for s in (replace(sample, inputs=tuple(singles)), replace(sample, inputs=tuple(halves)))
    )
    for g, w in zip(got, wanted, strict=True):
        if w.dtype == np.float32:
            assert g.dtype in (np.float16, np.float32)
            np.testing.assert_allclose(g.astype(np.float32), w, rtol=0.01, atol=0.01)


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


def one_node(
    op_type: str,
    inputs: Mapping[str, Array],
    outputs: list[str],
    *,
    opset: int,
    domain: str = "",
    **attrs: Any,
) -> onnx.ModelProto:
    """A model of one node; outputs without a name are not asked for."""
    node = helper.make_node(op_type, list(inputs), outputs, domain=domain, **attrs)
    taken = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in inputs.items()
    ]
    graph = helper.make_graph([node], "one", taken, [onnx.ValueInfoProto(name=o) for o in outputs if o])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def test_layer_normalization_before_onnx_had_it() -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((2, 8), np.float32), "g": rng.standard_normal(8, np.float32)}
    model = one_node("LayerNormalization", feeds, ["y"], opset=12)
    (wanted,) = run_onnxruntime(model, feeds)
    np.testing.assert_allclose(tw.load(model).run(feeds)["y"], wanted, rtol=1e-5, atol=1e-5)


def test_layer_normalization_without_its_mean() -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    feeds = {"x": x, "g": np.ones(4, np.float32)}
    got = tw.load(one_node("LayerNormalization", feeds, ["y", "", "s"], opset=17)).run(feeds)
    np.testing.assert_allclose(got["s"], 1 / np.sqrt(x.var(1, keepdims=True) + 1e-5), rtol=1e-5)


def test_a_row_that_is_masked_whole() -> None:
    """A penalty is the same for all keys of the row, and so no penalty; excluded keys leave nothing: zero."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, 2, 4), np.float32)
    mask = np.zeros((1, 2), np.int32)
    feeds = {"q": q, "k": q, "v": q, "bias": np.zeros(12, np.float32), "mask": mask}
    model = one_node("MultiHeadAttention", feeds, ["y"], opset=17, domain="com.microsoft", num_heads=2)
    (wanted,) = run_onnxruntime(model, feeds)
    np.testing.assert_allclose(tw.load(model).run(feeds)["y"], wanted, rtol=1e-5, atol=1e-5)

    heads = rng.standard_normal((1, 2, 3, 4), np.float32)
    allowed = np.array([[True, True, False], [False, False, False], [True, True, True]])
    feeds = {"q": heads, "k": heads, "v": heads, "mask": allowed}
    got = tw.load(one_node("Attention", feeds, ["y"], opset=24)).run(feeds)["y"]
    logits = np.where(allowed, heads @ heads.swapaxes(2, 3) / 2, -np.inf)
    power = np.exp(logits - logits.max(-1, keepdims=True, initial=-1e30))
    wanted = power / np.maximum(power.sum(-1, keepdims=True), 1e-30) @ heads
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    assert not got[:, :, 1].any()


def test_packed_heads_are_the_same_as_apart() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 3, 8), np.float32) for _ in range(3))

    def run(**feeds: Array) -> Array:
        own: dict[str, Any] = {"opset": 17, "domain": "com.microsoft", "num_heads": 2}
        return tw.load(one_node("MultiHeadAttention", feeds, ["y"], **own)).run(feeds)["y"]

    apart = run(q=q, k=k, v=v)
    heads = [t.reshape(2, 3, 2, 4) for t in (q, k, v)]
    np.testing.assert_array_equal(run(q=q, kv=np.stack(heads[1:], 3)), apart)
    np.testing.assert_array_equal(run(qkv=np.stack(heads, 3)), apart)


def test_the_length_of_all_tokens_may_be_known_or_not() -> None:
    rng = np.random.default_rng(0)
    feeds = {
        **{n: rng.standard_normal((1, 1, 16), np.float32) for n in ("q", "k", "v")},
        **{n: rng.standard_normal((1, 1, 3, 16), np.float32) for n in ("past_k", "past_v")},
        "last": np.array([3], np.int32),
        "total": np.array(4, np.int32),
    }
    own: dict[str, Any] = {"num_heads": 1, "kv_num_heads": 1}
    model = one_node("GroupQueryAttention", feeds, ["y", "k2", "v2"], opset=17, domain="com.microsoft", **own)
    unknown = tw.load(model).run(feeds)
    model.graph.initializer.append(onnx.numpy_helper.from_array(feeds.pop("total"), "total"))
    del model.graph.input[-1]
    known = tw.load(model).run(feeds)
    assert known["k2"].shape == (1, 1, 4, 16)
    for name, value in unknown.items():
        np.testing.assert_array_equal(known[name], value)


def test_nan_stays_in_its_row() -> None:
    x = np.ones((3, 4), np.float32)
    x[1, 2] = np.nan
    feeds = {"x": x, "skip": np.zeros((3, 4), np.float32), "g": np.ones(4, np.float32)}
    model = one_node("SkipSimplifiedLayerNormalization", feeds, ["y"], opset=17, domain="com.microsoft")
    y = tw.load(model).run(feeds)["y"]
    assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize(
    ("op_type", "shapes", "attrs", "message"),
    [
        ("MultiHeadAttention", [(1, 2, 6)] * 3, {"num_heads": 4}, "do not make 4 heads"),
        ("Attention", [(1, 2, 4), (4, 12), (12,)], {"num_heads": 5}, "12 columns do not make 5 heads"),
        ("FusedGemm", [(2, 3), (3, 2)], {"activation": "Sine"}, "an activation 'Sine' is not supported"),
        ("CDist", [(2, 3), (2, 3)], {"metric": "cosine"}, "a metric 'cosine' is not supported"),
        ("GroupNorm", [(2, 3), (3,), (3,)], {"groups": 1}, "need a batch, a place and a channel"),
    ],
)
def test_refusals(op_type: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], message: str) -> None:
    feeds = {f"x{i}": np.zeros(s, np.float32) for i, s in enumerate(shapes)}
    with pytest.raises(UserError, match=message):
        tw.load(one_node(op_type, feeds, ["y"], opset=17, domain="com.microsoft", **attrs)).run(feeds)


def test_more_tokens_than_the_cache_holds() -> None:
    feeds = {
        **{n: np.zeros((1, 1, 16), np.float32) for n in ("q", "k", "v")},
        **{n: np.zeros((1, 1, 3, 16), np.float32) for n in ("past_k", "past_v")},
        "last": np.array([8], np.int32),
        "total": np.array(9, np.int32),
    }
    own: dict[str, Any] = {"num_heads": 1, "kv_num_heads": 1}
    model = one_node("GroupQueryAttention", feeds, ["y"], opset=17, domain="com.microsoft", **own)
    with pytest.raises(UserError, match="9 tokens are not 1 after a cache of 3"):
        tw.load(model).run(feeds)


# ------------------------------------------------------------------------------- what onnxruntime has on no CPU


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def bias_split_gelu(attrs: Mapping[str, Any], x: Array, bias: Array) -> list[Array]:
    value, gate = np.split(x + bias, 2, -1)
    return [(value * gate * (1 + erf_array(gate.astype(np.float64) / np.sqrt(2))) / 2).astype(np.float32)]


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


def gemm_fast_gelu(attrs: Mapping[str, Any], a: Array, b: Array, bias: Array | None = None) -> list[Array]:
    x = a @ b + (0 if bias is None else bias)
    return [(x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2).astype(np.float32)]


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
    "GemmFastGelu": gemm_fast_gelu,
    "NhwcConv": nhwc_conv,
    "GroupNorm": group_norm,
    "SkipGroupNorm": skip_group_norm,
    "QLinearReduceMean": qlinear_reduce_mean,
}

"""A network that onnxruntime's quantizer has quantised, in each of its formats, gives what onnxruntime gives.

Where a float comes near the middle between two quantised numbers, two engines may round it differently, so results
are compared in steps of quantisation. Sums of bytes are exact in both: with few bits in the weights, for onnxruntime's
would saturate on some machines.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

import tilewright as tw
from tilewright.compiler import compile as compile_model
from tilewright.runtime.session import Session
from tilewright.support.processor import cpu_features
from tilewright.target.target import AVX_VNNI

SHAPE = (2, 3, 12, 12)
WEIGHTS = {
    "w1": (8, 3, 3, 3),
    "b1": (8,),
    "w2": (8, 1, 3, 3),
    "w3": (8, 8, 1, 1),
    "w4": (8, 16),
    "b4": (16,),
    "w5": (16, 5),
}


def network() -> ModelProto:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1], group=8),
        node("LeakyRelu", ["c2"], ["r2"], alpha=0.1),
        node("Conv", ["r2", "w3"], ["c3"]),
        node("Add", ["c3", "r1"], ["sum"]),
        node("MaxPool", ["sum"], ["pool"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Sigmoid", ["pool"], ["gate"]),
        node("Mul", ["pool", "gate"], ["swish"]),
        node("AveragePool", ["swish"], ["small"], kernel_shape=[3, 3], strides=[3, 3]),
        node("GlobalAveragePool", ["small"], ["mean"]),
        node("Flatten", ["mean"], ["flat"]),
        node("Gemm", ["flat", "w4", "b4"], ["hidden"]),
        node("MatMul", ["hidden", "w5"], ["scores"]),
        node("Softmax", ["scores"], ["y"], axis=-1),
    ]
    rng = np.random.default_rng(3)
    weights = [
        numpy_helper.from_array((rng.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype(np.float32), n)
        for n, s in WEIGHTS.items()
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "net",
        [info("x", TensorProto.FLOAT, SHAPE)],
        [info("y", TensorProto.FLOAT, [2, 5])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Images(CalibrationDataReader):
    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self._left = [{"x": rng.standard_normal(SHAPE).astype(np.float32)} for _ in range(3)]

    def get_next(self) -> dict[str, Any] | None:
        return self._left.pop() if self._left else None


def static(quant_format: QuantFormat, **options: Any) -> Callable[[str, str], None]:
    def quantize(source: str, target: str) -> None:
        quantize_static(source, target, Images(), quant_format=quant_format, reduce_range=True, **options)

    return quantize


def dynamic(source: str, target: str) -> None:
    quantize_dynamic(source, target, weight_type=QuantType.QInt8, reduce_range=True)


# A processor that has AVX2 and instructions for bytes, but no AVX-512.
needs_avx_vnni = pytest.param(
    "x86-64-v3+avxvnni",
    marks=pytest.mark.skipif(not cpu_features() >= AVX_VNNI.features, reason="this machine has no AVX-VNNI"),
)
S8, U8, I16 = QuantType.QInt8, QuantType.QUInt8, QuantType.QInt16
FORMS = {
    "operators": static(QuantFormat.QOperator, activation_type=U8, weight_type=S8),
    "operators, each channel": static(
        QuantFormat.QOperator, activation_type=U8, weight_type=S8, per_channel=True
    ),
    "operators of signed bytes": static(QuantFormat.QOperator, activation_type=S8, weight_type=S8),
    "pairs": static(QuantFormat.QDQ, activation_type=U8, weight_type=S8),
    "pairs, each channel": static(QuantFormat.QDQ, activation_type=S8, weight_type=S8, per_channel=True),
    "pairs of 16 bits": static(QuantFormat.QDQ, activation_type=I16, weight_type=S8),
    "dynamic": dynamic,
}


def judged(model: ModelProto, x: Any) -> Any:
    """onnxruntime's result of the nodes as they are, without rewriting them to others."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0]


@pytest.mark.filterwarnings("ignore")  # of the quantizer
@pytest.mark.parametrize("target", ["native", needs_avx_vnni])
@pytest.mark.parametrize("form", FORMS)
def test_agrees_with_onnxruntime(form: str, target: str, tmp_path: Path) -> None:
    source, quantised = tmp_path / "float.onnx", tmp_path / "quantised.onnx"
    onnx.save(network(), source)
    FORMS[form](str(source), str(quantised))
    model = onnx.load(quantised)
    kinds = {n.op_type for n in model.graph.node}
    assert kinds & {"QLinearConv", "QuantizeLinear", "ConvInteger"}, "nothing was quantised"
    x = np.random.default_rng(9).standard_normal(SHAPE).astype(np.float32)
    got, wanted = tw.load(model, threads=1, target=target).run({"x": x})["y"], judged(model, x)
    # Of a result that was quantised at the end, the step is 1/256: softmax is between 0 and 1.
    step = 1e-6 if form == "dynamic" else 2e-4 if "16" in form else 1 / 255
    np.testing.assert_allclose(got, wanted, rtol=0, atol=step)
    assert np.argmax(got, -1).tolist() == np.argmax(wanted, -1).tolist()


@pytest.mark.parametrize("number", [TensorProto.INT4, TensorProto.UINT4])
def test_weights_of_four_bits_are_unpacked_once(number: int) -> None:
    """They are constants, so the whole model is one native program."""
    rng = np.random.default_rng(0)
    low = -8 if number == TensorProto.INT4 else 0
    packed = helper.make_tensor("w", number, [64, 12], rng.integers(low, low + 16, 64 * 12).tolist())
    zeros = helper.make_tensor("z", number, [2, 12], rng.integers(low, low + 16, 2 * 12).tolist())
    scales = numpy_helper.from_array(rng.random((2, 12)).astype(np.float32), "s")
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"], axis=0, block_size=32),
            helper.make_node("MatMul", ["x", "f"], ["y"]),
        ],
        "four_bits",
        [info("x", TensorProto.FLOAT, [5, 64])],
        [info("y", TensorProto.FLOAT, [5, 12])],
        [packed, scales, zeros],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = rng.standard_normal((5, 64)).astype(np.float32)
    session = tw.load(model, threads=1)
    assert isinstance(session, Session)
    np.testing.assert_allclose(session.run({"x": x})["y"], judged(model, x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("number", [TensorProto.INT4, TensorProto.UINT4])
@pytest.mark.parametrize("axes", [(0, 1), (1, 0)], ids=str)
def test_rows_of_a_table_of_four_bits(number: int, axes: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    low = -8 if number == TensorProto.INT4 else 0
    shape, blocks = [[0, 0], [0, 0]]
    shape[axes[0]], shape[axes[1]] = 5, 32
    blocks[axes[0]], blocks[axes[1]] = 5, 2
    table = helper.make_tensor("t", number, shape, rng.integers(low, low + 16, 5 * 32).tolist())
    zeros = helper.make_tensor("z", number, blocks, rng.integers(low, low + 16, 10).tolist())
    scales = numpy_helper.from_array(rng.random(blocks).astype(np.float32), "s")
    attrs = {"gather_axis": axes[0], "quantize_axis": axes[1], "block_size": 16}
    graph = helper.make_graph(
        [
            helper.make_node(
                "GatherBlockQuantized", ["t", "x", "s", "z"], ["y"], domain="com.microsoft", **attrs
            )
        ],
        "table",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [2, 2])],
        [helper.make_empty_tensor_value_info("y")],
        [table, scales, zeros],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    x = np.array([[0, 4], [-1, 2]])
    np.testing.assert_array_equal(tw.load(model, threads=1).run({"x": x})["y"], judged(model, x))


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("has_zero", [False, True])
def test_weights_of_4_bits_that_are_dequantized_by_blocks(dtype: str, has_zero: bool) -> None:
    """As QDQ files have them: they keep 4 bits."""
    rng, (k, n, block) = np.random.default_rng(8), (64, 24, 32)
    short = getattr(ml_dtypes, dtype)
    low = -8 if dtype == "int4" else 0
    arrays = {
        "w": rng.integers(low, low + 16, (k, n)).astype(short),
        "s": rng.uniform(0.1, 1, (k // block, n)).astype(np.float32),
    }
    if has_zero:
        arrays["z"] = rng.integers(low, low + 16, (k // block, n)).astype(short)
    nodes = [
        helper.make_node("DequantizeLinear", [*arrays], ["d"], axis=0, block_size=block),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, 1, [3, size]) for name, size in (("x", k), ("y", n)))
    graph = helper.make_graph(
        nodes, "g", [x], [y], [numpy_helper.from_array(a, m) for m, a in arrays.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    made = compile_model(model)
    stored = sum(c.nbytes for c in made.artifact.constants if c.dtype == np.uint8)
    assert stored <= 32 * k // 2 + (32 * k // block if has_zero else 0)  # in panels of up to 32 columns
    given = rng.standard_normal((3, k)).astype(np.float32)
    codes, scales, *zeros = (v.astype(np.float32) for v in arrays.values())
    restored = (codes - (zeros[0].repeat(block, 0) if zeros else 0)) * scales.repeat(block, 0)
    want = given @ restored  # onnxruntime would bring x to bytes
    np.testing.assert_allclose(made.session(1).run({"x": given})["y"], want, rtol=1e-4, atol=1e-3)

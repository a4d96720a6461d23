"""Models that onnxruntime has rewritten with operators of its own compute what they did before."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto
from onnx_cases import Model, check_outputs, random_feeds, run_onnxruntime
from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.optimizer import optimize_model

import tilewright as tw

HIDDEN, HEADS, TOKENS = 16, 2, 6


def gelu(m: Model, x: str) -> str:
    half = m.op(
        "Mul",
        x,
        m.op("Add", m.op("Erf", m.op("Div", x, m.constant(np.float32(2**0.5)))), m.constant(np.float32(1))),
    )
    return m.op("Mul", half, m.constant(np.float32(0.5)))


def layer_norm(m: Model, x: str) -> str:
    """As exporters wrote it before ONNX had the operator."""
    centred = m.op("Sub", x, m.op("ReduceMean", x, axes=[-1]))
    variance = m.op("ReduceMean", m.op("Pow", centred, m.constant(np.float32(2))), axes=[-1])
    root = m.op("Sqrt", m.op("Add", variance, m.constant(np.float32(1e-5))))
    return m.op("Add", m.op("Mul", m.op("Div", centred, root), m.weight(HIDDEN)), m.weight(HIDDEN))


def linear(m: Model, x: str, width: int, depth: int = HIDDEN) -> str:
    return m.op("Add", m.op("MatMul", x, m.weight(depth, width)), m.weight(width))


def transformer() -> ModelProto:
    m = Model(opset=13)
    x, mask = m.input(1, TOKENS, HIDDEN), m.input(1, TOKENS)
    penalty = m.op("Mul", m.op("Sub", m.constant(np.float32(1)), mask), m.constant(np.float32(-10000)))
    penalty = m.op("Unsqueeze", penalty, m.ints(1, 2))

    def split(y: str, *perm: int) -> str:
        heads = m.op("Reshape", y, m.ints(0, 0, HEADS, HIDDEN // HEADS))
        return m.op("Transpose", heads, perm=perm)

    x = layer_norm(m, x)
    for _ in range(2):
        q, k, v = (split(linear(m, x, HIDDEN), *p) for p in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
        scores = m.op("Div", m.op("MatMul", q, k), m.constant(np.float32((HIDDEN // HEADS) ** 0.5)))
        weights = m.op("Softmax", m.op("Add", scores, penalty), axis=-1)
        merged = m.op("Transpose", m.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        merged = m.op("Reshape", merged, m.ints(0, 0, HIDDEN))
        x = layer_norm(m, m.op("Add", linear(m, merged, HIDDEN), x))
        y = linear(m, gelu(m, linear(m, x, 2 * HIDDEN)), HIDDEN, 2 * HIDDEN)
        x = layer_norm(m, m.op("Add", y, x))
    return m.finish(x)


def network() -> ModelProto:
    m = Model(opset=13)
    x = m.op("Relu", m.op("Conv", m.input(1, 3, 9, 9), m.weight(8, 3, 3, 3), m.weight(8), pads=[1, 1, 1, 1]))
    y = m.op("Conv", x, m.weight(8, 8, 3, 3), m.weight(8), pads=[1, 1, 1, 1])
    x = m.op("Relu", m.op("Add", y, x))
    x = m.op("LeakyRelu", m.op("Conv", x, m.weight(8, 1, 3, 3), group=8), alpha=0.2)
    flat = m.op("Flatten", m.op("GlobalAveragePool", x))
    return m.finish(m.op("Relu", m.op("Gemm", flat, m.weight(8, 5), m.weight(5))))


def by_session(model: ModelProto, folder: Path) -> ModelProto:
    """What onnxruntime makes of a model before it runs it, without what depends on the machine."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimized.onnx")


def by_script(model: ModelProto, folder: Path) -> ModelProto:
    """What its scripts for transformers make of a model."""
    onnx.save(model, folder / "plain.onnx")
    options = FusionOptions("bert")
    options.enable_shape_inference = False
    made = optimize_model(
        str(folder / "plain.onnx"),
        "bert",
        num_heads=HEADS,
        hidden_size=HIDDEN,
        optimization_options=options,
        opt_level=0,
    )
    return made.model


@pytest.mark.parametrize(
    ("build", "optimize", "expected"),
    [
        pytest.param(
            transformer,
            by_session,
            {"LayerNormalization", "SkipLayerNormalization", "FusedMatMul", "Gelu"},
            id="transformer-session",
        ),
        pytest.param(transformer, by_script, {"SkipLayerNormalization", "BiasGelu"}, id="transformer-script"),
        pytest.param(network, by_session, {"FusedConv", "FusedGemm"}, id="network-session"),
    ],
)
def test_agrees_with_what_it_was(
    build: Callable[[], ModelProto],
    optimize: Callable[[ModelProto, Path], ModelProto],
    expected: set[str],
    tmp_path: Path,
) -> None:
    model = build()
    feeds = random_feeds(model)
    if "transformer" in build.__name__:
        feeds[model.graph.input[1].name] = np.array([[1, 1, 1, 1, 0, 0]], np.float32)
    optimized = optimize(model, tmp_path)
    found = {n.op_type for n in optimized.graph.node}
    assert expected <= found, found
    check_outputs(tw.load(optimized, threads=1).run(feeds), run_onnxruntime(model, feeds))

"""Networks with random weights, written node by node as an exporter would: no framework, no download.

Each builder returns an ONNX model with static shapes; the same arguments give the same bytes. Convolutions keep their
BatchNormalization, attention is spelled out in MatMul, Transpose and Softmax, and GELU in Erf, because that is what
compilers are given in practice.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

OPSET = 18
IR_VERSION = 9  # what opset 18 came with, so that older readers take the file


class Net:
    """Collects nodes and weights; every method that adds a node returns the name of its output."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._weights: list[TensorProto] = []
        self._names: dict[str, int] = {}

    def _fresh(self, stem: str) -> str:
        n = self._names[stem] = self._names.get(stem, -1) + 1
        return f"{stem}_{n}"

    def constant(self, stem: str, value: NDArray[np.generic]) -> str:
        name = self._fresh(stem)
        self._weights.append(numpy_helper.from_array(value, name))
        return name

    def normal(self, stem: str, shape: Sequence[int], scale: float, mean: float = 0.0) -> str:
        return self.constant(stem, self._rng.normal(mean, scale, tuple(shape)).astype(np.float32))

    def uniform(self, stem: str, shape: Sequence[int], low: float, high: float) -> str:
        return self.constant(stem, self._rng.uniform(low, high, tuple(shape)).astype(np.float32))

    def ints(self, stem: str, *values: int) -> str:
        return self.constant(stem, np.array(values, np.int64))

    def scalar(self, stem: str, value: float) -> str:
        return self.constant(stem, np.array(value, np.float32))

    def op(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        name = self._fresh(op_type.lower())
        self._nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attrs))
        return name

    def spare_output(self) -> None:
        """The last node has one more output, which nobody reads."""
        self._nodes[-1].output.append(self._fresh("spare"))

    def model(
        self, name: str, inputs: dict[str, Sequence[int]], outputs: dict[str, Sequence[int]]
    ) -> ModelProto:
        """`outputs` maps the names that the file shows to shapes; the last nodes added are called so, in order."""
        for node, shown in zip(self._nodes[len(self._nodes) - len(outputs) :], outputs, strict=True):
            node.output[0] = shown
        graph = helper.make_graph(
            self._nodes,
            name,
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in inputs.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in outputs.items()],
            initializer=self._weights,
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="tilewright-examples",
        )


# ------------------------------------------------------------------------------------------------------------- networks


def mlp(sizes: Sequence[int] = (784, 512, 256, 10), batch: int = 1, seed: int = 0) -> ModelProto:
    """Dense layers with ReLU between them."""
    net = Net(seed)
    y = "x"
    for i, (n_in, n_out) in enumerate(pairwise(sizes)):
        if i > 0:
            y = net.op("Relu", y)
        weight = net.normal("weight", (n_out, n_in), math.sqrt(2 / n_in))
        y = net.op("Gemm", y, weight, net.normal("bias", (n_out,), 0.1), transB=1)
    return net.model("mlp", {"x": (batch, sizes[0])}, {"y": (batch, sizes[-1])})


def resnet18(size: int = 224, classes: int = 1000, batch: int = 1, seed: int = 0) -> ModelProto:
    """He et al.'s 18-layer residual network on `size`×`size` images."""
    net = Net(seed)

    def conv(x: str, c_in: int, c_out: int, kernel: int, stride: int, gain: float = 1.0) -> str:
        weight = net.normal(
            "conv_weight", (c_out, c_in, kernel, kernel), math.sqrt(2 / (c_in * kernel * kernel))
        )
        y = net.op("Conv", x, weight, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4)
        return net.op(
            "BatchNormalization",
            y,
            net.uniform("bn_scale", (c_out,), 0.8 * gain, 1.2 * gain),
            net.normal("bn_bias", (c_out,), 0.1),
            net.normal("bn_mean", (c_out,), 0.1),
            net.uniform("bn_var", (c_out,), 0.8, 1.2),
            epsilon=1e-5,
        )

    y = net.op("Relu", conv("image", 3, 64, kernel=7, stride=2))
    y = net.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for width, first_stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first_stride, 1):
            branch = net.op("Relu", conv(y, channels, width, kernel=3, stride=stride))
            branch = conv(
                branch, width, width, kernel=3, stride=1, gain=0.5
            )  # keeps the sum's variance in hand
            if stride != 1 or channels != width:
                y = conv(y, channels, width, kernel=1, stride=stride)
            y = net.op("Relu", net.op("Add", branch, y))
            channels = width
    y = net.op("Flatten", net.op("GlobalAveragePool", y), axis=1)
    weight = net.normal("fc_weight", (classes, channels), math.sqrt(1 / channels))
    net.op("Gemm", y, weight, net.normal("fc_bias", (classes,), 0.1), transB=1)
    return net.model("resnet18", {"image": (batch, 3, size, size)}, {"logits": (batch, classes)})


def transformer_encoder(
    layers: int = 2, hidden: int = 256, heads: int = 4, tokens: int = 128, batch: int = 1, seed: int = 0
) -> ModelProto:
    """Post-norm encoder layers as in BERT, from embeddings to hidden states."""
    if hidden % heads:
        raise ValueError(f"hidden ({hidden}) must be a multiple of heads ({heads})")
    net = Net(seed)
    per_head = hidden // heads

    def linear(x: str, n_in: int, n_out: int) -> str:
        product = net.op("MatMul", x, net.normal("weight", (n_in, n_out), math.sqrt(1 / n_in)))
        return net.op("Add", product, net.normal("bias", (n_out,), 0.02))

    def split_heads(x: str, perm: Sequence[int]) -> str:
        return net.op(
            "Transpose", net.op("Reshape", x, net.ints("shape", batch, tokens, heads, per_head)), perm=perm
        )

    def norm(x: str) -> str:
        scale, bias = net.uniform("ln_scale", (hidden,), 0.8, 1.2), net.normal("ln_bias", (hidden,), 0.1)
        return net.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    def gelu(x: str) -> str:
        bell = net.op("Erf", net.op("Div", x, net.scalar("sqrt_two", math.sqrt(2))))
        return net.op(
            "Mul", net.op("Mul", x, net.op("Add", bell, net.scalar("one", 1.0))), net.scalar("half", 0.5)
        )

    y = "embeddings"
    for _ in range(layers):
        query = split_heads(linear(y, hidden, hidden), (0, 2, 1, 3))
        key = split_heads(linear(y, hidden, hidden), (0, 2, 3, 1))
        value = split_heads(linear(y, hidden, hidden), (0, 2, 1, 3))
        scores = net.op("Div", net.op("MatMul", query, key), net.scalar("scale", math.sqrt(per_head)))
        mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), value)
        joined = net.op(
            "Reshape", net.op("Transpose", mixed, perm=(0, 2, 1, 3)), net.ints("shape", batch, tokens, hidden)
        )
        y = norm(net.op("Add", y, linear(joined, hidden, hidden)))
        y = norm(net.op("Add", y, linear(gelu(linear(y, hidden, 4 * hidden)), 4 * hidden, hidden)))
    shape = (batch, tokens, hidden)
    return net.model("transformer_encoder", {"embeddings": shape}, {"hidden_states": shape})

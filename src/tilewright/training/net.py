"""Writing ONNX programs with random weights, node by node, with the shapes of all tensors at hand.

Several chains of nodes may stand side by side in a program, each from an input of its own: what no node reads is an
output of the program.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

OPSET = 18
IR_VERSION = 9  # what opset 18 came with

TensorShape: TypeAlias = tuple[int, ...]


class Net:
    """Every method that adds something returns the name of the tensor."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.shapes: dict[str, TensorShape] = {}
        self.macs = 0  # multiply-adds of all contractions
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []
        self._inputs: list[str] = []
        self._count = 0

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"

    def input(self, *shape: int) -> str:
        name = self._fresh("x")
        self.shapes[name] = shape
        self._inputs.append(name)
        return name

    def constant(self, value: NDArray[np.generic]) -> str:
        name = self._fresh("w")
        self.shapes[name] = value.shape
        self._weights.append(numpy_helper.from_array(value, name))
        return name

    def normal(self, *shape: int, fan_in: int = 1) -> str:
        """Weights whose sums over `fan_in` of them are about 1."""
        values = self.rng.standard_normal(shape, np.float32) / np.float32(math.sqrt(fan_in))
        return self.constant(values)

    def positive(self, *shape: int) -> str:
        return self.constant(self.rng.uniform(0.8, 1.2, shape).astype(np.float32))

    def scalar(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def op(self, kind: str, shape: Sequence[int], *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """A node; `shape` is that of its first output. `outputs` more than one are not read."""
        names = [self._fresh(kind.lower()) for _ in range(outputs)]
        self._nodes.append(helper.make_node(kind, inputs, names, name=names[0], **attributes))
        self.shapes[names[0]] = tuple(int(n) for n in shape)
        return names[0]

    def same(self, kind: str, x: str, *others: str, **attributes: Any) -> str:
        """A node whose output has the shape of its first input."""
        return self.op(kind, self.shapes[x], x, *others, **attributes)

    def model(self, name: str) -> ModelProto:
        read = {i for n in self._nodes for i in n.input}
        outputs = [n.output[0] for n in self._nodes if n.output[0] not in read]
        inputs = [i for i in self._inputs if i in read]
        infos = [
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, self.shapes[n]) for n in names]
            for names in (inputs, outputs)
        ]
        graph = helper.make_graph(self._nodes, name, *infos, initializer=self._weights)
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="tilewright-corpus",
        )

    # --------------------------------------------------------------------------------------------------------- layers

    def conv(
        self,
        x: str,
        c_out: int,
        kernel: Sequence[int],
        *,
        strides: Sequence[int] | None = None,
        dilations: Sequence[int] | None = None,
        group: int = 1,
        is_valid: bool = False,
    ) -> str:
        """As large as its input over the strides, unless it is valid: then without padding."""
        batch, c_in, *sizes = self.shapes[x]
        steps, spread = strides or [1] * len(sizes), dilations or [1] * len(sizes)
        pads = [0 if is_valid else d * (k - 1) // 2 for k, d in zip(kernel, spread, strict=True)]
        made = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, p, d, k, s in zip(sizes, pads, spread, kernel, steps, strict=True)
        ]
        fan_in = c_in // group * math.prod(kernel)
        self.macs += batch * c_out * math.prod(made) * fan_in
        weight = self.normal(c_out, c_in // group, *kernel, fan_in=fan_in)
        return self.op(
            *("Conv", (batch, c_out, *made), x, weight, self.normal(c_out)),
            kernel_shape=list(kernel),
            strides=list(steps),
            dilations=list(spread),
            pads=[*pads, *pads],
            group=group,
        )

    def batch_norm(self, x: str) -> str:
        c = self.shapes[x][1]
        return self.same(
            *("BatchNormalization", x, self.positive(c), self.normal(c), self.normal(c), self.positive(c))
        )

    def pool(self, kind: str, x: str, kernel: int, stride: int) -> str:
        batch, c, *sizes = self.shapes[x]
        pad = (kernel - 1) // 2
        made = [(n + 2 * pad - kernel) // stride + 1 for n in sizes]
        return self.op(
            *(kind, (batch, c, *made), x),
            kernel_shape=[kernel] * len(sizes),
            strides=[stride] * len(sizes),
            pads=[pad] * (2 * len(sizes)),
        )

    def linear(self, x: str, n_out: int, *, has_bias: bool = True) -> str:
        *rows, n_in = self.shapes[x]
        self.macs += math.prod(rows) * n_in * n_out
        y = self.op("MatMul", (*rows, n_out), x, self.normal(n_in, n_out, fan_in=n_in))
        return self.same("Add", y, self.normal(n_out)) if has_bias else y

    def matmul(self, x: str, y: str) -> str:
        *rows, depth = self.shapes[x]
        columns = self.shapes[y][-1]
        self.macs += math.prod(rows) * depth * columns
        return self.op("MatMul", (*rows, columns), x, y)

    def layer_norm(self, x: str) -> str:
        n = self.shapes[x][-1]
        return self.same("LayerNormalization", x, self.positive(n), self.normal(n), axis=-1)

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", shape, x, self.ints(*shape))

    def transpose(self, x: str, *order: int) -> str:
        return self.op("Transpose", [self.shapes[x][n] for n in order], x, perm=list(order))

    def activation(self, x: str, kind: str) -> str:
        """`kind` is a node type, or one of those that are spelled out; "" leaves it as it is."""
        match kind:
            case "":
                return x
            case "Silu":
                return self.same("Mul", x, self.same("Sigmoid", x))
            case "Gelu":
                bell = self.same("Erf", self.same("Div", x, self.scalar(math.sqrt(2))))
                half = self.same("Mul", x, self.scalar(0.5))
                return self.same("Mul", half, self.same("Add", bell, self.scalar(1.0)))
            case "Clip":
                return self.same("Clip", x, self.scalar(0.0), self.scalar(6.0))
            case _:
                return self.same(kind, x)

"""DynamicQuantizeLSTM of com.microsoft: an LSTM whose weights are bytes. They become floats at compile time.

onnxruntime also rounds inputs and states to bytes before it multiplies them by weights; here they stay as they are, so
results are nearer to those of the network that was quantised.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.compositeop import Composite, CompositeBody, Term
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.integer import random_bytes
from tilewright.ops.hostop import HostSample
from tilewright.ops.opdef import OnnxNode
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_DOMAIN = "com.microsoft"
_ATTRIBUTES = (
    "activation_alpha",
    "activation_beta",
    "activations",
    "clip",
    "direction",
    "hidden_size",
    "input_forget",
)


class DynamicQuantizeLSTM(Composite):
    """Weights are [direction, input, gates], with a scale and a zero point for each direction, or for each gate of
    it."""

    onnx = ("com.microsoft.DynamicQuantizeLSTM",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        known = {k: v for k, v in node.attrs.items() if k in _ATTRIBUTES}
        weights, states = _weights(node, body, 1, 8), _weights(node, body, 2, 10)
        inputs = (body[0], weights, states, *(body.get(i) for i in range(3, 8)))
        return body.ops("LSTM", node.outputs, *inputs, **known)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        steps, batch, inputs, hidden = 3, 2, 4, 3
        x = normal(rng, steps, batch, inputs)

        def case(directions: int, scale: Array, bias: Array | None = None, **attrs: Any) -> HostSample:
            w, r = (random_bytes(rng, np.int8, directions, n, 4 * hidden) for n in (inputs, hidden))
            zero = np.zeros(scale.shape, np.int8)
            values = (x, w, r, bias, None, None, None, None, scale, zero, scale, zero)
            own = {"hidden_size": hidden, **attrs}
            return HostSample("DynamicQuantizeLSTM", values, own, outputs=3, domain=_DOMAIN)

        yield case(1, np.array([0.01], np.float32), normal(rng, 1, 8 * hidden))
        yield case(2, np.array([0.01, 0.02], np.float32), direction="bidirectional")
        yield case(1, abs(normal(rng, 1, 4 * hidden)) * np.float32(0.01))


def _weights(node: OnnxNode, body: CompositeBody, i: int, scale: int) -> Term:
    """The weights that are input i, as LSTM has them: floats, [direction, gates, input]."""
    shape = node.input(i).shape
    if len(shape) != 3:
        raise UserError(f"weights with {len(shape)} axes")

    def parameter(at: int) -> Term:
        given = node.input(at).shape
        if given not in (shape[:1], (shape[0], shape[2])):
            raise UserError(f"scales or zero points of shape {list(given)} do not fit weights {list(shape)}")
        return body.reshape(body.cast(body[at], DType.F32), shape[0], 1, *given[1:] or (1,))

    wide = body.cast(body[i], DType.F32)
    wide = wide - parameter(scale + 1) if node.has(scale + 1) else wide
    return body.transpose(wide * parameter(scale), 0, 2, 1)

"""Quantised parts of transformers of com.microsoft: QAttention and QEmbedLayerNormalization. Only weights, embeddings
and what is multiplied by weights are quantised; the rest is f32.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.compositeop import Composite, CompositeBody, Term
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.integer import random_bytes
from tilewright.ops.core.quantize import real
from tilewright.ops.hostop import HostSample, HostValue
from tilewright.ops.opdef import OnnxNode
from tilewright.support.errors import UserError

_DOMAIN = "com.microsoft"


class QAttention(Composite):
    """q, k and v come from one integer MatMul with the weights; then it is MultiHeadAttention."""

    onnx = ("com.microsoft.QAttention",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        if node.integer("do_rotary", 0) or node.integer("past_present_share_buffer", 0):
            raise UserError("QAttention with a rotary embedding or a shared buffer is not supported")
        width = node.input(1).shape[-1]
        if width % 3:
            raise UserError(f"{width} columns do not make q, k and v")
        product = "com.microsoft.MatMulIntegerToFloat"
        operands = (body[0], body[1], body[3], body[4], body.get(6), body.get(7), body[2])
        q, k, v = body.split(body.op(product, *operands, dtype=DType.F32), 2, *(width // 3,) * 3)
        past, keys, values = body.get(8), None, None
        if past is not None:
            keys, values = (body.op("Squeeze", t, body.integers(0)) for t in body.split(past, 0, 1, 1))
        known = ("num_heads", "unidirectional", "mask_filter_value", "scale")
        out, *present = body.ops(
            "com.microsoft.MultiHeadAttention",
            3,
            *(q, k, v, None, body.get(5), None, keys, values),
            **{n: v for n, v in node.attrs.items() if n in known},
        )
        if node.outputs < 2:
            return (out,)
        return out, body.concat(0, *(body.op("Unsqueeze", t, body.integers(0)) for t in present))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x, w, bias = random_bytes(rng, np.uint8, 2, 3, 4), random_bytes(rng, np.int8, 4, 12), normal(rng, 12)
        scales, zeros = (real(0.01), real(0.02)), (np.array(120, np.uint8), np.array(1, np.int8))
        each, none = abs(normal(rng, 12)) * np.float32(0.02), np.zeros(12, np.int8)
        two: dict[str, Any] = {"num_heads": 2}

        def case(*inputs: HostValue, outputs: int = 1, **attrs: Any) -> HostSample:
            return HostSample("QAttention", inputs, {**two, **attrs}, outputs=outputs, domain=_DOMAIN)

        lengths = np.array([2, 3], np.int32)
        yield case(x, w, bias, *scales, lengths, *zeros)
        yield case(x, w, bias, scales[0], each, None, zeros[0], none, unidirectional=1)
        past = normal(rng, 2, 2, 2, 2, 2)
        seen = np.array([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]], np.int32)
        yield case(x, w, bias, *scales, seen, *zeros, past, outputs=2, unidirectional=1)


class QEmbedLayerNormalization(Composite):
    """Layer normalisation of the sum of word, position and segment embeddings, and how many tokens the mask leaves of
    each sequence. What is looked up is dequantised, not the tables.
    """

    onnx = ("com.microsoft.QEmbedLayerNormalization",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        batch, length = node.input(0).shape

        def wide(x: Term, i: int) -> Term:
            """By the scale and the zero point of the table that is input i."""
            return body.op("DequantizeLinear", x, body[i + 6], body.get(i + 11), dtype=DType.F32)

        def found(i: int, at: Term) -> Term:
            return wide(body.op("Gather", body[i], at), i)

        total = found(2, body[0]) + found(3, body.places(length))
        if node.has(1) and node.has(4):
            total = total + found(4, body[1])
        y = body.op(
            "LayerNormalization",
            total,
            wide(body[5], 5),
            wide(body[6], 6),
            axis=-1,
            epsilon=node.real("epsilon", 1e-12),
        )
        mask = body.get(7)
        if mask is None:
            return y, body.filled(0, DType.I32, batch)
        return y, body.op("ReduceSum", mask, body.integers(1), keepdims=0)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        ids, kinds = (rng.integers(0, n, (2, 3)).astype(np.int32) for n in (5, 2))
        mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
        tables = [random_bytes(rng, np.uint8, *s) for s in ((5, 8), (6, 8), (2, 8), (8,), (8,))]
        scales = [real(s) for s in (0.02, 0.03, 0.01, 0.1, 0.2)]
        zeros = [np.array(z, np.uint8) for z in (100, 120, 90, 0, 128)]
        name = "QEmbedLayerNormalization"
        yield HostSample(name, (ids, kinds, *tables, mask, *scales, *zeros), outputs=2, domain=_DOMAIN)
        yield HostSample(
            name,
            (ids, kinds, *tables, None, *scales, *zeros),
            {"epsilon": 0.1},
            outputs=2,
            domain=_DOMAIN,
        )

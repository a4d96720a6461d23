"""Attention of com.microsoft with keys and values for each head: Attention, MultiHeadAttention and its decoding form.

A mask excludes nothing here: it adds `mask_filter_value` to logits.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.composite.heads import (
    Heads,
    before,
    default_scale,
    merge_heads,
    penalty,
    places,
    scores,
    split_heads,
    weigh,
)
from tilewright.ops.compositeop import Composite, CompositeBody, Term
from tilewright.ops.core.elementwise import normal
from tilewright.ops.hostop import HostSample, HostValue
from tilewright.ops.opdef import OnnxNode
from tilewright.support.errors import UserError

_DOMAIN = "com.microsoft"


def _allowed(node: OnnxNode, body: CompositeBody, h: Heads, at: int) -> Term:
    """Which keys the mask (input number `at`) allows; broadcasts to [batch, heads, queries, keys]."""
    mask, shape = body[at], node.input(at).shape
    if shape == (h.batch, h.keys):
        return body.reshape(mask, h.batch, 1, 1, h.keys) >= 1
    if shape == (h.batch, h.queries, h.keys):
        return body.reshape(mask, h.batch, 1, h.queries, h.keys) >= 1
    if shape not in ((h.batch,), (2 * h.batch,)):
        raise UserError(f"a mask of shape {list(shape)} does not fit, or is not supported")
    key = places(body, h.keys, 1, 1, 1, -1)
    bounds = body.reshape(body.cast(mask, DType.I64), -1, 1, 1, 1)
    if len(shape) == 1 and shape[0] == h.batch:
        return key < bounds
    end, start = body.split(bounds, 0, h.batch, h.batch)
    return (key < end) & (key >= start)


def _attend(
    node: OnnxNode,
    body: CompositeBody,
    h: Heads,
    qkv: tuple[Term, Term, Term],
    mask: int,
    bias: int,
    earlier: int,
) -> tuple[Term, Term]:
    """The result, [batch, queries, heads · value_size], and the logits. `earlier` keys come before the queries."""
    q, k, v = qkv
    logits = scores(body, h, q, k, default_scale(node.real("scale", 0.0), h.size))
    amount = node.real("mask_filter_value", -10000.0)
    if node.has(mask):
        logits = logits + penalty(body, _allowed(node, body, h, mask), amount, logits.dtype)
    if node.integer("unidirectional", 0):
        logits = logits + penalty(body, before(body, h, earlier), amount, logits.dtype)
    if node.has(bias):
        logits = logits + body[bias]
    out = weigh(body, h, body.op("Softmax", logits), v)
    return merge_heads(body, out, h.batch, h.queries, h.heads * h.value_size), logits


class ContribAttention(Composite):
    """q, k and v come from one MatMul with the weights; keys and values of earlier tokens come before them."""

    onnx = ("com.microsoft.Attention",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        if node.integer("do_rotary", 0) or node.integer("past_present_share_buffer", 0):
            raise UserError("Attention with a rotary embedding or a shared buffer is not supported")
        (batch, length, _), (_, width) = node.input(0).shape, node.input(1).shape
        heads, widths = node.integer("num_heads", 0), node.integers("qkv_hidden_sizes") or (width // 3,) * 3
        if heads < 1 or len(widths) != 3 or sum(widths) != width or any(n < 1 or n % heads for n in widths):
            raise UserError(f"{width} columns do not make {heads} heads of {list(widths)}")
        sizes = [n // heads for n in widths]
        product, bias, past = body.op("MatMul", body[0], body[1]), body.get(2), body.get(4)
        parts = body.split(product if bias is None else product + bias, 2, *widths)
        q, k, v = (split_heads(body, t, batch, length, heads, n) for t, n in zip(parts, sizes, strict=True))
        earlier = 0
        if past is not None:
            earlier = node.input(4).shape[3]
            k_past, v_past = (body.op("Squeeze", t, body.integers(0)) for t in body.split(past, 0, 1, 1))
            k, v = body.concat(2, k_past, k), body.concat(2, v_past, v)
        h = Heads(batch, heads, heads, length, earlier + length, sizes[0], sizes[2])
        out, _ = _attend(node, body, h, (q, k, v), 3, 5, earlier)
        if node.outputs < 2:
            return (out,)
        return out, body.concat(0, *(body.op("Unsqueeze", t, body.integers(0)) for t in (k, v)))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x, w, bias = normal(rng, 2, 3, 4), normal(rng, 4, 12), normal(rng, 12)
        two: dict[str, Any] = {"num_heads": 2}
        causal = {**two, "unidirectional": 1}
        past = normal(rng, 2, 2, 2, 2, 2)
        raw = np.array([[1, 1, 0], [0, 1, 1]], np.int32)
        cube = (rng.random((2, 3, 3)) < 0.5).astype(np.int32)

        def case(*inputs: HostValue, outputs: int = 1, **attrs: Any) -> HostSample:
            return HostSample("Attention", inputs, attrs, outputs=outputs, domain=_DOMAIN)

        yield case(x, w, bias, **two)
        yield case(x, w, bias, raw, **two)
        yield case(x, w, bias, cube, **causal)
        yield case(x, w, bias, np.array([2, 3], np.int32), **two)
        yield case(x, w, bias, np.array([2, 3, 1, 0], np.int32), **two, mask_filter_value=-50.0)
        yield case(x, w, bias, None, None, normal(rng, 2, 2, 3, 3), **two, scale=0.3)
        yield case(x, w, bias, None, past, **causal, outputs=2)
        seen = np.array([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]], np.int32)
        yield case(x, w, bias, seen, past, **causal, outputs=2)
        yield case(x, normal(rng, 4, 14), normal(rng, 14), **two, qkv_hidden_sizes=[4, 4, 6])


class MultiHeadAttention(Composite):
    """q, k and v come apart; or k and v are packed as [batch, length, heads, 2, size], or all three in such a way. Keys
    and values that an encoder made may have their heads split already; they take no bias then.
    """

    onnx = ("com.microsoft.MultiHeadAttention",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        if node.has(8) or node.has(9):
            raise UserError("MultiHeadAttention over a buffer of beams is not supported")
        heads, query = node.integer("num_heads", 0), node.input(0)
        if heads < 1 or query.rank not in (3, 5) or query.shape[2] % heads:
            raise UserError(f"queries {query} do not make {heads} heads")
        packed, (batch, length) = query.rank == 5, query.shape[:2]
        size = query.shape[4] if packed else query.shape[2] // heads
        keys = node.input(0 if packed else 1)
        split, many = keys.rank == 4, keys.shape[2 if keys.rank == 4 else 1]
        value_size = size
        if packed:
            q, k, v = _unpacked(body, body[0], query.shape)
        elif keys.rank == 5:
            q, (k, v) = body[0], _unpacked(body, body[1], keys.shape)
        else:
            q, k, v, value = body[0], body[1], body[2], node.input(2)
            value_size = value.shape[3] if split else value.shape[2] // heads
        bias = body.get(3)
        if bias is not None:
            parts = body.split(bias, 0, heads * size, heads * size, heads * value_size)
            q = q + parts[0]
            k, v = (k, v) if split else (k + parts[1], v + parts[2])
        q = split_heads(body, q, batch, length, heads, size)
        if not split:
            k = split_heads(body, k, batch, many, heads, size)
            v = split_heads(body, v, batch, many, heads, value_size)
        earlier = node.input(6).shape[2] if node.has(6) else 0
        k, v = body.concat(2, body.get(6), k), body.concat(2, body.get(7), v)
        h = Heads(batch, heads, heads, length, earlier + many, size, value_size)
        out, logits = _attend(node, body, h, (q, k, v), 4, 5, earlier)
        return out, k, v, logits

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        q, k, v = normal(rng, 2, 3, 4), normal(rng, 2, 5, 4), normal(rng, 2, 5, 6)
        bias, past = normal(rng, 14), (normal(rng, 2, 2, 2, 2), normal(rng, 2, 2, 2, 2))

        def case(*inputs: HostValue, outputs: int = 1, **attrs: Any) -> HostSample:
            own = {"num_heads": 2, **attrs}
            return HostSample("MultiHeadAttention", inputs, own, outputs=outputs, domain=_DOMAIN)

        yield case(q, k, v)
        yield case(q, k, v, bias, scale=0.4)
        padded = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
        yield case(q, k, v, None, padded)
        yield case(q, k, v, None, np.array([2, 5], np.int32), mask_filter_value=-1000.0)
        yield case(q, k, v, None, None, normal(rng, 1, 2, 3, 5))
        yield case(q, k[:, :3].copy(), v[:, :3].copy(), bias, unidirectional=1)
        own = q, k[:, :3].copy(), normal(rng, 2, 3, 4)
        yield case(*own, None, None, None, *past, unidirectional=1, outputs=3)
        seen = np.array([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]], np.int32)
        yield case(*own, None, seen, None, *past, outputs=3)
        yield case(q, normal(rng, 2, 2, 5, 2), normal(rng, 2, 2, 5, 2))


def _unpacked(body: CompositeBody, x: Term, shape: Sequence[int]) -> list[Term]:
    """[batch, length, heads, count, size] as `count` tensors [batch, length, heads · size]."""
    batch, length, heads, count, size = shape
    return [body.reshape(t, batch, length, heads * size) for t in body.split(x, 3, *[1] * count)]

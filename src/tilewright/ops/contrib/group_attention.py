"""Attention of com.microsoft over a cache: GroupQueryAttention, where heads share keys and values, and decoding.

The cache is long enough for all tokens of a sequence, or it grows. Its keys and values of new tokens are written where
the earlier ones of that sequence end; what lies behind is not looked at.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.composite.heads import (
    Heads,
    capped,
    default_scale,
    merge_heads,
    penalty,
    places,
    scores,
    softmax_over_keys,
    split_heads,
    weigh,
)
from tilewright.ops.compositeop import Composite, CompositeBody, Term
from tilewright.ops.core.elementwise import normal
from tilewright.ops.hostop import HostSample, HostValue
from tilewright.ops.opdef import OnnxNode
from tilewright.support.errors import UserError

_DOMAIN = "com.microsoft"
_COUNTED = 14  # a further input, of ours: its length is that of all tokens


class GroupQueryAttention(Composite):
    """Queries see the keys up to their own token, or only the last `local_window_size` of them. q, k and v come apart
    or side by side, and may be rotated by their positions first.
    """

    onnx = ("com.microsoft.GroupQueryAttention",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        heads, kv_heads = node.integer("num_heads", 0), node.integer("kv_num_heads", 0)
        (batch, length, width), packed = node.input(0).shape, not node.has(1)
        if (
            heads < 1
            or kv_heads < 1
            or heads % kv_heads
            or width % (heads + 2 * kv_heads if packed else heads)
        ):
            raise UserError(f"{width} columns do not make {heads} heads that share {kv_heads}")
        if any(node.has(i) for i in (12, 13)):
            raise UserError("GroupQueryAttention with a quantised cache is not supported")
        size = width // (heads + 2 * kv_heads if packed else heads)
        earlier = node.input(3).shape[2] if node.has(3) else 0
        total = _total(node)
        if total is None:  # it is known after the host has counted so far, from a shape
            zero, one = (body.number(n, DType.I64) for n in (0, 1))
            counted = body.op("Range", zero, body.reshape(body.cast(body[6], DType.I64)), one)
            inputs = [*map(body.get, range(_COUNTED)), counted]
            return body.ops(cls.onnx[0], node.outputs, *inputs, **node.attrs)
        if not length <= total <= earlier + length:
            raise UserError(f"{total} tokens are not {length} after a cache of {earlier}")
        h = Heads(batch, heads, kv_heads, length, max(total, earlier), size, size)
        if packed:
            q, k, v = body.split(body[0], 2, heads * size, kv_heads * size, kv_heads * size)
        else:
            q, k, v = body[0], body[1], body[2]
        q = split_heads(body, q, batch, length, heads, size)
        k, v = (split_heads(body, t, batch, length, kv_heads, size) for t in (k, v))
        # Where the new tokens of each sequence start: a prompt has none before it.
        start = None
        if total > length:
            start = body.reshape(body.cast(body[5], DType.I64), batch) + (1 - length)
        if node.integer("do_rotary", 0):
            q, k = (_rotated(node, body, h, t, start) for t in (q, k))
        keys = _cached(body, h, body.get(3), k, start, earlier)
        values = _cached(body, h, body.get(4), v, start, earlier)
        logits = scores(body, h, q, keys, default_scale(node.real("scale", 0.0), size))
        logits = capped(body, logits, node.real("softcap", 0.0))
        bias = body.get(10)
        if bias is not None:
            logits = logits + bias
        logits = logits + penalty(body, _seen(node, body, h, start), float("-inf"), logits.dtype)
        sink = body.get(11)
        if sink is None and node.integer("smooth_softmax", 0):
            sink = body.constant(np.zeros(heads, logits.dtype.numpy))
        out = weigh(body, h, softmax_over_keys(body, h, logits, sink), values)
        return merge_heads(body, out, batch, length, heads * size), keys, values

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        cos, sin = normal(rng, 8, 8), normal(rng, 8, 8)

        def case(length: int, ends: list[int], cache: int, *more: object, **attrs: object) -> HostSample:
            """4 heads that share 2, of 16 elements."""
            batch = len(ends)
            q, k, v = (normal(rng, batch, length, n) for n in (64, 32, 32))
            past = normal(rng, batch, 2, cache, 16), normal(rng, batch, 2, cache, 16)
            lengths = np.array(ends, np.int32) - 1, np.array(max(ends), np.int32)
            own = {"num_heads": 4, "kv_num_heads": 2, **attrs}
            inputs: tuple[Any, ...] = (q, k, v, *past, *lengths, *more)
            for b, end in enumerate(ends):  # onnxruntime clears what lies behind the end
                past[0][b, :, end - length :] = past[1][b, :, end - length :] = 0
            return HostSample("GroupQueryAttention", inputs, own, outputs=3, domain=_DOMAIN)

        yield case(3, [3, 3], 0)
        yield case(3, [3, 3], 0, cos, sin, do_rotary=1)
        yield case(1, [4, 4], 3, cos, sin, do_rotary=1, rotary_interleaved=1)
        yield case(1, [4, 2], 3, softcap=2.0)
        yield case(2, [5], 3, local_window_size=2)
        yield case(3, [3, 3], 0, local_window_size=2, scale=0.3)
        yield case(3, [3, 3], 0, smooth_softmax=1)
        yield case(3, [3, 3], 0, None, None, None, normal(rng, 1, 4, 3, 3))
        lengths = np.array([2], np.int32), np.array(3, np.int32)
        packed = (normal(rng, 1, 3, 128), None, None, None, None, *lengths)
        own = {"num_heads": 4, "kv_num_heads": 2}
        yield HostSample("GroupQueryAttention", packed, own, outputs=3, domain=_DOMAIN)


def _total(node: OnnxNode) -> int | None:
    """How many tokens there are, with the new ones, if that is known."""
    if node.has(_COUNTED):
        return node.input(_COUNTED).shape[0]
    known, sizes = node.constant(6), node.sizes(6)
    if sizes is not None:
        return sizes.item()
    return None if known is None else int(known.item())


def _rotated(node: OnnxNode, body: CompositeBody, h: Heads, x: Term, start: Term | None) -> Term:
    """Queries or keys, rotated by their positions."""
    at, given = places(body, h.queries, 1, -1), body.get(9)
    if given is not None:
        at = body.cast(given, DType.I64)
    elif start is None:
        at = body.op("Expand", at, body.integers(h.batch, h.queries))
    else:
        at = body.reshape(start, h.batch, 1) + at
    rotated = 2 * node.input(7).shape[-1]
    interleaved = node.integer("rotary_interleaved", 0)
    part = 0 if rotated == h.size else rotated
    return body.op(
        "RotaryEmbedding", x, body[7], body[8], at, interleaved=interleaved, rotary_embedding_dim=part
    )


def _cached(
    body: CompositeBody, h: Heads, past: Term | None, new: Term, start: Term | None, earlier: int
) -> Term:
    """The cache with the new keys or values in it, [batch, kv_heads, keys, size]."""
    if past is None or (start is None and h.keys == h.queries):
        return new
    if h.keys > earlier:
        rest = body.filled(0, past.dtype, h.batch, h.kv_heads, h.keys - earlier, h.size)
        past = body.concat(2, past, rest)
    return body.op("TensorScatter", past, new, start, axis=2)


def _seen(node: OnnxNode, body: CompositeBody, h: Heads, start: Term | None) -> Term:
    """Which keys a query sees; broadcasts to [batch, heads, queries, keys]."""
    query, key = places(body, h.queries, 1, 1, -1, 1), places(body, h.keys, 1, 1, 1, -1)
    if start is not None:
        query = query + body.reshape(start, h.batch, 1, 1, 1)
    window = node.integer("local_window_size", -1)
    return (query >= key) if window < 0 else (query >= key) & (query < key + window)


class DecoderMaskedMultiHeadAttention(Composite):
    """One new token per sequence, over a buffer into which its keys and values are written. Without a buffer the keys
    and values are an encoder's, with their heads split.
    """

    onnx = ("com.microsoft.DecoderMaskedMultiHeadAttention",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        if node.has(9):
            raise UserError("DecoderMaskedMultiHeadAttention over beams is not supported")
        (batch, length, width), heads = node.input(0).shape, node.integer("num_heads", 0)
        if heads < 1 or width % heads or length != 1:
            raise UserError(f"{length} tokens, or {width} columns, do not make {heads} heads of one token")
        size, bias, decodes = width // heads, body.get(10), node.has(5)
        q, k, v = body[0], body[1], body[2]
        if bias is not None:
            parts = body.split(bias, 0, width, width, width)
            q, k, v = (q + parts[0], k + parts[1], v + parts[2]) if decodes else (q + parts[0], k, v)
        capacity = node.input(5).shape[2] if decodes else node.input(1).shape[2]
        h = Heads(batch, heads, heads, 1, capacity, size, size)
        q, start = split_heads(body, q, batch, 1, heads, size), None
        if decodes:
            start = body.op("Expand", body.reshape(body.cast(body[7], DType.I64), 1), body.integers(batch))
            k, v = (split_heads(body, t, batch, 1, heads, size) for t in (k, v))
            k, v = (_cached(body, h, p, t, start, capacity) for p, t in ((body[5], k), (body[6], v)))
        logits = scores(body, h, q, k, default_scale(node.real("scale", 0.0), size))
        if node.has(3):
            shape, amount = node.input(3).shape, node.real("mask_filter_value", -10000.0)
            mask = body.reshape(_stretched(body, body[3], shape, capacity), batch, 1, 1, capacity)
            logits = logits + penalty(body, mask >= 1, amount, logits.dtype)
        if node.has(4):
            logits = logits + _stretched(body, body[4], node.input(4).shape, capacity)
        if start is not None:
            logits = logits + penalty(body, _seen(node, body, h, start), float("-inf"), logits.dtype)
        out = weigh(body, h, body.op("Softmax", logits), v)
        return merge_heads(body, out, batch, 1, width), k, v

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        q, k, v = normal(rng, 2, 1, 8), normal(rng, 2, 1, 8), normal(rng, 2, 1, 8)
        buffers, last = (normal(rng, 2, 2, 6, 4), normal(rng, 2, 2, 6, 4)), np.array([3], np.int32)

        def case(*inputs: HostValue, outputs: int = 1, **attrs: Any) -> HostSample:
            own = {"num_heads": 2, **attrs}
            return HostSample("DecoderMaskedMultiHeadAttention", inputs, own, outputs=outputs, domain=_DOMAIN)

        yield case(q, k, v, None, None, *buffers, last, past_present_share_buffer=1, outputs=3)
        mask = np.array([[1, 1, 0, 1], [0, 1, 1, 1]], np.int32)
        more = None, None, normal(rng, 24)
        yield case(q, k, v, mask, None, *buffers, last, *more, past_present_share_buffer=1, outputs=3)
        yield case(q, normal(rng, 2, 2, 5, 4), normal(rng, 2, 2, 5, 4))


def _stretched(body: CompositeBody, x: Term, shape: Sequence[int], length: int) -> Term:
    """The last axis filled up with zeros to this length."""
    rest = (*shape[:-1], length - shape[-1])
    return body.concat(len(shape) - 1, x, body.filled(0, x.dtype, *rest)) if 0 not in rest else x

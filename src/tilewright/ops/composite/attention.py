"""Attention of ONNX. Its own function says the same, but repeats keys and values for each head that shares them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.axes import FLOATS
from tilewright.ops.composite.heads import Heads, capped, merge_heads, places, scores, split_heads, weigh
from tilewright.ops.compositeop import Composite, CompositeBody, Term
from tilewright.ops.core.elementwise import normal
from tilewright.ops.hostop import HostSample, HostValue
from tilewright.ops.opdef import ONNX_DTYPES, OnnxNode
from tilewright.support.errors import UserError
from tilewright.support.sizes import is_open


class Attention(Composite):
    """Keys may be excluded by their order, by a window, by how many there are, and by a mask; a query that sees none of
    them gives zeros. Further outputs are the keys and values with the earlier ones, and the logits at some stage.
    """

    onnx = ("Attention",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        h, earlier = _heads(node)
        flat = node.input(0).rank == 3
        q, k, v = body[0], body[1], body[2]
        if flat:
            new = h.keys - earlier
            q = split_heads(body, q, h.batch, h.queries, h.heads, h.size)
            k = split_heads(body, k, h.batch, new, h.kv_heads, h.size)
            v = split_heads(body, v, h.batch, new, h.kv_heads, h.value_size)
        k, v = body.concat(2, body.get(4), k), body.concat(2, body.get(5), v)
        raw = scores(body, h, q, k, node.real("scale", 1 / math.sqrt(h.size)))
        limited = capped(body, raw, node.real("softcap", 0.0))
        logits, may_be_empty = _masked(node, body, h, limited, earlier)
        precision = ONNX_DTYPES.get(node.integer("softmax_precision", 0), q.dtype)
        if precision not in FLOATS:
            raise UserError(f"a softmax of {precision.value} is not supported")
        weights = body.cast(body.op("Softmax", body.cast(logits, precision)), q.dtype)
        if may_be_empty:
            top = body.op("ReduceMax", logits, body.integers(-1))
            lowest, zero = (body.number(x, q.dtype) for x in (float("-inf"), 0.0))
            empty = body.op("Equal", top, lowest, dtype=DType.BOOL)
            weights = body.op("Where", empty, zero, weights, dtype=q.dtype)
        out = weigh(body, h, weights, body.cast(v, q.dtype))
        if flat:
            out = merge_heads(body, out, h.batch, h.queries, h.heads * h.value_size)
        stages, asked = (raw, limited, logits, weights), node.integer("qk_matmul_output_mode", 0)
        if not 0 <= asked < len(stages):
            raise UserError(f"qk_matmul_output_mode {asked} is none of 0 to {len(stages) - 1}")
        return out, k, v, stages[asked]

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        q, k, v = normal(rng, 2, 4, 3, 8), normal(rng, 2, 2, 5, 8), normal(rng, 2, 2, 5, 8)
        past = normal(rng, 2, 2, 2, 8), normal(rng, 2, 2, 2, 8)

        def case(*inputs: HostValue, outputs: int = 1, opset: int = 23, **attrs: Any) -> HostSample:
            return HostSample("Attention", inputs, attrs, outputs=outputs, opset=opset)

        yield case(q, k, v)
        yield case(q, k, v, normal(rng, 3, 5), scale=0.3, softcap=2.0)
        yield case(q, k, v, rng.random((2, 1, 3, 5)) < 0.7, is_causal=0)
        three = normal(rng, 2, 3, 8), normal(rng, 2, 3, 4), normal(rng, 2, 3, 4)
        yield case(*three, q_num_heads=4, kv_num_heads=2, is_causal=1)
        yield case(q, k, v, None, *past, is_causal=1, outputs=3)


def _heads(node: OnnxNode) -> tuple[Heads, int]:
    """The extents, and how many earlier keys there are."""
    query, key, value = (node.input(i).shape for i in range(3))
    if len({len(query), len(key), len(value)}) != 1 or len(query) not in (3, 4):
        raise UserError("q, k and v need the same axes, 3 or 4")
    if len(query) == 3:
        heads, kv_heads = node.integer("q_num_heads", 0), node.integer("kv_num_heads", 0)
        if heads < 1 or kv_heads < 1 or query[2] % heads or key[2] % kv_heads or value[2] % kv_heads:
            raise UserError(f"the last axes do not make {heads} and {kv_heads} heads")
        queries, keys, size, value_size = query[1], key[1], query[2] // heads, value[2] // kv_heads
    else:
        heads, kv_heads, queries, keys = query[1], key[1], query[2], key[2]
        size, value_size = query[3], value[3]
    if not kv_heads or heads % kv_heads or not size:
        raise UserError(f"{heads} heads cannot share {kv_heads}, or have no elements")
    earlier = node.input(4).shape[2] if node.has(4) else 0
    return Heads(query[0], heads, kv_heads, queries, earlier + keys, size, value_size), earlier


def _masked(node: OnnxNode, body: CompositeBody, h: Heads, logits: Term, earlier: int) -> tuple[Term, bool]:
    """The logits, infinitely low where a key is excluded; and whether a query may have no keys at all."""
    key, present = places(body, h.keys, 1, 1, 1, -1), body.get(6)
    at = _queries_at(body, h, earlier)
    if present is not None:
        present = body.reshape(present, h.batch, 1, 1, 1)
        at = at + present - h.queries
    left, right = node.integer("left_window_size", -1), node.integer("right_window_size", -1)
    allowed: list[Term] = []
    if node.integer("is_causal", 0):
        allowed.append(at >= key)
    if left >= 0:
        allowed.append(key + left >= at)
    if right >= 0:
        allowed.append(at + right >= key)
    if present is not None:
        allowed.append(key < present)
    lowest = body.number(float("-inf"), logits.dtype)
    if node.has(3):
        mask = _filled_up(node, body, h)
        if mask.dtype is DType.BOOL:
            allowed.append(mask)
        else:
            logits = logits + mask
            allowed.append(lowest < mask)
    if not allowed:
        return logits, False
    both = allowed[0]
    for term in allowed[1:]:
        both = both & term
    # By their order alone, a query sees at least the key of its own token.
    empty = node.has(3) or present is not None or left >= 0 or right >= 0
    return body.op("Where", both, logits, lowest, dtype=logits.dtype), empty


def _queries_at(body: CompositeBody, h: Heads, earlier: int) -> Term:
    """The places of queries among the keys."""
    if is_open((h.queries, earlier)):
        return places(body, h.queries, 1, 1, -1, 1) + earlier
    return body.constant((np.arange(h.queries, dtype=np.int64) + earlier).reshape(1, 1, -1, 1))


def _filled_up(node: OnnxNode, body: CompositeBody, h: Heads) -> Term:
    """The mask; what it is too short for is excluded."""
    mask, shape = body[3], node.input(3).shape
    rest = (*shape[:-1], h.keys - shape[-1])
    if not rest[-1]:
        return mask
    fill = False if mask.dtype is DType.BOOL else float("-inf")
    return body.concat(len(shape) - 1, mask, body.filled(fill, mask.dtype, *rest))

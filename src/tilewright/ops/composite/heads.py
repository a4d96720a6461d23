"""What the attention operators have in common: heads, masks, and softmax(q kᵀ) v in between.

They are composites: MatMuls, softmax and masks are nodes of their own, which are grouped with what is around them.
"""

import math
from dataclasses import dataclass

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.compositeop import CompositeBody, Term
from tilewright.support.sizes import is_open


@dataclass(frozen=True, slots=True)
class Heads:
    """The extents of one attention: q[batch, heads, queries, size], k[batch, kv_heads, keys, size] and
    v[batch, kv_heads, keys, value_size]."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    size: int
    value_size: int


def split_heads(body: CompositeBody, x: Term, batch: int, length: int, heads: int, size: int) -> Term:
    """[batch, length, heads · size] as [batch, heads, length, size]."""
    return body.transpose(body.reshape(x, batch, length, heads, size), 0, 2, 1, 3)


def merge_heads(body: CompositeBody, x: Term, batch: int, length: int, width: int) -> Term:
    """The other way round."""
    return body.reshape(body.transpose(x, 0, 2, 1, 3), batch, length, width)


def scores(body: CompositeBody, h: Heads, q: Term, k: Term, scale: float) -> Term:
    """q kᵀ · scale, [batch, heads, queries, keys]. Heads that share keys are rows of one MatMul."""
    shared = h.heads // h.kv_heads
    rows = q if shared == 1 else body.reshape(q, h.batch, h.kv_heads, shared * h.queries, h.size)
    product = body.op("MatMul", rows * scale, body.transpose(k, 0, 1, 3, 2))
    if shared > 1:
        product = body.reshape(product, h.batch, h.heads, h.queries, h.keys)
    return product


def capped(body: CompositeBody, logits: Term, most: float) -> Term:
    """Logits brought smoothly into -most … most, if that is not 0."""
    return body.op("Tanh", logits / most) * most if most else logits


def weigh(body: CompositeBody, h: Heads, weights: Term, v: Term) -> Term:
    """weights · v, [batch, heads, queries, value_size]."""
    shared = h.heads // h.kv_heads
    if shared == 1:
        return body.op("MatMul", weights, v)
    rows = body.reshape(weights, h.batch, h.kv_heads, shared * h.queries, h.keys)
    return body.reshape(body.op("MatMul", rows, v), h.batch, h.heads, h.queries, h.value_size)


def softmax_over_keys(body: CompositeBody, h: Heads, logits: Term, sink: Term | None = None) -> Term:
    """Along the keys. A sink is a further logit per head that takes its share and is then dropped."""
    if sink is None:
        return body.op("Softmax", logits)
    column = body.op(
        "Expand", body.reshape(sink, 1, h.heads, 1, 1), body.integers(h.batch, h.heads, h.queries, 1)
    )
    return body.split(body.op("Softmax", body.concat(3, logits, column)), 3, h.keys, 1)[0]


def places(body: CompositeBody, count: int, *shape: int) -> Term:
    """0, 1, … as i64, in this shape."""
    if is_open((count,)):
        return body.reshape(body.places(count), *shape)
    return body.constant(np.arange(count, dtype=np.int64).reshape(shape))


def before(body: CompositeBody, h: Heads, past: int) -> Term:
    """Which keys a query may see if it follows `past` of them: [queries, keys], bool."""
    return places(body, h.queries, -1, 1) + past >= places(body, h.keys, 1, -1)


def penalty(body: CompositeBody, allowed: Term, amount: float, dtype: DType) -> Term:
    """0 where it is allowed, otherwise the amount: what is added to logits."""
    zero, filled = (body.number(v, dtype) for v in (0.0, amount))
    return body.op("Where", allowed, zero, filled, dtype=dtype)


def default_scale(given: float, size: int) -> float:
    """com.microsoft takes a scale of 0 for the usual one."""
    return given or 1 / math.sqrt(size)

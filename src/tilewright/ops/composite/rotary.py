"""RotaryEmbedding of com.microsoft. ONNX's own of the same name, which this becomes, is a function."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.composite.heads import places
from tilewright.ops.compositeop import Composite, CompositeBody, Term
from tilewright.ops.core.elementwise import normal
from tilewright.ops.hostop import HostSample
from tilewright.ops.opdef import OnnxNode
from tilewright.support.errors import UserError

_DOMAIN = "com.microsoft"


class RotaryEmbedding(Composite):
    """Pairs of elements of each head are rotated by angles that grow with the token's position: a position per token,
    or that of the first one.
    """

    onnx = ("com.microsoft.RotaryEmbedding",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        x, angles, rank = node.input(0).shape, node.input(2).shape[-1], node.input(0).rank
        if rank not in (3, 4) or angles < 1:
            raise UserError("the input needs a batch, tokens and heads, and there must be an angle")
        batch, length = x[0], x[2 if rank == 4 else 1]
        at = body.cast(body[1], DType.I64)
        if node.input(1).rank < 2:
            first = body.reshape(at, 1, 1) + places(body, length, 1, -1)
            at = body.op("Expand", first, body.integers(batch, length))
        heads = node.integer("num_heads", 0) or x[2] // (2 * angles)
        own: dict[str, Any] = {
            "interleaved": node.integer("interleaved", 0),
            "rotary_embedding_dim": node.integer("rotary_embedding_dim", 0),
            **({"num_heads": heads} if rank == 3 else {}),
        }
        return (body.op("RotaryEmbedding", body[0], body[2], body[3], at, **own),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        name, x, split = "RotaryEmbedding", normal(rng, 2, 3, 8), normal(rng, 2, 2, 3, 4)
        cos, sin = normal(rng, 5, 2), normal(rng, 5, 2)
        first, each = np.array([1], np.int64), np.array([[0, 1, 2], [4, 0, 3]], np.int64)
        yield HostSample(name, (x, first, cos, sin), domain=_DOMAIN)
        yield HostSample(name, (x, each, cos, sin), {"interleaved": 1}, domain=_DOMAIN)
        yield HostSample(name, (split, each, cos, sin), domain=_DOMAIN)
        part = {"num_heads": 2, "rotary_embedding_dim": 2}
        yield HostSample(name, (x, each, cos[:, :1].copy(), sin[:, :1].copy()), part, domain=_DOMAIN)

"""Normalisations of com.microsoft: of sums that end residual blocks, of embeddings, and of groups of channels."""

from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.axes import accumulator, normal_axis
from tilewright.ops.compositeop import Composite, CompositeBody, Term
from tilewright.ops.core.elementwise import normal
from tilewright.ops.hostop import HostSample
from tilewright.ops.opdef import OnnxNode
from tilewright.support.errors import UserError

_DOMAIN = "com.microsoft"


def _inverse_root(body: CompositeBody, x: Term, axes: Sequence[int], epsilon: float) -> Term:
    """1 / sqrt(mean square + epsilon), in f32 for half precision."""
    wide = body.cast(x, accumulator(x.dtype))
    mean = body.op("ReduceMean", wide * wide, body.integers(*axes))
    return body.op("Reciprocal", body.op("Sqrt", mean + epsilon))


def _sum(body: CompositeBody, *terms: Term | None) -> Term:
    """Of those that are there."""
    first, *rest = [t for t in terms if t is not None]
    for t in rest:
        first = first + t
    return first


class SimplifiedLayerNormalization(Composite):
    """Root mean square normalisation; then the inverse of that root. onnxruntime writes it into ONNX's own domain."""

    onnx = ("SimplifiedLayerNormalization",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        x, epsilon, rank = body[0], node.real("epsilon", 1e-5), node.input(0).rank
        axis = normal_axis(node.integer("axis", -1), rank)
        y = body.op("RMSNormalization", x, body[1], axis=axis, epsilon=epsilon, dtype=body[1].dtype)
        root = _inverse_root(body, x, range(axis, rank), epsilon) if node.outputs > 1 else None
        return y, root

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x, gain = normal(rng, 2, 3, 4), normal(rng, 4)
        yield HostSample("SimplifiedLayerNormalization", (x, gain), opset=17)
        own = {"axis": 1, "epsilon": 0.1}
        yield HostSample("SimplifiedLayerNormalization", (x, normal(rng, 3, 4)), own, outputs=2, opset=17)


class SkipLayerNormalization(Composite):
    """Layer normalisation of x + skip + bias, its mean and the inverse of its deviation; then the sum."""

    onnx = ("com.microsoft.SkipLayerNormalization",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        total = _sum(body, body[0], body[1], body.get(4))
        operands, epsilon = (total, body[2], body.get(3)), node.real("epsilon", 1e-12)
        outputs = body.ops("LayerNormalization", min(node.outputs, 3), *operands, axis=-1, epsilon=epsilon)
        return *outputs, *[None] * (3 - len(outputs)), total

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        name, x, skip = "SkipLayerNormalization", normal(rng, 2, 3, 4), normal(rng, 2, 3, 4)
        gain, beta, bias = (normal(rng, 4) for _ in range(3))
        yield HostSample(name, (x, skip, gain, beta, bias), {"epsilon": 0.01}, domain=_DOMAIN)
        yield HostSample(name, (x, skip, gain, None, bias), domain=_DOMAIN)
        yield HostSample(name, (x, skip[:1], gain, beta), domain=_DOMAIN)
        yield HostSample(name, (x, skip[0], gain), outputs=4, domain=_DOMAIN)


class SkipSimplifiedLayerNormalization(Composite):
    """Root mean square normalisation of x + skip + bias, the inverse of that root (third); then the sum."""

    onnx = ("com.microsoft.SkipSimplifiedLayerNormalization",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        total, epsilon = _sum(body, body[0], body[1], body.get(3)), node.real("epsilon", 1e-12)
        y = body.op("RMSNormalization", total, body[2], axis=-1, epsilon=epsilon)
        root = _inverse_root(body, total, (-1,), epsilon) if node.outputs > 2 else None
        return y, None, root, total

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        name, x, skip = "SkipSimplifiedLayerNormalization", normal(rng, 2, 3, 4), normal(rng, 2, 3, 4)
        gain, bias = normal(rng, 4), normal(rng, 4)
        yield HostSample(name, (x, skip, gain), {"epsilon": 0.01}, domain=_DOMAIN)
        yield HostSample(name, (x, skip, gain, bias), domain=_DOMAIN)


class EmbedLayerNormalization(Composite):
    """Layer normalisation of the sum of word, position and segment embeddings; then how many tokens the mask leaves of
    each sequence, and the sum.
    """

    onnx = ("com.microsoft.EmbedLayerNormalization",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        batch, length = node.input(0).shape
        given, segments, kinds = body.get(8), body.get(1), body.get(4)
        at = body.places(length) if given is None else given
        words, positions = (body.op("Gather", table, i) for table, i in ((body[2], body[0]), (body[3], at)))
        kind = None if segments is None or kinds is None else body.op("Gather", kinds, segments)
        total, epsilon = _sum(body, words, positions, kind), node.real("epsilon", 1e-12)
        y = body.op("LayerNormalization", total, body[5], body[6], axis=-1, epsilon=epsilon)
        mask = body.get(7)
        if mask is None:
            count = body.filled(0, DType.I32, batch)
        else:
            count = body.op("ReduceSum", mask, body.integers(1), keepdims=0)
        return y, count, total

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        name = "EmbedLayerNormalization"
        ids, kinds = (rng.integers(0, n, (2, 3)).astype(np.int32) for n in (5, 2))
        words, places, segments = normal(rng, 5, 4), normal(rng, 6, 4), normal(rng, 2, 4)
        gain, beta, mask = normal(rng, 4), normal(rng, 4), np.array([[1, 1, 0], [1, 1, 1]], np.int32)
        at = np.array([[2, 1, 0], [5, 0, 3]], np.int32)
        whole = (ids, kinds, words, places, segments, gain, beta)
        yield HostSample(name, (*whole, mask), outputs=2, domain=_DOMAIN)
        yield HostSample(name, (*whole, mask, at), {"epsilon": 0.1}, outputs=3, domain=_DOMAIN)
        yield HostSample(name, (ids, None, words, places, None, gain, beta), outputs=2, domain=_DOMAIN)


class GroupNorm(Composite):
    """Group normalisation of x[n, …, c] (x[n, c, …] without `channels_last`), then Swish if `activation`. Before it a
    skip connection and a bias may be added; that sum is the second output.
    """

    onnx = ("com.microsoft.GroupNorm", "com.microsoft.SkipGroupNorm")

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        rank, last = node.input(0).rank, bool(node.integer("channels_last", 1))
        if rank < 3:
            raise UserError("the images need a batch, a place and a channel")
        total, skip, bias = body[0], body.get(3), body.get(4)
        if skip is not None:
            shape, lead = node.input(0).shape, node.input(3).rank  # [n, c], or as x, with places of extent 1
            ones = (1,) * (rank - 2)
            at = (shape[0], *ones, shape[-1]) if last else (shape[0], shape[1], *ones)
            total = total + (body.reshape(skip, *at) if lead == 2 else skip)
        if bias is not None:
            total = total + (bias if last else body.reshape(bias, -1, *[1] * (rank - 2)))
        x = body.transpose(total, 0, rank - 1, *range(1, rank - 1)) if last else total
        wide = body.cast(x, body[1].dtype)
        groups, epsilon = node.integer("groups", 1), node.real("epsilon", 1e-5)
        y = body.op("GroupNormalization", wide, body[1], body[2], num_groups=groups, epsilon=epsilon)
        y = body.cast(y, x.dtype)
        if node.integer("activation", 0):
            y = y * body.op("Sigmoid", y)
        return (body.transpose(y, 0, *range(2, rank), 1) if last else y), total

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x, gain, beta = normal(rng, 2, 3, 2, 4), normal(rng, 4), normal(rng, 4)
        swish, first = {"groups": 2, "activation": 1}, {"groups": 2, "activation": 0, "channels_last": 0}
        yield HostSample("GroupNorm", (x, gain, beta), swish, domain=_DOMAIN)
        yield HostSample("GroupNorm", (x.transpose(0, 3, 1, 2).copy(), gain, beta), first, domain=_DOMAIN)
        skipped = (x, gain, beta, normal(rng, 2, 4), normal(rng, 4))
        yield HostSample("SkipGroupNorm", skipped, swish, outputs=2, domain=_DOMAIN)

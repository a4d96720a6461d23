"""MatMuls of com.microsoft: of transposed matrices, scaled; convolutions with an activation; and distances."""

from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.ops.compositeop import Composite, CompositeBody, Term
from tilewright.ops.contrib.activation import activate
from tilewright.ops.core.elementwise import normal
from tilewright.ops.hostop import HostSample
from tilewright.ops.opdef import OnnxNode
from tilewright.support.errors import UserError

_DOMAIN = "com.microsoft"


def _operand(node: OnnxNode, body: CompositeBody, i: int, side: str) -> Term:
    """A matrix operand with its axes in the order batch, rows, columns."""
    rank = node.input(i).rank
    order = list(range(rank))
    if node.integer(f"transBatch{side}", 0) and rank > 2:  # the rows come before the batch
        order = [*order[1:-1], 0, order[-1]]
    if node.integer(f"trans{side}", 0) and rank > 1:
        order[-2:] = order[-1], order[-2]
    return body[i] if order == sorted(order) else body.transpose(body[i], *order)


class FusedMatMul(Composite):
    """alpha · A' B', where A' and B' may have their axes in another order; then an activation, if there is one."""

    onnx = (
        "com.microsoft.FusedMatMul",
        "com.microsoft.TransposeMatMul",
        "com.microsoft.FusedMatMulActivation",
    )

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        product = body.op("MatMul", _operand(node, body, 0, "A"), _operand(node, body, 1, "B"))
        alpha = node.real("alpha", 1.0)
        return (_activated(node, body, product if alpha == 1 else product * alpha),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        a, b = normal(rng, 2, 3, 4), normal(rng, 2, 4, 5)
        transposed = {"transA": 1, "transB": 1, "alpha": 0.5}
        for name in ("FusedMatMul", "TransposeMatMul"):
            yield HostSample(name, (a, b), domain=_DOMAIN)
            yield HostSample(
                name, (a.swapaxes(1, 2).copy(), b.swapaxes(1, 2).copy()), transposed, domain=_DOMAIN
            )
        rows, columns = normal(rng, 3, 2, 4), normal(rng, 4, 2, 5)
        yield HostSample("FusedMatMul", (rows, b), {"transBatchA": 1}, domain=_DOMAIN)
        yield HostSample("FusedMatMul", (a, columns), {"transBatchB": 1}, domain=_DOMAIN)
        both = {"transBatchA": 1, "transA": 1, "transBatchB": 1, "transB": 1}
        yield HostSample("FusedMatMul", (normal(rng, 4, 2, 3), normal(rng, 5, 2, 4)), both, domain=_DOMAIN)
        yield HostSample("FusedMatMul", (normal(rng, 4), normal(rng, 4, 2)), {"transA": 1}, domain=_DOMAIN)
        relu = {"transB": 1, "activation": "Relu"}
        yield HostSample(
            "FusedMatMulActivation", (normal(rng, 2, 3), normal(rng, 4, 3)), relu, domain=_DOMAIN
        )


def _activated(node: OnnxNode, body: CompositeBody, x: Term) -> Term:
    parameters = (node.attrs.get(f"activation_{p}") for p in ("alpha", "beta", "gamma"))
    return activate(body, x, node.text("activation", ""), [float(p) for p in parameters if p is not None])


class FusedGemm(Composite):
    """Gemm, then an activation."""

    onnx = ("com.microsoft.FusedGemm",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        own = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
        return (_activated(node, body, body.op("Gemm", body[0], body[1], body.get(2), **own)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        a, b, c = normal(rng, 2, 5), normal(rng, 3, 5), normal(rng, 3)
        yield HostSample("FusedGemm", (a, b, c), {"transB": 1, "activation": "Relu"}, domain=_DOMAIN)
        leaky = {"alpha": 0.5, "activation": "LeakyRelu", "activation_alpha": 0.2}
        yield HostSample("FusedGemm", (a, b.T.copy()), leaky, domain=_DOMAIN)


class GemmFastGelu(Composite):
    """A MatMul with a bias, then the usual approximation of Gelu."""

    onnx = ("com.microsoft.GemmFastGelu",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        product, bias = body.op("MatMul", body[0], body[1]), body.get(2)
        return (body.op("Gelu", product if bias is None else product + bias, approximate="tanh"),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        a, b = normal(rng, 2, 3, 4), normal(rng, 4, 5)
        yield HostSample("GemmFastGelu", (a, b, normal(rng, 5)), domain=_DOMAIN)
        yield HostSample("GemmFastGelu", (a, b), domain=_DOMAIN)


class FusedConv(Composite):
    """A convolution, to which another tensor is added, and then an activation."""

    onnx = ("com.microsoft.FusedConv",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        own = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
        y = body.op("Conv", body[0], body[1], body.get(2), **own)
        z = body.get(3)
        parameters = [float(p) for p in node.attrs.get("activation_params", ())]
        return (activate(body, y if z is None else y + z, node.text("activation", ""), parameters),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x, w, bias = normal(rng, 1, 2, 5, 5), normal(rng, 3, 2, 3, 3), normal(rng, 3)
        z = normal(rng, 1, 3, 5, 5)
        same = {"pads": [1, 1, 1, 1], "activation": "Relu"}
        yield HostSample("FusedConv", (x, w, bias, z), same, domain=_DOMAIN)
        yield HostSample("FusedConv", (x, w, bias), {"activation": "Tanh"}, domain=_DOMAIN)
        clip = {"activation": "Clip", "activation_params": [-0.5, 0.5]}
        yield HostSample("FusedConv", (x, w), clip, domain=_DOMAIN)
        leaky = {"activation": "LeakyRelu", "activation_params": [0.1], "strides": [2, 2]}
        yield HostSample("FusedConv", (x, w, bias), leaky, domain=_DOMAIN)


class NhwcConv(Composite):
    """A convolution of x[n, …, c] with weights [o, kernel…, c / group]; the output has its channels last, too."""

    onnx = ("com.microsoft.NhwcConv",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        rank = node.input(0).rank
        first, last = (0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)
        x, w = (body.transpose(body[i], *first) for i in (0, 1))
        return (body.transpose(body.op("Conv", x, w, body.get(2), **node.attrs), *last),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x, w = normal(rng, 1, 5, 4, 2), normal(rng, 3, 3, 3, 2)
        yield HostSample("NhwcConv", (x, w, normal(rng, 3)), {"strides": [2, 1]}, domain=_DOMAIN)


class CDist(Composite):
    """The distance of each row of A from each row of B, or its square."""

    onnx = ("com.microsoft.CDist",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        metric = node.text("metric", "sqeuclidean")
        if metric not in ("euclidean", "sqeuclidean"):
            raise UserError(f"a metric {metric!r} is not supported")
        rows, columns = (body.op("Unsqueeze", body[i], body.integers(1 - i)) for i in (0, 1))
        square = body.op("ReduceSumSquare", rows - columns, body.integers(2), keepdims=0)
        return (body.op("Sqrt", square) if metric == "euclidean" else square,)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        for metric in ("euclidean", "sqeuclidean"):
            yield HostSample(
                "CDist", (normal(rng, 3, 4), normal(rng, 2, 4)), {"metric": metric}, domain=_DOMAIN
            )

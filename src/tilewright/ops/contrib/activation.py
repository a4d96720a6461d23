"""Activations of com.microsoft, most of them with the bias of the layer before."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tilewright.ops.axes import normal_axis
from tilewright.ops.compositeop import Composite, CompositeBody, Term
from tilewright.ops.core.elementwise import normal
from tilewright.ops.hostop import HostSample
from tilewright.ops.opdef import OnnxNode
from tilewright.support.errors import UserError

_DOMAIN = "com.microsoft"

# How an operator spells the activation that is fused into it, and the names of its parameters.
_FUSED: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "HardSwish": (),
    "Softplus": (),
    "Softsign": (),
    "Elu": ("alpha",),
    "LeakyRelu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
}


def activate(body: CompositeBody, x: Term, name: str, given: Sequence[float]) -> Term:
    """The activation that is fused into another operator, with the parameters that are given, in its order."""
    if not name:
        return x
    if name == "Clip":
        low, high = (body.number(v, x.dtype) for v in given)
        return body.op("Clip", x, low, high)
    if name not in _FUSED:
        raise UserError(f"an activation {name!r} is not supported")
    attrs: dict[str, Any] = dict(zip(_FUSED[name], given, strict=False))
    return body.op(name, x, **attrs)


class ContribGelu(Composite):
    """x times the normal distribution function of x, after a bias is added."""

    onnx = ("com.microsoft.Gelu", "com.microsoft.BiasGelu", "com.microsoft.FastGelu")

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        bias = body.get(1)
        x = body[0] if bias is None else body[0] + bias
        return (body.op("Gelu", x, approximate="tanh" if node.op_type == "FastGelu" else "none"),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x, bias = normal(rng, 2, 3, 5), normal(rng, 5)
        yield HostSample("Gelu", (x,), domain=_DOMAIN)
        yield HostSample("BiasGelu", (x, bias), domain=_DOMAIN)
        yield HostSample("FastGelu", (x, bias), domain=_DOMAIN)
        yield HostSample("FastGelu", (x,), domain=_DOMAIN)


class QuickGelu(Composite):
    """x · sigmoid(alpha · x)."""

    onnx = ("com.microsoft.QuickGelu",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        x = body[0]
        return (x * body.op("Sigmoid", x * node.real("alpha", 1.702)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        yield HostSample("QuickGelu", (normal(rng, 3, 4),), domain=_DOMAIN)
        yield HostSample("QuickGelu", (normal(rng, 3, 4),), {"alpha": 1.0}, domain=_DOMAIN)


class BiasSplitGelu(Composite):
    """With a bias added: the first half of the last axis times the Gelu of the second."""

    onnx = ("com.microsoft.BiasSplitGelu",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        extent = node.input(0).shape[-1]
        value, gate = body.split(body[0] + body[1], -1, extent // 2, extent - extent // 2)
        return (value * body.op("Gelu", gate),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        yield HostSample("BiasSplitGelu", (normal(rng, 2, 3, 6), normal(rng, 6)), domain=_DOMAIN)


class BiasAdd(Composite):
    """x + bias + skip."""

    onnx = ("com.microsoft.BiasAdd",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        return (body[0] + body[1] + body[2],)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = normal(rng, 2, 3, 4)
        yield HostSample("BiasAdd", (x, normal(rng, 4), normal(rng, 2, 3, 4)), domain=_DOMAIN)


class BiasSoftmax(Composite):
    """Softmax of x + bias over all axes from `axis` on, as one."""

    onnx = ("com.microsoft.BiasSoftmax",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        shape = node.input(0).shape
        axis = normal_axis(node.integer("axis", 1), len(shape))
        rows = body.reshape(body[0] + body[1], *shape[:axis], math.prod(shape[axis:]))
        return (body.reshape(body.op("Softmax", rows), *shape),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x, bias = normal(rng, 2, 3, 4), normal(rng, 2, 1, 4)
        yield HostSample("BiasSoftmax", (x, bias), {"axis": 2, "is_inner_broadcast": 1}, domain=_DOMAIN)
        yield HostSample("BiasSoftmax", (x, bias), {"is_inner_broadcast": 1}, domain=_DOMAIN)

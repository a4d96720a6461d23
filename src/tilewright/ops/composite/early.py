"""Operators that ONNX tried out and dropped, in its own domain: old models still have them."""

from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.ops.axes import narrow
from tilewright.ops.compositeop import Composite, CompositeBody, Term
from tilewright.ops.core.elementwise import normal
from tilewright.ops.hostop import HostSample
from tilewright.ops.opdef import OnnxNode
from tilewright.support.errors import UserError

_OPSET = 8


class EarlyAffine(Composite):
    """alpha · x + beta; Scale has no beta, and calls alpha its scale."""

    onnx = ("Affine", "Scale")

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        if node.op_type == "Scale":
            return (body[0] * node.real("scale", 1.0),)
        return (body[0] * node.real("alpha", 1.0) + node.real("beta", 0.0),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        yield HostSample("Affine", (normal(rng, 2, 3),), {"alpha": 0.5, "beta": 2.0}, opset=_OPSET)
        yield HostSample("Scale", (normal(rng, 2, 3),), {"scale": 0.5}, opset=_OPSET)


class ImageScaler(Composite):
    """scale · x[n, c, h, w] + bias[c]."""

    onnx = ("ImageScaler",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        x, bias = body[0], narrow(np.array(node.attrs.get("bias", [])), body[0].dtype)
        if node.input(0).rank != 4 or bias.shape != (node.input(0).shape[1],):
            raise UserError(f"{bias.size} numbers are not one for each channel of an image")
        return (x * node.real("scale", 1.0) + body.constant(bias.reshape(-1, 1, 1)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        own = {"scale": 0.5, "bias": [1.0, -2.0]}
        yield HostSample("ImageScaler", (normal(rng, 1, 2, 3, 3),), own, opset=_OPSET)


class Crop(Composite):
    """The images within a border (left, top, right, bottom); or a piece of `scale` (height, width) behind it."""

    onnx = ("Crop",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        border, piece, (_, _, height, width) = (
            node.integers("border"),
            node.integers("scale"),
            node.input(0).shape,
        )
        if border is None or len(border) != 4 or (piece is not None and len(piece) != 2):
            raise UserError("a border has four sides, and a piece two")
        left, top, right, bottom = border
        rows, columns = (height - top - bottom, width - left - right) if piece is None else piece
        if min(left, top, rows, columns) < 0 or top + rows > height or left + columns > width:
            raise UserError(f"the piece does not lie within images of {height} × {width}")
        bounds = body.integers(top, left), body.integers(top + rows, left + columns), body.integers(2, 3)
        return (body.op("Slice", body[0], *bounds),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = normal(rng, 1, 2, 5, 6)
        yield HostSample("Crop", (x,), {"border": [1, 0, 2, 1]}, opset=_OPSET)
        yield HostSample("Crop", (x,), {"border": [1, 2, 0, 0], "scale": [2, 3]}, opset=_OPSET)


class EarlyScaledTanh(Composite):
    """alpha · f(beta · x), where f is tanh; or softplus for ParametricSoftplus."""

    onnx = ("ScaledTanh", "ParametricSoftplus")

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        function = "Tanh" if node.op_type == "ScaledTanh" else "Softplus"
        return (body.op(function, body[0] * node.real("beta", 1.0)) * node.real("alpha", 1.0),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        for name in cls.onnx:
            yield HostSample(name, (normal(rng, 2, 3),), {"alpha": 2.0, "beta": 0.5}, opset=_OPSET)

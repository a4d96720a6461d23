"""Operators of com.microsoft that ONNX took over, or that differ from its own in how they are asked for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.compositeop import Composite, CompositeBody, Term
from tilewright.ops.core.elementwise import normal
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import OnnxNode

_DOMAIN = "com.microsoft"


class ContribTrilu(Composite):
    """The upper or lower triangle of matrices."""

    onnx = ("com.microsoft.Trilu",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        return (body.op("Trilu", body[0], body.get(1), upper=node.integer("upper", 1)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = normal(rng, 2, 3, 4)
        yield HostSample("Trilu", (x,), domain=_DOMAIN)
        yield HostSample("Trilu", (x, np.array(1, np.int64)), {"upper": 0}, domain=_DOMAIN)


class ExpandDims(Composite):
    """A new axis of extent 1."""

    onnx = ("com.microsoft.ExpandDims",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        axis = body.reshape(body.cast(body[1], DType.I64), 1)
        return (body.op("Unsqueeze", body[0], axis),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        yield HostSample("ExpandDims", (normal(rng, 2, 3), np.array(1, np.int32)), domain=_DOMAIN)
        yield HostSample("ExpandDims", (normal(rng, 2, 3), np.array(-1, np.int32)), domain=_DOMAIN)


class ContribRange(Composite):
    """From `start` up to `limit`, by 1 if no step is given."""

    onnx = ("com.microsoft.Range",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        step = body.get(2)
        step = body.number(1, body[0].dtype) if step is None else step
        return (body.op("Range", *(body.reshape(t) for t in (body[0], body[1], step))),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        bounds = np.array(1, np.int64), np.array([6], np.int64)
        yield HostSample("Range", bounds, domain=_DOMAIN)
        yield HostSample("Range", (*bounds, np.array(2, np.int64)), domain=_DOMAIN)


class ContribGatherND(Composite):
    """Slices at places that the last axis of the indices names."""

    onnx = ("com.microsoft.GatherND",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        return (body.op("GatherND", body[0], body.cast(body[1], DType.I64)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        at = np.array([[0, 1], [1, -1]], np.int32)
        yield HostSample("GatherND", (normal(rng, 2, 3, 4), at), domain=_DOMAIN)


class ContribGridSample(Composite):
    """Images sampled at places. The modes have the names of opset 16 here."""

    onnx = ("com.microsoft.GridSample",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        mode = node.text("mode", "bilinear")
        attrs: dict[str, Any] = {
            "mode": {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode),
            "padding_mode": node.text("padding_mode", "zeros"),
            "align_corners": node.integer("align_corners", 0),
        }
        return (body.op("GridSample", body[0], body[1], **attrs),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x, grid = normal(rng, 1, 2, 3, 4), np.clip(normal(rng, 1, 2, 3, 2), -1, 1)
        for mode in ("bilinear", "nearest"):
            yield HostSample("GridSample", (x, grid), {"mode": mode, "align_corners": 1}, domain=_DOMAIN)


class BiasDropout(Composite):
    """x + bias, and a residual if there is one; then a mask. Nothing is dropped at inference."""

    onnx = ("com.microsoft.BiasDropout",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        total, residual = body[0] + body[1], body.get(2)
        attrs = {k: v for k, v in node.attrs.items() if k == "seed"}
        kept, mask = body.ops("Dropout", 2, total, body.get(3), body.get(4), **attrs)
        return kept if residual is None else kept + residual, mask

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x, bias = normal(rng, 2, 3), normal(rng, 3)
        yield HostSample("BiasDropout", (x, bias, normal(rng, 2, 3)), outputs=2, domain=_DOMAIN)
        yield HostSample("BiasDropout", (x, bias), domain=_DOMAIN)


@dataclass(frozen=True, slots=True)
class Inverse(HostOp):
    """The inverse of each matrix."""

    onnx = ("com.microsoft.Inverse",)
    why = "matrices are inverted by LAPACK"

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = tensor(inputs[0], "input 0")
        wide = x if x.dtype == np.float64 else x.astype(np.float32)
        return (np.linalg.inv(wide).astype(x.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = normal(rng, 2, 3, 3) + 3 * np.eye(3, dtype=np.float32)
        yield HostSample("Inverse", (x,), domain=_DOMAIN)
        yield HostSample("Inverse", (x[0].astype(np.float64),), domain=_DOMAIN)

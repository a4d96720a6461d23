"""Linear models (domain ai.onnx.ml)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.ml.scores import class_labels, logistic, post_transform, transformed
from tilewright.ops.opdef import OnnxNode
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_ML = "ai.onnx.ml"
_WHY = "it is part of classic models, which the host runs"


@dataclass(frozen=True, slots=True, eq=False)
class LinearRegressor(HostOp):
    onnx = ("ai.onnx.ml.LinearRegressor",)
    why = _WHY
    coefficients: Array
    intercepts: Array
    targets: int
    transform: str

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(*_line(node), node.integer("targets", 1), post_transform(node))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        scores = _scores(inputs[0], self.coefficients, self.intercepts, self.targets)
        return (transformed(scores, self.transform),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = rng.standard_normal((3, 2)).astype(np.float32)
        one: dict[str, Any] = {"coefficients": [0.5, -2.0], "intercepts": [0.25]}
        yield HostSample("LinearRegressor", (x,), one, domain=_ML)
        several: dict[str, Any] = {"coefficients": [0.5, -2.0, 0.3, 0.7], "targets": 2}
        yield HostSample("LinearRegressor", (x,), several, domain=_ML)
        for post in ("SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
            attrs = {**several, "intercepts": [0.25, -1.0], "post_transform": post}
            yield HostSample("LinearRegressor", (x,), attrs, domain=_ML)


@dataclass(frozen=True, slots=True, eq=False)
class LinearClassifier(HostOp):
    """The class with the highest score; two classes may share one score, that of the second."""

    onnx = ("ai.onnx.ml.LinearClassifier",)
    why = _WHY
    coefficients: Array
    intercepts: Array
    labels: Array
    transform: str

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(*_line(node), class_labels(node, "classlabels_ints"), post_transform(node))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        scores = _scores(inputs[0], self.coefficients, self.intercepts, self.intercepts.size)
        count = scores.shape[1]
        labels = self.labels if self.labels.size else np.arange(max(2, count))
        if len(labels) != max(2, count):
            raise UserError(f"{len(labels)} labels for {count} scores")
        if count > 1:
            return labels[scores.argmax(1)], transformed(scores, self.transform)
        chosen = labels[(scores[:, 0] > 0).astype(np.int64)]
        if not self.labels.size:
            return chosen, scores
        if self.transform == "LOGISTIC":
            return chosen, logistic(np.concatenate([-scores, scores], 1))
        return chosen, np.concatenate([1 - scores, scores], 1)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        def sample(x: Array, **attrs: Any) -> HostSample:
            return HostSample("LinearClassifier", (x,), attrs, outputs=2, domain=_ML)

        x = rng.standard_normal((4, 2)).astype(np.float32)
        three = {"coefficients": [0.5, -2.0, 0.3, 0.7, -1.0, 1.0], "intercepts": [0.25, -1.0, 0.5]}
        for post in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
            yield sample(x, **three, classlabels_ints=[5, -6, 7], post_transform=post)
        yield sample(x, **three, classlabels_strings=["a", "b", "c"])
        one = {"coefficients": [0.5, -2.0], "intercepts": [0.25]}
        for post in ("NONE", "LOGISTIC"):
            yield sample(x, **one, classlabels_strings=["no", "yes"], post_transform=post)
            yield sample(x, **one, classlabels_ints=[3, 9], post_transform=post)
        yield sample(x, **one)
        for dtype in (np.int64, np.int32, np.float64):
            yield sample((x * 9).astype(dtype), **three, classlabels_ints=[5, -6, 7])


def _line(node: OnnxNode) -> tuple[Array, Array]:
    found = (np.array(node.attrs.get(n) or [], np.float32) for n in ("coefficients", "intercepts"))
    coefficients, intercepts = found
    return coefficients, intercepts


def _scores(value: HostValue, coefficients: Array, intercepts: Array, count: int) -> Array:
    """x · coefficients + intercepts, for every row and each of `count` targets."""
    x = np.atleast_2d(tensor(value, "input 0")).astype(np.float32)
    if x.ndim != 2:
        raise UserError(f"the rows have shape {list(x.shape)}: they should be [N, C]")
    if count < 1 or coefficients.size != count * x.shape[1] or intercepts.size not in (0, count):
        given = f"{coefficients.size} coefficients and {intercepts.size} intercepts"
        raise UserError(f"{given} for {count} scores of {x.shape[1]} columns")
    out = x @ coefficients.reshape(count, -1).T
    return out + intercepts if intercepts.size else out

"""Support vector machines (domain ai.onnx.ml).

A classifier has a decision for each pair of classes: the sum, over the support vectors of both, of coefficients times
kernel. Its sign votes for one of the two. Probabilities come from the decisions by a logistic function (prob_a, prob_b)
and pairwise coupling, as in libsvm.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Self

import numpy as np

from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.ml.scores import class_labels, logistic, post_transform, transformed
from tilewright.ops.opdef import OnnxNode
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_ML = "ai.onnx.ml"
_WHY = "it is part of classic models, which the host runs"
_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
_SURE = 1e-7  # no probability of a pair is nearer to 0 or 1


@dataclass(frozen=True, slots=True)
class SvmKernel:
    name: str
    gamma: float = 0.0
    shift: float = 0.0
    degree: float = 0.0

    @staticmethod
    def of(node: OnnxNode) -> "SvmKernel":
        name = node.text("kernel_type", "LINEAR")
        if name not in _KERNELS:
            raise UserError(f"kernel_type is {name!r}", hint=f"it should be one of {', '.join(_KERNELS)}")
        given: list[float] = node.attrs.get("kernel_params") or [0.0, 0.0, 0.0]
        gamma, shift, degree = given
        return SvmKernel(name, gamma, shift, degree)

    def __call__(self, x: Array, vectors: Array) -> Array:
        """Of every row and every vector."""
        if x.shape[1] != vectors.shape[1]:
            raise UserError(f"rows of {x.shape[1]} columns; the support vectors have {vectors.shape[1]}")
        dot = x @ vectors.T
        match self.name:
            case "RBF":
                squares = np.square(x).sum(1)[:, None] + np.square(vectors).sum(1)
                return np.exp(-self.gamma * np.maximum(squares - 2 * dot, 0))
            case "POLY":
                return (self.gamma * dot + self.shift) ** self.degree
            case "SIGMOID":
                return np.tanh(self.gamma * dot + self.shift)
            case _:
                return dot


@dataclass(frozen=True, slots=True, eq=False)
class SVMRegressor(HostOp):
    """With `one_class`, only the sign: does a row belong?"""

    onnx = ("ai.onnx.ml.SVMRegressor",)
    why = _WHY
    kernel: SvmKernel
    vectors: Array | None  # none: the coefficients are those of the columns
    coefficients: Array
    shift: float
    one_class: bool
    transform: str

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        count = node.integer("n_supports", 0)
        vectors = _reals(node, "support_vectors").reshape(count, -1) if count > 0 else None
        coefficients, rho = _reals(node, "coefficients"), _reals(node, "rho")
        if not rho.size or (vectors is not None and len(coefficients) != count):
            raise UserError(f"{len(coefficients)} coefficients and {rho.size} rho for {count} vectors")
        kernel = SvmKernel.of(node) if count > 0 else SvmKernel("LINEAR")
        is_one = bool(node.integer("one_class", 0))
        return cls(kernel, vectors, coefficients, float(rho[0]), is_one, post_transform(node))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = _rows(inputs[0])
        if self.vectors is None:
            values = self.kernel(x, self.coefficients[None])
        else:
            values = self.kernel(x, self.vectors) @ self.coefficients[:, None]
        values = values + self.shift
        if self.one_class:
            values = np.where(values > 0, 1.0, -1.0)
        return (transformed(values, self.transform).astype(np.float32),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = rng.standard_normal((4, 3)).astype(np.float32)
        attrs: dict[str, Any] = {
            "support_vectors": rng.standard_normal(6).tolist(),
            "coefficients": [0.5, -1.5],
            "n_supports": 2,
            "rho": [0.25],
            "kernel_params": [0.5, 0.25, 3.0],
        }
        for kernel in _KERNELS:
            yield HostSample("SVMRegressor", (x,), {**attrs, "kernel_type": kernel}, domain=_ML)
        yield HostSample("SVMRegressor", (x,), {**attrs, "kernel_type": "RBF", "one_class": 1}, domain=_ML)
        line = {"coefficients": [0.5, -1.5, 2.0], "rho": [0.25], "kernel_params": [0.0, 0.0, 0.0]}
        yield HostSample("SVMRegressor", (x,), {**line, "kernel_type": "LINEAR"}, domain=_ML)


@dataclass(frozen=True, slots=True, eq=False)
class SVMClassifier(HostOp):
    onnx = ("ai.onnx.ml.SVMClassifier",)
    why = _WHY
    kernel: SvmKernel
    vectors: Array | None  # none: a line of coefficients for every class
    starts: tuple[int, ...]  # of the support vectors of each class, and their end
    coefficients: Array
    rho: Array
    probability: tuple[Array, Array] | None
    labels: Array
    transform: str

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        labels = class_labels(node, "classlabels_ints")
        counts = node.integers("vectors_per_class") or ()
        classes = len(labels)
        coefficients, rho = _reals(node, "coefficients"), _reals(node, "rho")
        if classes < 2 or not rho.size or min(counts, default=0) < 0:
            raise UserError(f"{classes} classes with {list(counts)} support vectors and {rho.size} rho")
        transform = post_transform(node)
        if not sum(counts):
            line = coefficients.reshape(classes, -1)
            return cls(SvmKernel("LINEAR"), None, (), line, rho, None, labels, transform)
        pairs = classes * (classes - 1) // 2
        probability = _reals(node, "prob_a"), _reals(node, "prob_b")
        sizes = {len(p) for p in probability} - {0}
        if len(counts) != classes or rho.size < pairs or (sizes and sizes != {pairs}):
            raise UserError(f"{classes} classes have {pairs} pairs: there are {rho.size} rho, {sizes} prob_a")
        return cls(
            SvmKernel.of(node),
            _reals(node, "support_vectors").reshape(sum(counts), -1),
            (0, *(int(n) for n in np.cumsum(counts))),
            coefficients.reshape(classes - 1, sum(counts)),
            rho,
            probability if sizes else None,
            labels,
            transform,
        )

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = _rows(inputs[0])
        if self.vectors is None:
            scores = self.kernel(x, self.coefficients) + self.rho[0]
            chosen = scores.argmax(1)
        else:
            scores = self._decisions(self.kernel(x, self.vectors))
            chosen = self._votes(scores).argmax(1)
            if self.probability is not None:
                a, b = self.probability
                pairs = np.clip(logistic(-(scores * a + b)), _SURE, 1 - _SURE)
                scores = np.array([_coupled(len(self.labels), p) for p in pairs]).reshape(len(x), -1)
            elif scores.shape[1] == 1:
                scores = np.concatenate([-scores, scores], 1)
        return self.labels[chosen], transformed(scores, self.transform).astype(np.float32)

    def _decisions(self, kernels: Array) -> Array:
        """Of every row, for each pair of classes i < j: positive for i."""
        out: list[Array] = []
        for n, (i, j) in enumerate(combinations(range(len(self.labels)), 2)):
            of_i, of_j = (slice(self.starts[c], self.starts[c + 1]) for c in (i, j))
            first = kernels[:, of_i] @ self.coefficients[j - 1, of_i]
            out.append(first + kernels[:, of_j] @ self.coefficients[i, of_j] + self.rho[n])
        return np.stack(out, 1)

    def _votes(self, decisions: Array) -> Array:
        out = np.zeros((len(decisions), len(self.labels)))
        for n, (i, j) in enumerate(combinations(range(len(self.labels)), 2)):
            out[:, i] += decisions[:, n] > 0
            out[:, j] += ~(decisions[:, n] > 0)
        return out

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = rng.standard_normal((4, 3)).astype(np.float32)

        def sample(counts: list[int], **attrs: Any) -> HostSample:
            classes, vectors = len(counts), sum(counts)
            pairs = classes * (classes - 1) // 2
            common: dict[str, Any] = {
                "coefficients": rng.standard_normal((classes - 1) * vectors).tolist(),
                "support_vectors": rng.standard_normal(vectors * 3).tolist(),
                "vectors_per_class": counts,
                "kernel_type": "RBF",
                "kernel_params": [0.5, 0.25, 3.0],
                "rho": rng.standard_normal(pairs).tolist(),
                "classlabels_ints": list(range(5, 5 + classes)),
            }
            if attrs.pop("is_sure", False):
                common |= {"prob_a": [-1.0] * pairs, "prob_b": [0.125] * pairs}
            return HostSample("SVMClassifier", (x,), {**common, **attrs}, outputs=2, domain=_ML)

        for counts in ([2, 1], [2, 1, 3], [1, 1, 2, 1]):
            yield sample(counts)
            yield sample(counts, is_sure=True)
            yield sample(counts, post_transform="LOGISTIC")
        for kernel in _KERNELS:
            yield sample([2, 1], kernel_type=kernel)
        yield sample([2, 1, 3], is_sure=True, post_transform="SOFTMAX")


def _coupled(classes: int, pairs: Array) -> Array:
    """The probabilities of classes that fit those of all pairs best: Wu, Lin and Weng's second method, which minimises
    a quadratic form by going through the classes in turn.
    """
    r = np.zeros((classes, classes))
    for n, (i, j) in enumerate(combinations(range(classes), 2)):
        r[i, j], r[j, i] = pairs[n], 1 - pairs[n]
    q = -r.T * r
    np.fill_diagonal(q, np.square(r).sum(0))
    p = np.full(classes, 1 / classes)
    for _ in range(max(100, classes)):
        qp = q @ p
        form = p @ qp
        if np.abs(qp - form).max() < 0.005 / classes:
            break
        for t in range(classes):
            step = (form - qp[t]) / q[t, t]
            p[t] += step
            form = (form + step * (step * q[t, t] + 2 * qp[t])) / (1 + step) ** 2
            qp = (qp + step * q[t]) / (1 + step)
            p /= 1 + step
    return p


def _rows(value: HostValue) -> Array:
    x = np.atleast_2d(tensor(value, "input 0"))
    if x.ndim != 2:
        raise UserError(f"the rows have shape {list(x.shape)}: they should be [N, C]")
    return x.astype(np.float64)


def _reals(node: OnnxNode, name: str) -> Array:
    return np.array(node.attrs.get(name) or [], np.float64)

"""Unique: which elements, or slices, there are, and where."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tilewright.ops.axes import normal_axis
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import OnnxNode
from tilewright.support.arrays import Array


@dataclass(frozen=True, slots=True)
class Unique(HostOp):
    """Different elements (slices, if there is an `axis`): in rising order, or in the order they come in. Then where
    each first is, which of them every element is, and how often each one occurs.
    """

    onnx = ("Unique",)
    why = "the number of different elements depends on data"
    axis: int | None = None
    is_sorted: bool = True

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        axis = node.integer("axis", 0) if "axis" in node.attrs else None
        return cls(axis, bool(node.integer("sorted", 1)))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = tensor(inputs[0], "input 0")
        axis = 0 if self.axis is None else normal_axis(self.axis, x.ndim)
        slices = x.reshape(-1) if self.axis is None else np.moveaxis(x, axis, 0)
        first, which, counts = _classes(slices)
        if not self.is_sorted:
            order = np.argsort(first, kind="stable")
            first, counts = first[order], counts[order]
            new = np.empty_like(order)
            new[order] = np.arange(len(order))
            which = new[which]
        found = np.moveaxis(slices[first], 0, axis)
        return np.ascontiguousarray(found), *(v.astype(np.int64) for v in (first, which, counts))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = np.array([[2, 1, 1], [2, 1, 1], [0, 3, 0]], np.float32)
        for is_sorted in (0, 1):
            yield HostSample("Unique", (x,), {"sorted": is_sorted}, outputs=4)
            yield HostSample("Unique", (x,), {"sorted": is_sorted, "axis": 0}, outputs=4)
            yield HostSample("Unique", (x,), {"sorted": is_sorted, "axis": -1}, outputs=4)
            cube = rng.integers(0, 2, size=(2, 6, 2)).astype(np.int64)
            yield HostSample("Unique", (cube,), {"sorted": is_sorted, "axis": 1}, outputs=4)
            text = np.array(["b", "a", "b", "c", ""], object)
            yield HostSample("Unique", (text,), {"sorted": is_sorted}, outputs=4)
        yield HostSample("Unique", (np.zeros((0,), np.int64),), outputs=4)


def _classes(slices: Array) -> tuple[Array, Array, Array]:
    """Along the first axis: where each different slice first is, by rising slices; which each is; how often it is."""
    comparable: Any = slices.astype(str) if slices.dtype == object else slices
    if slices.ndim > 1 and slices[0:1].size == 0:  # without elements all slices are equal
        comparable = np.zeros(len(slices), np.int64)
    axis = 0 if comparable.ndim > 1 else None
    found = np.unique(comparable, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    return found[1], found[2].reshape(-1), found[3]

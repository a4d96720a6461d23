"""Elements chosen by a condition: how many there are is known only when the values are."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ops.axes import normal_axis
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import OnnxNode


@dataclass(frozen=True, slots=True)
class NonZero(HostOp):
    """The places of all elements that are not zero, one column each, in the order of memory."""

    onnx = ("NonZero",)
    why = "the shape of its result depends on data"
    moves_only = True

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = tensor(inputs[0], "input 0")
        if x.ndim == 0:  # numpy has no places in a scalar; ONNX has none either, but counts them
            return (np.zeros((0, int(x.astype(bool))), np.int64),)
        return (np.array(np.nonzero(x), np.int64),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        yield HostSample("NonZero", (np.array([[1, 0], [1, 1]], np.int64),))
        yield HostSample("NonZero", (np.array([0.0, -0.0, np.nan, 2.0], np.float32),))
        yield HostSample("NonZero", (np.zeros((2, 3), bool),))


@dataclass(frozen=True, slots=True)
class Compress(HostOp):
    """The slices along an axis (or the elements, if there is none) whose condition is true."""

    onnx = ("Compress",)
    why = "the shape of its result depends on data"
    moves_only = True
    axis: int | None = None

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(node.integer("axis", 0) if "axis" in node.attrs else None)

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x, condition = tensor(inputs[0], "input 0"), tensor(inputs[1], "the condition")
        axis = None if self.axis is None else normal_axis(self.axis, x.ndim)
        return (np.compress(condition.reshape(-1), x, axis),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = np.arange(6, dtype=np.float32).reshape(3, 2)
        yield HostSample("Compress", (x, np.array([False, True, True])), {"axis": 0})
        yield HostSample("Compress", (x, np.array([False, True])), {"axis": -1})
        yield HostSample("Compress", (x, np.array([True, False, False, True])))
        yield HostSample("Compress", (np.array(["a", "b", "c"], object), np.array([True, False, True])))
        yield HostSample("Compress", (x.astype(np.int8), np.zeros(2, np.bool_)), {"axis": 1})

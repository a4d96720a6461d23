"""The extents of a tensor that only the host can hold; of others they are known when the model is imported."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import OnnxNode

_WHY = "native code does not know the type of its input"


@dataclass(frozen=True, slots=True)
class Shape(HostOp):
    onnx = ("Shape",)
    why = _WHY
    moves_only = True
    start: int = 0
    end: int | None = None

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(node.integer("start", 0), node.attrs.get("end"))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        # `start` and `end` clamp to the axes there are, which is what slicing does.
        return (np.array(tensor(inputs[0], "input 0").shape[self.start : self.end], np.int64),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        text = np.array([["a", "b", "c"], ["d", "e", "f"]], object)
        yield HostSample("Shape", (text,))
        yield HostSample("Shape", (text,), {"start": -1})
        yield HostSample("Shape", (text,), {"end": -1})


@dataclass(frozen=True, slots=True)
class Size(HostOp):
    onnx = ("Size",)
    why = _WHY
    moves_only = True

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        return (np.array(tensor(inputs[0], "input 0").size, np.int64),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        yield HostSample("Size", (np.array([["a", "b", "c"]], object),))

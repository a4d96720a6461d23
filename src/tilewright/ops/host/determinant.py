"""Determinants of square matrices."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.axes import narrow, widen
from tilewright.ops.core.elementwise import normal
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.support.errors import UserError


@dataclass(frozen=True, slots=True)
class Det(HostOp):
    """Of the last two axes, by an LU factorisation in f64."""

    onnx = ("Det",)
    why = "the rows that a factorisation exchanges depend on data"

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = tensor(inputs[0], "input 0")
        if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
            raise UserError(f"Det of {list(x.shape)}: the last two axes are not those of a square matrix")
        with np.errstate(all="ignore"):
            return (narrow(np.linalg.det(widen(x)), DType.of(x.dtype)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        yield HostSample("Det", (normal(rng, 4, 4),))
        yield HostSample("Det", (normal(rng, 2, 3, 3, 3),))
        yield HostSample("Det", (normal(rng, 2, 1, 1),))
        yield HostSample("Det", (np.array([[0, 2], [3, 4]], np.float64),))
        yield HostSample("Det", (np.ones((3, 3), np.float32),))

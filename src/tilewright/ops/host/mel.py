"""MelWeightMatrix: triangles over the bins of a spectrum, evenly spaced on the mel scale of pitch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import ONNX_DTYPES, OnnxNode
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_MOST_ELEMENTS = 1 << 28


@dataclass(frozen=True, slots=True)
class MelWeightMatrix(HostOp):
    """[bins of the spectrum, bands]. Its inputs are almost always constants, and then so is the result."""

    onnx = ("MelWeightMatrix",)
    why = "its inputs say what shape it has"
    dtype: np.dtype

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(ONNX_DTYPES[node.integer("output_datatype", 1)].numpy)

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        bands, points, rate = (int(tensor(v, "an input").item()) for v in inputs[:3])
        low, high = (float(tensor(v, "a frequency").item()) for v in inputs[3:])
        bins = points // 2 + 1
        if bands < 1 or points < 1 or rate <= 0 or bins * bands > _MOST_ELEMENTS:
            raise UserError(f"MelWeightMatrix of {bands} bands, {points} points and {rate} samples a second")
        ends = 2595 * np.log10(1 + np.array([low, high], np.float64) / 700)
        mels: Array = ends[0] + np.arange(bands + 2) * (ends[1] - ends[0]) / (bands + 2)
        hertz = 700 * (10 ** (mels / 2595) - 1)
        edges = np.floor((points + 1) * hertz / rate).astype(np.int64)
        if edges.min() < 0 or edges.max() > bins:
            raise UserError(f"MelWeightMatrix: {low} to {high} Hz is not within the spectrum")
        out = np.zeros((bins, bands))
        at: Array = np.arange(bins)
        for k, (left, top, right) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
            if left == top:
                out[at == top, k] = 1
            rising, falling = (at >= left) & (at <= top) & (left < top), (at >= top) & (at < right)
            out[rising, k] = (at[rising] - left) / (top - left)
            out[falling, k] = (right - at[falling]) / (right - top)
        return (out.astype(self.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        for bands, points, rate, low, high in ((8, 16, 8192, 0.0, 4096.0), (5, 64, 16000, 125.0, 7500.0)):
            whole = tuple(np.array(v, np.int64) for v in (bands, points, rate))
            real = tuple(np.array(v, np.float32) for v in (low, high))
            yield HostSample("MelWeightMatrix", (*whole, *real), opset=17)

"""MaxUnpool: elements put back to the places that a MaxPool took them from."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import OnnxNode
from tilewright.support.errors import UserError

_MOST_ELEMENTS = 1 << 33


@dataclass(frozen=True, slots=True)
class MaxUnpool(HostOp):
    """Zeros but for the elements that have an index. Indices count in the tensor that the window came from; if another
    output shape is wanted, that tensor is its first corner."""

    onnx = ("MaxUnpool",)
    why = "an element may go to any place"
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        kernel = node.integers("kernel_shape") or ()
        strides = node.integers("strides") or (1,) * len(kernel)
        pads = node.integers("pads") or (0,) * (2 * len(kernel))
        if not kernel or len(strides) != len(kernel) or len(pads) != 2 * len(kernel):
            raise UserError("MaxUnpool: kernel_shape, strides and pads do not match")
        if min(*kernel, *strides) < 1 or min(pads) < 0:
            raise UserError("MaxUnpool: kernel and strides must be positive, pads not negative")
        return cls(kernel, strides, pads)

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x, indices = tensor(inputs[0], "input 0"), tensor(inputs[1], "the indices")
        rank = len(self.kernel)
        if x.ndim != rank + 2 or indices.shape != x.shape:
            raise UserError(f"MaxUnpool of {list(x.shape)} with indices {list(indices.shape)}")
        pooled = tuple(
            (n - 1) * self.strides[d] + self.kernel[d] - self.pads[d] - self.pads[rank + d]
            for d, n in enumerate(x.shape[2:])
        )
        source = (*x.shape[:2], *pooled)
        wanted = inputs[2] if len(inputs) > 2 else None
        shape = source if wanted is None else tuple(int(n) for n in tensor(wanted, "the shape").reshape(-1))
        if len(shape) != x.ndim or shape[:2] != x.shape[:2] or min(*shape, *source) < 0:
            raise UserError(f"MaxUnpool of {list(x.shape)} to {list(shape)}")
        if max(math.prod(shape), math.prod(source)) > _MOST_ELEMENTS:
            raise UserError(f"MaxUnpool to {list(shape)}: too many elements")
        flat = np.zeros(math.prod(source), x.dtype)
        at = indices.reshape(-1).astype(np.int64)
        if at.size and not 0 <= at.min() <= at.max() < flat.size:
            raise UserError(f"MaxUnpool: an index is not below {flat.size}")
        flat[at] = x.reshape(-1)
        out = np.zeros(shape, x.dtype)
        corner = tuple(slice(min(a, b)) for a, b in zip(source, shape, strict=True))
        out[corner] = flat.reshape(source)[corner]
        return (out,)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = np.array([[[[1, 2], [3, 4]]]], np.float32)
        at = np.array([[[[5, 7], [13, 15]]]], np.int64)
        attrs: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
        yield HostSample("MaxUnpool", (x, at), attrs, opset=20)
        yield HostSample(
            "MaxUnpool", (x[:, :, 0], at[:, :, 0] - 4), {"kernel_shape": [3], "strides": [2]}, opset=20
        )

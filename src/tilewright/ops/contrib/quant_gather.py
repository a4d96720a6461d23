"""GatherBlockQuantized of com.microsoft: rows of a table of a few bits, looked up and brought to floats.

Native code has tables packed into bytes, which is what exporters of language models write; the host has those of the
types of 4 bits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, cast, const
from tilewright.ops.axes import normal_axis
from tilewright.ops.contrib.quant_matmul import unpacked, unpacked_array
from tilewright.ops.core.gather import checked_index, checked_indices
from tilewright.ops.core.quantize import SCALES, Granularity
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import IndexInput, Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder

_NAME = "com.microsoft.GatherBlockQuantized"


@dataclass(frozen=True, slots=True)
class GatherBlockQuantized(Op):
    """The last axis holds numbers of `bits` bits, the first in the low bits of a byte, with a scale for each `block`.
    Zero points are packed in the same way; without them it is the middle of the range.
    """

    onnx = (_NAME,)
    kind = Kind.MOVEMENT
    bits: int
    block: int

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        rank = node.input(0).rank
        axes = [normal_axis(node.integer(n, d), rank) for n, d in (("gather_axis", 0), ("quantize_axis", 1))]
        if axes != [0, rank - 1] or rank < 2:
            raise UserError("bytes must be looked up along the first axis and quantised along the last")
        return cls(node.integer("bits", 4), node.integer("block_size", 128)), node.present

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 3, 4)
        x, at, scale, *zero = inputs
        if self.bits not in (2, 4, 8) or self.block < 16 or self.block & (self.block - 1):
            raise self.misfit(inputs, f"blocks of {self.block} numbers of {self.bits} bits")
        if x.dtype is not DType.U8 or x.rank < 2 or at.dtype not in (DType.I32, DType.I64) or not x.shape[0]:
            raise self.misfit(inputs, "takes a table of u8, and indices")
        width = x.shape[-1] * (8 // self.bits)
        count = -(-width // self.block)
        if scale.dtype not in SCALES or scale.shape != (*x.shape[:-1], count):
            raise self.misfit(inputs, f"there must be {count} scales in a row")
        if zero and (
            zero[0].dtype is not x.dtype or zero[0].shape != (*x.shape[:-1], -(-count * self.bits // 8))
        ):
            raise self.misfit(inputs, "the zero points do not fit")
        return (TensorType(scale.dtype, (*at.shape, *x.shape[1:-1], width)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (out,) = self.infer([TensorType(x.dtype, x.shape) for x in inputs])
        x, at, scale, *zero = inputs
        rank, each = len(at.shape), 8 // self.bits

        def element(*i: Expr) -> Expr:
            *middle, k = i[rank:]
            row = (checked_index(at[i[:rank]], x.shape[0]), *middle)
            place = k // self.block
            code = cast(DType.F32, unpacked(x[(*row, k // each)], k, self.bits))
            offset = (
                cast(DType.F32, unpacked(zero[0][(*row, place // each)], place, self.bits))
                if zero
                else const(self._middle, DType.F32)
            )
            return cast(out.dtype, (code - offset) * cast(DType.F32, scale[(*row, place)]))

        return (b.compute(name, out.shape, element),)

    def indices(self, inputs: Sequence[TensorType]) -> Sequence[IndexInput]:
        return (IndexInput(1, (inputs[0].shape[0],)),)

    @property
    def _middle(self) -> int:
        return 1 << (self.bits - 1)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, at, scale, *zero = inputs
        i = checked_indices(at, x.shape[0])
        codes = unpacked_array(x[i], self.bits).astype(np.float32)
        granularity = Granularity(codes.ndim - 1, self.block)
        offset = np.float32(self._middle)
        if zero:
            offset = granularity.spread(
                unpacked_array(zero[0][i], self.bits)[..., : scale.shape[-1]], codes.shape
            )
        steps = granularity.spread(scale[i].astype(np.float32), codes.shape)
        return (((codes - offset) * steps).astype(scale.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        at = np.array([[0, 3, -1]], np.int64)
        for bits in (4, 8):
            attrs: dict[str, Any] = {"gather_axis": 0, "quantize_axis": 1, "block_size": 16, "bits": bits}
            x = rng.integers(0, 256, (5, 48 * bits // 8)).astype(np.uint8)
            scale = rng.random((5, 3)).astype(np.float32)
            zero = rng.integers(0, 256, (5, -(-3 * bits // 8))).astype(np.uint8)
            yield cls.sample(x, at, scale, opset=1, runtime=(1,), **attrs)
            yield cls.sample(x, at.astype(np.int32), scale.astype(np.float16), zero, opset=1, **attrs)
        pairs = rng.integers(0, 256, (2, 3, 8)).astype(np.uint8)
        yield Sample(cls(2, 16), (pairs, at[0, :2], rng.random((2, 3, 2)).astype(np.float32)))


@dataclass(frozen=True, slots=True)
class GatherBlockQuantizedOnHost(HostOp):
    """Without zero points the numbers are what they are."""

    onnx = (_NAME,)
    why = "it has elements that only the host computes with"
    axis: int
    quantized: int
    block: int

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(
            node.integer("gather_axis", 0), node.integer("quantize_axis", 1), node.integer("block_size", 128)
        )

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x, at, scale = (tensor(v, f"input {i}") for i, v in enumerate(inputs[:3]))
        zero = tensor(inputs[3], "the zero points") if len(inputs) > 3 and inputs[3] is not None else None
        axis, along = normal_axis(self.axis, x.ndim), normal_axis(self.quantized, x.ndim)
        if axis == along:
            raise UserError("it is looked up along the axis that is quantised")
        Granularity.of(x.shape, scale.shape, along, self.block)
        i = checked_indices(at, x.shape[axis])
        codes = x.take(i, axis).astype(np.float32)
        granularity = Granularity(along if along < axis else along + at.ndim - 1, self.block)
        if zero is not None:
            codes = codes - granularity.spread(zero.take(i, axis).astype(np.float32), codes.shape)
        steps = granularity.spread(scale.take(i, axis).astype(np.float32), codes.shape)
        return ((codes * steps).astype(scale.dtype),)

    def indices(self, inputs: Sequence[HostValue]) -> Sequence[IndexInput]:
        x = tensor(inputs[0], "input 0")
        return (IndexInput(1, (x.shape[normal_axis(self.axis, x.ndim)],)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        # onnxruntime takes types of 4 bits only as constants: they are in the test of quantised models.
        x, at = rng.integers(0, 256, (5, 16)).astype(np.uint8), np.array([1, 4])
        attrs = {"gather_axis": 0, "quantize_axis": 1, "block_size": 16, "bits": 4}
        scale = rng.random((5, 2)).astype(np.float32)
        yield HostSample("GatherBlockQuantized", (x, at, scale), attrs, domain="com.microsoft")

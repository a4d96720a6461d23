"""Movement between channels and places: DepthToSpace and SpaceToDepth, on x[n, c, h, w]."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.expr import Buffer, Expr
from tilewright.ops.core.elementwise import normal
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class DepthOp(Op):
    """Tiles of `size` × `size` places are channels on the other side. Of a channel number, the place in the tile is the
    slow part, or the fast one if `channel_first`.
    """

    kind = Kind.MOVEMENT
    moves_only = True
    size: int
    channel_first: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        mode = node.text("mode", "DCR")
        if mode not in ("DCR", "CRD"):
            raise UserError(f"{node.op_type}: unknown mode '{mode}'")
        return cls(node.integer("blocksize", 1), mode == "CRD"), (0,)


@dataclass(frozen=True, slots=True)
class DepthToSpace(DepthOp):
    """Channels become tiles of `size` × `size` places. Of a channel number, the place in the tile is the slow part,
    or the fast one if `channel_first`."""

    onnx = ("DepthToSpace",)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if x.rank != 4 or self.size < 1 or x.shape[1] % self.size**2:
            raise self.misfit(inputs, f"the channels do not make tiles of {self.size} × {self.size}")
        n, c, h, w = x.shape
        return (TensorType(x.dtype, (n, c // self.size**2, h * self.size, w * self.size)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,), s = inputs, self.size
        (out,) = self.infer([TensorType(x.dtype, x.shape)])

        def element(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
            tile = (h % s) * s + w % s
            depth = c * (s * s) + tile if self.channel_first else tile * out.shape[1] + c
            return x[n, depth, h // s, w // s]

        return (b.compute(name, out.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,), s = inputs, self.size
        n, c, h, w = x.shape
        if self.channel_first:
            parts = x.reshape(n, c // s**2, s, s, h, w).transpose(0, 1, 4, 2, 5, 3)
        else:
            parts = x.reshape(n, s, s, c // s**2, h, w).transpose(0, 3, 4, 1, 5, 2)
        return (parts.reshape(n, c // s**2, h * s, w * s),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 8, 2, 3)
        yield cls.sample(x, blocksize=2)
        yield cls.sample(x, blocksize=2, mode="CRD")


@dataclass(frozen=True, slots=True)
class SpaceToDepth(DepthOp):
    """Tiles of `size` × `size` places become channels. Of a channel number, the place in the tile is the slow part,
    or the fast one if `channel_first`."""

    onnx = ("SpaceToDepth",)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,), s = inputs, self.size
        if x.rank != 4 or s < 1 or x.shape[2] % s or x.shape[3] % s:
            raise self.misfit(inputs, f"does not divide into tiles of {s} × {s}")
        n, c, h, w = x.shape
        return (TensorType(x.dtype, (n, c * s * s, h // s, w // s)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,), s = inputs, self.size
        (out,) = self.infer([TensorType(x.dtype, x.shape)])
        channels = x.shape[1]

        def element(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
            channel, tile = (
                (c // (s * s), c % (s * s)) if self.channel_first else (c % channels, c // channels)
            )
            return x[n, channel, h * s + tile // s, w * s + tile % s]

        return (b.compute(name, out.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,), s = inputs, self.size
        n, c, h, w = x.shape
        order = (0, 1, 3, 5, 2, 4) if self.channel_first else (0, 3, 5, 1, 2, 4)
        parts = x.reshape(n, c, h // s, s, w // s, s).transpose(order)
        return (parts.reshape(n, c * s * s, h // s, w // s),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 1, 2, 4, 6)
        yield cls.sample(x, blocksize=2)
        yield Sample(cls(2, channel_first=True), (x,))
        yield cls.sample(x.astype(np.float64), blocksize=1)

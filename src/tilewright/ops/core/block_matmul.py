"""Products with weights of 4 and 8 bits that share a scale by blocks of their rows.

    w = (c - z) · r     codes, with a scale and a zero point for each block

    in integers         x ≈ q · s, rows in blocks as bytes (QuantizeBlocks)
                        y = Σ over blocks s · r · (Σ q · c  -  z · Σ q)
    in floats           y = Σ over blocks r · (Σ x · c  -  z · Σ x)

Sums of integers in a block are exact, in i32, and so is what is taken off. Codes keep their bits in memory:
`weight_panels` says in which order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, Buffer, Expr, Fma, binary, cast, const
from tilewright.ops.core.block_quantize import QuantizeBlocks
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.integer import optional_inputs
from tilewright.ops.core.weight_panels import WORD, Panels
from tilewright.ops.opdef import Kind, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder

_NIBBLE = 4  # bits of a half of a byte; given


@dataclass(frozen=True, slots=True)
class BlockMatMul(Op):
    """Inputs: rows in blocks [rows, blocks, block], f32 or i8; if i8, their scales [rows, blocks]; if something is
    taken off, what each block of a row sums up to [rows, blocks]; codes and scales in panels; and zero points likewise,
    if they differ, of u8, i8 or f32. Without these, the sums have been multiplied by the zero point.
    """

    kind = Kind.CONTRACTION
    columns: int
    panels: Panels
    is_centred: bool = True  # is anything taken off?
    has_zeros: bool = False

    @property
    def _has(self) -> tuple[bool, ...]:
        return True, self.panels.in_words, self.is_centred, True, True, self.has_zeros

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, sum(self._has))
        x, x_scale, x_total, w, w_scale, zeros = optional_inputs(self._has, inputs)
        assert x is not None and w is not None and w_scale is not None
        if x.dtype is not (DType.I8 if self.panels.in_words else DType.F32) or x.rank != 3:
            raise self.misfit(inputs, "rows must be in blocks, i8 for instructions and f32 else")
        rows, blocks, block = x.shape
        if block % self.panels.group or (self.has_zeros and not self.is_centred):
            raise self.misfit(inputs, f"blocks must be of a multiple of {self.panels.group}")
        shape = self.panels.shape(self.columns, blocks, block)
        is_signed = w.dtype is DType.I8 and self.panels.bits == 8 and self.panels.in_words
        if w.shape != shape or not (w.dtype is DType.U8 or is_signed):
            raise self.misfit(inputs, f"codes must be u8{list(shape)}")
        each = (shape[0], blocks, self.panels.lanes)
        for given, wanted in ((x_scale, (rows, blocks)), (x_total, (rows, blocks)), (w_scale, each)):
            if given is not None and (given.dtype is not DType.F32 or given.shape != wanted):
                raise self.misfit(inputs, "scales and sums must be f32, for each block")
        if zeros is not None and (zeros.shape != each or zeros.dtype not in (DType.U8, DType.I8, DType.F32)):
            raise self.misfit(inputs, "zero points must be there for each block and lane")
        return (TensorType(DType.F32, (rows, self.columns)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, x_scale, x_total, w, w_scale, zeros = optional_inputs(self._has, inputs)
        assert x is not None and w is not None and w_scale is not None
        rows, blocks, _ = x.shape
        count, _, groups, lanes, *_ = w.shape
        sums = self._sums(b, x, w, f"{name}_sums", (rows, blocks, count, lanes), groups)

        def scaled(m: Expr, p: Expr, i: Expr, j: Expr) -> tuple[Expr, Expr]:
            value = sums[m, j, p, i]
            value = value if value.dtype is DType.F32 else cast(DType.F32, value)
            if x_total is not None and zeros is not None:
                zero = zeros[p, j, i]
                zero = zero if zero.dtype is DType.F32 else cast(DType.F32, zero)
                value = Fma(zero, -x_total[m, j], value)
            elif x_total is not None:
                value = value - x_total[m, j]
            return value if x_scale is None else value * x_scale[m, j], w_scale[p, j, i]

        axes = ["m", "p", "i", "b"]
        total = b.reduce(f"{name}_total", (rows, count, lanes), (blocks,), scaled, axes=axes)

        def element(m: Expr, n: Expr) -> Expr:
            return total[m, n // lanes, n % lanes]

        return (b.compute(name, (rows, self.columns), element),)

    def _sums(
        self, b: FuncBuilder, x: Buffer, w: Buffer, name: str, shape: tuple[int, ...], groups: int
    ) -> Buffer:
        """Of each block."""
        axes, each, group = ["m", "b", "p", "i", "q", "g"], self.panels.each, self.panels.group

        def nibbles(m: Expr, j: Expr, p: Expr, i: Expr, q: Expr, g: Expr) -> Expr:
            byte, at = w[p, j, q, i, g], q * group + g
            low = binary(BinaryOp.AND, byte, const(15, DType.U8))
            high = binary(BinaryOp.SHR, byte, const(_NIBBLE, DType.U8))
            first = cast(DType.I32, x[m, j, at]) * cast(DType.I32, low)
            return first + cast(DType.I32, x[m, j, at + WORD]) * cast(DType.I32, high)

        def whole(m: Expr, j: Expr, p: Expr, i: Expr, q: Expr, g: Expr) -> Expr:
            return cast(DType.I32, x[m, j, q * group + g]) * cast(DType.I32, w[p, j, q, i, g])

        def real(m: Expr, j: Expr, p: Expr, i: Expr, q: Expr, g: Expr) -> tuple[Expr, Expr]:
            code = cast(DType.I32, w[p, j, q, i])
            if each > 1:
                moved = binary(BinaryOp.SHR, code, cast(DType.I32, g * self.panels.bits))
                code = binary(BinaryOp.AND, moved, const(2**self.panels.bits - 1, DType.I32))
            return x[m, j, q * each + g], cast(DType.F32, code)

        if self.panels.in_words:
            return b.reduce(name, shape, (groups, WORD), nibbles if each > 1 else whole, axes=axes)
        return b.reduce(name, shape, (groups, each), real, axes=axes)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, x_scale, x_total, w, w_scale, zeros = optional_inputs(self._has, inputs)
        assert x is not None and w is not None and w_scale is not None
        codes = self.panels.unpack(w, self.columns).astype(np.float64)
        sums = np.einsum("mbk,nbk->mbn", x.astype(np.float64), codes)
        if x_total is not None:
            taken: Array = x_total[..., None].astype(np.float64)
            if zeros is not None:
                taken = taken * self.panels.unpack_each(zeros, self.columns).T.astype(np.float64)
            sums = sums - taken
        if x_scale is not None:
            sums = sums * x_scale[..., None].astype(np.float64)
        scales = self.panels.unpack_each(w_scale, self.columns).T.astype(np.float64)
        return ((sums * scales).sum(axis=1).astype(np.float32),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        for rows, count, blocks, size in ((3, 5, 2, 16), (1, 16, 3, 32)):
            x = normal(rng, rows, blocks * size)
            scale = np.abs(normal(rng, count, blocks))
            for bits in (4, 8):
                codes = rng.integers(0, 1 << bits, (count, blocks, size)).astype(np.uint8)
                zeros = rng.integers(0, 1 << bits, (count, blocks)).astype(np.uint8)
                words, single = (Panels(bits, 8, in_words=is_so) for is_so in (True, False))
                left = QuantizeBlocks(size, 2.0 ** (bits - 1)).reference((x,))
                packed = words.pack(codes), words.pack_each(scale)
                yield Sample(cls(count, words), (*left, *packed))
                left = QuantizeBlocks(size).reference((x,))
                apart = words.pack_each(zeros)
                yield Sample(cls(count, words, has_zeros=True), (*left, *packed, apart))
                parts = x.reshape(rows, blocks, size)
                floats = single.pack(codes), single.pack_each(scale)
                yield Sample(cls(count, single, is_centred=False), (parts, *floats))
                totals = parts.sum(axis=2)
                yield Sample(cls(count, single, has_zeros=True), (parts, totals, *floats, apart))

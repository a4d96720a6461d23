"""Rows of a table of few bits that lies in panels, looked up and brought to floats.

    y[…, k] = (code of row at[…], column k  -  zero point) · scale

A language model whose table of embeddings is its last matrix, too, has it once in memory: in the panels of that matrix,
whose columns are the rows of the table.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, Buffer, Expr, binary, cast, const
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.gather import checked_index, checked_indices
from tilewright.ops.core.weight_panels import Panels
from tilewright.ops.opdef import IndexInput, Kind, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class PanelGather(Op):
    """Inputs: codes in panels, indices, scales in panels, and zero points likewise if they differ; else they are
    `zero`.
    """

    kind = Kind.MOVEMENT
    rows: int  # of the table
    panels: Panels
    zero: float = 0.0
    has_zeros: bool = False

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 3 + self.has_zeros)
        codes, at, scales, *zeros = inputs
        if at.dtype not in (DType.I32, DType.I64) or codes.rank != 4 + self.panels.in_words:
            raise self.misfit(inputs, "takes codes in panels, and indices")
        blocks, block = codes.shape[1], codes.shape[2] * self.panels.group
        if codes.shape != self.panels.shape(self.rows, blocks, block):
            raise self.misfit(inputs, f"the panels are not of {self.rows} rows")
        each = (codes.shape[0], blocks, self.panels.lanes)
        if scales.dtype is not DType.F32 or any(t.shape != each for t in (scales, *zeros)):
            raise self.misfit(inputs, "scales and zero points must be there for each block and lane")
        return (TensorType(DType.F32, (*at.shape, blocks * block)),)

    def indices(self, inputs: Sequence[TensorType]) -> Sequence[IndexInput]:
        return (IndexInput(1, (self.rows,)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (out,) = self.infer([TensorType(t.dtype, t.shape) for t in inputs])
        codes, at, scales, *zeros = inputs
        rank, panels = len(at.shape), self.panels
        block, width = codes.shape[2] * panels.group, panels.group // panels.each

        def element(*i: Expr) -> Expr:
            row, k = checked_index(at[i[:rank]], self.rows), i[rank]
            panel, lane = row // panels.lanes, row % panels.lanes
            group, inside = k % block // panels.group, k % panels.group
            word = (inside % width,) if panels.in_words else ()
            code = codes[(panel, k // block, group, lane, *word)]
            if panels.each > 1:
                code = binary(BinaryOp.SHR, code, cast(DType.U8, inside // width * panels.bits))
                code = binary(BinaryOp.AND, code, const((1 << panels.bits) - 1, DType.U8))
            place = (panel, k // block, lane)
            zero = cast(DType.F32, zeros[0][place]) if zeros else const(self.zero, DType.F32)
            return (cast(DType.F32, code) - zero) * scales[place]

        return (b.compute(name, out.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        codes, at, scales, *zeros = inputs
        i = checked_indices(at, self.rows)
        taken = self.panels.unpack_each(zeros[0], self.rows)[i][..., None] if zeros else self.zero
        own = self.panels.unpack(codes, self.rows)[i].astype(np.float32) - np.asarray(taken, np.float32)
        found = own * self.panels.unpack_each(scales, self.rows)[i][..., None]
        return (found.reshape(*at.shape, -1),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        at, scales = np.array([[0, 18, -1]], np.int64), np.abs(normal(rng, 19, 2))
        for bits in (4, 8):
            codes = rng.integers(0, 1 << bits, (19, 2, 16)).astype(np.uint8)
            zeros = rng.integers(0, 1 << bits, (19, 2)).astype(np.uint8)
            for in_words in (True, False):
                p = Panels(bits, 8, in_words=in_words)
                packed = p.pack(codes), at, p.pack_each(scales)
                yield Sample(cls(19, p, 2.0 ** (bits - 1)), packed)
                yield Sample(cls(19, p, has_zeros=True), (*packed, p.pack_each(zeros)))

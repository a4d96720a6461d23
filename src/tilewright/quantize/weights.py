"""Weights in fewer bits, and the floats that they stand for then."""

from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np

from tilewright.quantize.blocks import Blocks, quantize_rows, restored_rows
from tilewright.quantize.forms import BLOCK, LayerForm
from tilewright.support.arrays import Array

MOST = 127  # the largest weight of 8 bits: -128 has no counterpart
_LEAST = 1e-30  # of a row: less is nothing beside any bias, and its scale would be a denormal
_REACHES = np.linspace(1.0, 0.7, 16)  # of the largest weight of a row: what is beyond is clipped


@dataclass(frozen=True, eq=False)
class RowWeights:
    """Rows [outputs, products] in a form: bytes with a scale for each row, blocks, or halves."""

    form: LayerForm
    codes: Array
    scales: Array | None = None

    @cached_property
    def floats(self) -> Array:
        match self.form:
            case LayerForm.INT8:
                assert self.scales is not None
                return self.codes.astype(np.float32) * self.scales[:, None]
            case LayerForm.INT8_BLOCKS | LayerForm.INT4_BLOCKS:
                assert self.scales is not None
                return restored_rows(Blocks(self.codes, self.scales), self.form.bits)
            case LayerForm.BF16 | LayerForm.FLOAT:
                return self.codes.astype(np.float32)


def in_form(rows: Array, form: LayerForm, largest: int = MOST) -> RowWeights:
    """`largest`: the weights of 8 bits that belong to a row are no larger."""
    match form:
        case LayerForm.FLOAT:
            return RowWeights(form, rows)
        case LayerForm.BF16:
            return RowWeights(form, rows.astype(ml_dtypes.bfloat16))
        case LayerForm.INT8:
            return _bytes(rows, largest)
        case LayerForm.INT8_BLOCKS | LayerForm.INT4_BLOCKS:
            return RowWeights(form, *quantize_rows(rows, form.bits, BLOCK))


def _bytes(rows: Array, most: int) -> RowWeights:
    """Each row with the scale that leaves the least squares."""
    largest = np.abs(rows).max(axis=1)
    largest[largest < _LEAST] = most  # all codes are 0, with any scale that is a number
    scales = best = np.full(len(rows), np.inf, np.float32)
    for reach in _REACHES:
        tried = (largest * (reach / most)).astype(np.float32)
        codes = np.clip(np.rint(rows / tried[:, None]), -most, most)
        left = np.square(codes * tried[:, None] - rows).sum(axis=1)
        scales, best = np.where(left < best, tried, scales), np.minimum(left, best)
    codes = np.clip(np.rint(rows / scales[:, None]), -most, most).astype(np.int8)
    return RowWeights(LayerForm.INT8, codes, scales)

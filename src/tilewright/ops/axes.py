"""Arithmetic of shapes and axes that many ops share: broadcasting, axis numbers, dtype families.

Broadcasting is numpy's: shapes are aligned at the last axis, and an extent of 1 stretches.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Load
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.support.sizes import same_size

FLOATS = frozenset(d for d in DType if d.is_float)
INTEGERS = frozenset(d for d in DType if d.is_int)
SIGNED = frozenset(d for d in DType if d.is_float or d.is_signed)
NUMBERS = FLOATS | INTEGERS
BOOLS = frozenset({DType.BOOL})
ANY = frozenset(DType)


def normal_axis(axis: int, rank: int, what: str = "axis") -> int:
    """An axis counted from the front; negative ones count from the back."""
    if not -rank <= axis < rank:
        raise UserError(f"{what} {axis} is out of range for {rank} axes")
    return axis + rank if axis < 0 else axis


def normal_axes(axes: Iterable[int], rank: int, what: str = "axis") -> tuple[int, ...]:
    """Sorted and counted from the front."""
    out = sorted(normal_axis(a, rank, what) for a in axes)
    if len(set(out)) != len(out):
        raise UserError(f"{what} given twice: {out}")
    return tuple(out)


def try_broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape that all stretch to, or None."""
    rank = max((len(s) for s in shapes), default=0)
    out = [1] * rank
    for shape in shapes:
        for d, n in enumerate(shape, rank - len(shape)):
            if same_size(out[d], 1):
                out[d] = n
            elif not same_size(n, 1) and out[d] != n:
                return None
    return tuple(out)


def load_broadcast(x: Buffer, index: Sequence[Expr], shape: Sequence[int]) -> Load:
    """`x` at `index` of the broadcast `shape`: axes that stretch are read at 0, missing ones dropped."""
    lead = len(shape) - len(x.shape)
    aligned = zip(x.shape, index[lead:], shape[lead:], strict=True)
    return x[tuple(i if same_size(n, full) else 0 for n, i, full in aligned)]


def accumulator(dtype: DType) -> DType:
    """The type that sums are kept in: half precision is too short for them."""
    return DType.F32 if dtype in (DType.F16, DType.BF16) else dtype


def widen(x: Array) -> Array:
    """Floats as float64, for references; other types as they are."""
    return x.astype(np.float64) if DType.of(x.dtype).is_float else x


def narrow(x: Array, dtype: DType) -> Array:
    """Round a reference's result to its type."""
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(dtype.numpy)

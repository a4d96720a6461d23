"""exp_nonpositive and GELU of every float32 for which they are neither constant nor linear, in native code, vectorised.

exp is held against numpy's of float64, GELU against our own of float64, whose error is 257 of its units at most where
that of float32 is bounded in units (`benchmarks/vector_math.py`): a few billionths of one. Bounds are what was found,
rounded up.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.build import build
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, UnaryOp, unary
from tilewright.schedule.schedule import Schedule
from tilewright.tir.build import FuncBuilder

pytestmark = pytest.mark.slow

_CHUNK = 1 << 20  # floats computed at a time
F32s = NDArray[np.float32]
F64s = NDArray[np.float64]


def native(op: UnaryOp, dtype: DType) -> Callable[[F32s | F64s], Any]:
    b = FuncBuilder("f")
    x = b.param("x", (_CHUNK,), dtype)

    def apply(i: Expr) -> Expr:
        return unary(op, x[i])

    s = Schedule(b.finish(b.compute("y", (_CHUNK,), apply, axes=("i",))))
    s.vectorize(s.split("y_i", (None, 32 // dtype.bytes))[1])
    return build(s, threads=1)


def every_float(first: float, last: float) -> Iterator[F32s]:
    """All of one sign, from the one of least magnitude on, in chunks; the last chunk is filled up."""
    low, high = (int(np.float32(v).view(np.uint32)) for v in (first, last))
    for start in range(low, high + 1, _CHUNK):
        found = np.minimum(np.arange(start, start + _CHUNK, dtype=np.uint64), high)
        yield found.astype(np.uint32).view(np.float32)


def in_units(got: F32s, exact: F64s) -> float:
    """The largest error in units of the last place of the exact result."""
    unit = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - 24, -149))
    return float(np.max(np.abs(got - exact) / unit))


def test_exp_nonpositive_within_two_units() -> None:
    ours = native(UnaryOp.EXP_NONPOSITIVE, DType.F32)
    worst = max(in_units(ours(x), np.exp(x.astype(np.float64))) for x in every_float(-1e-8, -110.0))
    assert worst <= 1.88


@pytest.mark.parametrize(
    ("first", "last", "bound"), [(-1e-6, -3.0, 17.6), (-3.0, -4.0, 78.9), (1e-6, 14.0, 6.1)]
)
def test_gelu_in_units(first: float, last: float, bound: float) -> None:
    ours, exact = native(UnaryOp.GELU, DType.F32), native(UnaryOp.GELU, DType.F64)
    worst = max(in_units(ours(x), exact(x.astype(np.float64))) for x in every_float(first, last))
    assert worst <= bound


def test_gelu_where_it_vanishes() -> None:
    ours, exact = native(UnaryOp.GELU, DType.F32), native(UnaryOp.GELU, DType.F64)
    errors = (np.abs(ours(x) - exact(x.astype(np.float64))).max() for x in every_float(-4.0, -14.0))
    assert max(errors) <= 1.2e-9

"""How far a Winograd convolution is from the exact result, measured on the weights of a layer.

The stages of `winograd.py` are computed in float32 for some tiles and some output channels, in the order of the
program: the transforms as the straight-line code that `combine` makes of their matrices, the sums over channels one
after the other. The plain sum in float64 over the same numbers is exact by comparison. The data are normal noise: its
scale does not matter, because the error is relative to the largest output.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import apply_binary, apply_unary
from tilewright.ir.expr import Binary, Const, Expr, Fma, Unary, Var
from tilewright.ops.core.cook_toom import Matrix, Scheme, combine

# What is compared; more would not change the figure by much.
_TILES, _PLACES = 16, 128
_CHANNELS = 16

_Array = NDArray[Any]


def winograd_error(schemes: Sequence[Scheme], weights: NDArray[Any], seed: int = 0) -> float:
    """The largest error over the largest output of a convolution with weights [o, i, k…]; infinite if a stage
    overflows, or if a weight is not finite.
    """
    outputs = [s.outputs for s in schemes]
    tiles = max(1, min(_TILES, _PLACES // math.prod(outputs)))
    places = [s.outputs + s.taps - 1 for s in schemes]
    data = np.random.default_rng(seed).standard_normal((*places, tiles, weights.shape[1]), np.float32)
    taps = np.ascontiguousarray(np.moveaxis(_sample(weights), (0, 1), (-1, -2)))  # [k…, i, o]
    with np.errstate(all="ignore"):
        u = _transformed([s.filter for s in schemes], taps)
        v = _transformed([s.data for s in schemes], data)
        found = _transformed([s.output for s in schemes], _products(v, u))  # [place…, tile, o]
        exact = _correlation(data, taps, outputs)
        error, largest = float(np.abs(found - exact).max()), float(np.abs(exact).max())
    if error == 0:
        return 0.0  # all weights are zero, or so few that nothing was rounded
    relative = error / largest
    return relative if math.isfinite(relative) else math.inf


def _sample(weights: _Array) -> _Array:
    """Some output channels: evenly spread from the one with the smallest weights to the one with the largest."""
    flat = weights.reshape(len(weights), -1)
    order = np.argsort(np.einsum("ok,ok->o", flat, flat))
    picked = np.linspace(0, len(order) - 1, min(_CHANNELS, len(order))).round().astype(int)
    return weights[order[picked]].astype(np.float32)


def _products(v: _Array, u: _Array) -> _Array:
    """v[…, tile, i] · u[…, i, o]. A library's GEMM would not do: it sums in blocks, which is more accurate."""
    total = np.zeros((*v.shape[:-1], u.shape[-1]), np.float32)
    for a, b in zip(np.moveaxis(v, -1, 0), np.moveaxis(u, -2, 0), strict=True):
        total += a[..., None] * b[..., None, :]
    return total


def _correlation(data: _Array, taps: _Array, outputs: Sequence[int]) -> _Array:
    """In float64, tap by tap."""
    wide, weights = data.astype(np.float64), taps.astype(np.float64)
    total = np.zeros((*outputs, data.shape[-2], taps.shape[-1]))
    for tap in np.ndindex(taps.shape[:-2]):
        window = tuple(slice(k, k + n) for k, n in zip(tap, outputs, strict=True))
        total += wide[window] @ weights[tap]
    return total


# ---------------------------------------------------------------------------------------------- transforms in float32


def _transformed(matrices: Sequence[Matrix], values: _Array) -> _Array:
    """The matrices along the first axes, one each."""
    for axis, matrix in enumerate(matrices):
        lines = np.moveaxis(values, axis, 0)
        terms, results = _code(matrix)
        known: dict[Expr, _Array] = dict(zip(terms, lines, strict=True))
        made = np.stack([_value(e, known) for e in results])
        values = np.moveaxis(made, 0, axis)
    return values


@lru_cache(maxsize=32)
def _code(matrix: Matrix) -> tuple[list[Var], list[Expr]]:
    """A multiplication with the matrix, as it is written out: the elements of a vector, and the results."""
    terms = [Var(f"x{n}", DType.F32) for n in range(len(matrix[0]))]
    return terms, combine(matrix, terms)


def _value(e: Expr, known: dict[Expr, _Array]) -> _Array:
    """Of straight-line code in float32; what several results share is computed once."""
    if e not in known:
        known[e] = _computed(e, known)
    return known[e]


def _computed(e: Expr, known: dict[Expr, _Array]) -> _Array:
    match e:
        case Const():
            return np.asarray(e.value, np.float32)
        case Fma():
            # The product is exact in float64. That the sum is rounded there first shows in one of 2²⁸ results or so.
            wide = np.multiply(_value(e.a, known), _value(e.b, known), dtype=np.float64)
            return np.asarray(wide + _value(e.c, known), np.float32)
        case Binary():
            return np.asarray(apply_binary(e.op, e.dtype, _value(e.a, known), _value(e.b, known)))
        case Unary():
            return np.asarray(apply_unary(e.op, e.dtype, _value(e.a, known)))
        case _:
            raise TypeError(f"{type(e).__name__} is no part of a transform")

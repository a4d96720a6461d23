"""Arithmetic where a tolerance would hide an error: remainders and powers of integers are exact."""

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import Evaluated, evaluate
from tilewright.ir.expr import Expr, Load, Var
from tilewright.ops.core.arithmetic import Mod, Pow
from tilewright.support.arrays import Array


def value(e: Expr, **arrays: Array) -> Array:
    def no_load(node: Load, indices: tuple[Evaluated, ...]) -> Evaluated:
        raise KeyError(node)

    return np.asarray(evaluate(e, {Var(n, DType.of(a.dtype)): a for n, a in arrays.items()}, no_load))


@pytest.mark.parametrize("truncated", [False, True])
def test_remainders_of_f32_are_exact(truncated: bool) -> None:
    """Whatever the exponents are: the quotient may have 277 bits."""
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 2**32, 4000, np.uint32).view(np.float32) for _ in range(2))
    with np.errstate(all="ignore"):
        wanted = np.fmod(a, b)
        if not truncated:  # numpy's own adds the divisor in f32, and so does what rounds only once
            wide = wanted.astype(np.float64)
            moved = np.where((wide != 0) & ((wide < 0) != (b < 0)), wide + b, wide)
            wanted = moved.astype(np.float32)
    got = value(Mod(truncated).scalar(Var("a", DType.F32), Var("b", DType.F32)), a=a, b=b)
    np.testing.assert_array_equal(got, wanted)


def test_powers_of_integers_are_exact() -> None:
    base, exponent = np.meshgrid(np.arange(-9, 10), np.arange(0, 20))
    got = value(Pow().value([Var("a", DType.I64), Var("b", DType.I64)]), a=base, b=exponent)
    wanted = [int(a) ** int(b) for a, b in zip(base.flat, exponent.flat, strict=True)]
    np.testing.assert_array_equal(got.reshape(-1), np.array(wanted))


@pytest.mark.parametrize(
    ("base", "exponent", "wanted"),
    [(1, -5, 1), (-1, -5, -1), (-1, -4, 1), (2, -1, 0), (-1, 101, -1), (1, 2**40, 1)],
)
def test_reciprocals_and_huge_powers_of_integers(base: int, exponent: int, wanted: int) -> None:
    arrays = {"a": np.array([base]), "b": np.array([exponent])}
    assert value(Pow().value([Var("a", DType.I64), Var("b", DType.I64)]), **arrays) == wanted

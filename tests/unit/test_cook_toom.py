"""Bilinear algorithms for short correlations: the matrices are right, and so is the code that is made of them."""

from fractions import Fraction

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import constant_value
from tilewright.ir.expr import Binary, Expr, Fma, Select, Var, as_index, const, walk
from tilewright.ir.rewrite import substitute
from tilewright.ops.core.cook_toom import Matrix, apply_transforms, combine, scheme, select_element

SIZES = [(2, 3), (4, 3), (2, 5), (3, 2), (5, 2), (3, 4), (1, 1)]
F64 = DType.F64


def times(matrix: Matrix, values: list[Fraction]) -> list[Fraction]:
    return [sum((k * v for k, v in zip(row, values, strict=True)), Fraction(0)) for row in matrix]


@pytest.mark.parametrize(("outputs", "taps"), SIZES)
def test_the_matrices_give_the_correlation_exactly(outputs: int, taps: int) -> None:
    s = scheme(outputs, taps)
    assert s is not None and (s.outputs, s.taps, s.products) == (outputs, taps, outputs + taps - 1)
    rng = np.random.default_rng(0)
    data = [Fraction(int(n)) for n in rng.integers(-9, 9, outputs + taps - 1)]
    weights = [Fraction(int(n)) for n in rng.integers(-9, 9, taps)]
    products = [a * b for a, b in zip(times(s.filter, weights), times(s.data, data), strict=True)]
    assert times(s.output, products) == [
        sum((data[i + k] * weights[k] for k in range(taps)), Fraction(0)) for i in range(outputs)
    ]


@pytest.mark.parametrize(("outputs", "taps"), [(9, 3), (3, 1), (1, 3), (6, 3)])
def test_sizes_without_points_have_no_scheme(outputs: int, taps: int) -> None:
    assert scheme(outputs, taps) is None


def value(e: Expr, known: dict[Var, float]) -> float:
    return float(constant_value(substitute(e, {v: const(x, F64) for v, x in known.items()})))


@pytest.mark.parametrize(("outputs", "taps"), SIZES)
@pytest.mark.parametrize("which", ["data", "filter", "output"])
def test_straight_line_code_is_the_matrix(outputs: int, taps: int, which: str) -> None:
    s = scheme(outputs, taps)
    assert s is not None
    matrix: Matrix = getattr(s, which)
    names = [Var(f"x{n}", F64) for n in range(len(matrix[0]))]
    given = dict(zip(names, np.random.default_rng(1).standard_normal(len(names)).tolist(), strict=True))
    want = np.array([[float(k) for k in row] for row in matrix]) @ np.array(list(given.values()))
    got = [value(e, given) for e in combine(matrix, names)]
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_pairs_of_points_share_their_sums() -> None:
    s = scheme(4, 3)
    assert s is not None
    rows = combine(s.data, [Var(f"x{n}", F64) for n in range(6)])
    work = {e for row in rows for e in walk(row) if isinstance(e, Binary | Fma)}
    assert len(work) == 12  # 22 without sharing: as many as the matrix has entries besides those of 1
    results = combine(s.output, [Var(f"m{n}", F64) for n in range(6)])
    assert len({e for row in results for e in walk(row) if isinstance(e, Binary | Fma)}) <= 14


def test_two_axes_are_transformed_one_after_the_other() -> None:
    s = scheme(2, 3)
    assert s is not None
    names = {(i, j): Var(f"x{i}{j}", F64) for i in range(4) for j in range(4)}
    given = {v: float(n * n % 7) for n, v in enumerate(names.values())}
    x = np.array([[given[names[i, j]] for j in range(4)] for i in range(4)])
    matrix = np.array([[float(k) for k in row] for row in s.data])
    found = apply_transforms([s.data, s.data], lambda i, j: names[i, j])
    want = matrix @ x @ matrix.T
    assert {at: value(e, given) for at, e in found.items()} == {
        (i, j): want[i, j] for i in range(4) for j in range(4)
    }


def test_what_is_picked_is_what_is_at_the_indices() -> None:
    a, b = Var("a"), Var("b")
    values: dict[tuple[int, ...], Expr] = {(i, j): const(10 * i + j, F64) for i in range(3) for j in range(2)}
    chosen = select_element([a, b], values)
    for at, e in values.items():
        one = substitute(chosen, {a: as_index(at[0]), b: as_index(at[1])})
        assert one is e and not any(isinstance(n, Select) for n in walk(one))

"""The simplifier: same value on every point of the ranges, bounds that hold, and normal forms that meet."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.evaluate import Evaluated, evaluate
from tilewright.ir.expr import (
    FALSE,
    TRUE,
    Binary,
    BinaryOp,
    Buffer,
    Const,
    DimSize,
    Expr,
    Load,
    Select,
    Unary,
    UnaryOp,
    Var,
    as_index,
    const,
    equal,
    free_vars,
    maximum,
    minimum,
)
from tilewright.ir.simplify import Interval, Simplifier

i, j, k, u = (Var(n) for n in "ijku")  # u has no known range
RANGES = {i: Interval(0, 6), j: Interval(0, 7), k: Interval(-3, 4)}
UNKNOWN_VALUES = (-1000, -5, -1, 0, 1, 3, 999)


def points(variables: set[Var]) -> dict[Var, Evaluated]:
    """All values of the variables together, as arrays."""
    ordered = sorted(variables, key=lambda v: v.name)
    domains = [
        range(int(RANGES[v].lo), int(RANGES[v].hi) + 1) if v in RANGES else UNKNOWN_VALUES for v in ordered
    ]
    grid = list(itertools.product(*domains))
    return {v: np.array([row[n] for row in grid], np.int64) for n, v in enumerate(ordered)}


def values(e: Expr, at: dict[Var, Evaluated]) -> np.ndarray:
    def load(node: Load, indices: tuple[Evaluated, ...]) -> Evaluated:
        return np.asarray(indices[0]) * 7 % 5 - 2  # some fixed contents of any index

    n = max((np.size(v) for v in at.values()), default=1)
    return np.broadcast_to(np.asarray(evaluate(e, at, load)), (n,))


def check(e: Expr) -> Expr:
    simplify = Simplifier(RANGES)
    out = simplify(e)
    at = points(free_vars(e))
    before, after = values(e, at), values(out, at)
    np.testing.assert_array_equal(after, before)
    assert simplify(out) is out, "simplifying twice changes more"
    if e.dtype is INDEX:
        lo, hi = simplify.bounds(e)
        assert lo <= before.min() and before.max() <= hi
        known = simplify.constant(e)
        assert known is None or (before == known).all()
    return out


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        (i + j - i, j),
        (i * 3 - i * 2, i),
        ((i + 1) * 4 - 4, i * 4),
        (j * 8 + j, j * 9),
        ((u * 8 + j) // 8, u),
        ((u * 8 + j) % 8, j),
        (u // 8 * 8 + u % 8, u),
        (u // 8 % 4 * 8 + u % 8, u % 32),
        (u * 12 // 4, u * 3),
        (u * 12 % 4, as_index(0)),
        ((u * 6 + 3) // 4, (u * 3 + 1) // 2),
        ((u * 6 + 2) % 4, (u * 3 + 1) % 2 * 2),
        (u // 3 // 4, u // 12),
        ((u // 3 + 2) // 4, (u + 6) // 12),
        (u % 12 % 4, u % 4),
        ((u + 9) % 4, (u + 1) % 4),
        (i // 7, as_index(0)),
        (i % 7, i),
        (k % 8, k % 8),
        ((k + 3) % 8, k + 3),
        (minimum(i, 6), i),
        (maximum(i, j + 7), j + 7),
        (minimum(u, u + 1), u),
        (i < 7, TRUE),
        (as_index(7) <= i, FALSE),
        (u * 4 < 9, u < 3),
        (u * 4 <= 8, u < 3),
        (equal(u * 2, 3), FALSE),
        (equal(u * 2, 4), equal(u, 2)),
        (equal(u - 3, u - 3), TRUE),
        (logical_and(i < 7, u < 3), u < 3),
        (Unary(UnaryOp.NEG, Unary(UnaryOp.NEG, u)), u),
        (Select(i < 7, u, j), u),
    ],
    ids=lambda e: None,
)
def test_rule(e: Expr, expected: Expr) -> None:
    assert check(e) is expected


def test_a_variable_with_one_value_is_a_constant() -> None:
    assert Simplifier({i: Interval(3, 3)})(i * 2 + j) is j + 6


def test_equal_index_expressions_meet() -> None:
    simplify = Simplifier(RANGES)
    a = (i * 8 + j) * 3 + k
    b = k + j * 3 + 12 * i + i * 12
    assert simplify(a) is simplify(b)


def test_floats_pass_with_their_indices_simplified() -> None:
    a = Buffer("A", (100,), DType.F32)
    x = a[i + j - i] + const(0.0, DType.F32)
    assert Simplifier(RANGES)(x) is Binary(BinaryOp.ADD, a[j], const(0.0, DType.F32))


def test_a_quotient_of_open_sizes_is_near_to_what_it_divides() -> None:
    n = DimSize("n", 1, 20)
    for by, behind in itertools.product((2, 3, 4, 8), range(4)):
        rounded = const(0) - (const(0) - n * 2 - behind) // by * by  # up to the next multiple
        more = rounded - n * 2
        low, high = Simplifier().bounds(more)
        values = [-((-2 * v - behind) // by) * by - 2 * v for v in range(1, 21)]
        assert behind <= low <= min(values) and max(values) <= high <= behind + by - 1


def test_bounds_of_unknowns_are_infinite() -> None:
    assert Simplifier(RANGES).bounds(u + 1) == (-math.inf, math.inf)
    assert Simplifier(RANGES).bounds(u % 5) == (0, 4)
    assert Simplifier(RANGES).bounds(minimum(u, 3)) == (-math.inf, 3)
    assert Simplifier(RANGES).bounds(i * k) == (-18, 24)


def _expressions(depth: int) -> st.SearchStrategy[Expr]:
    leaf = st.one_of(st.sampled_from([i, j, k, u]), st.integers(-20, 20).map(as_index))
    if depth == 0:
        return leaf
    sub = _expressions(depth - 1)
    divisor = st.integers(1, 12).map(as_index)
    arith = st.sampled_from([BinaryOp.ADD, BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MIN, BinaryOp.MAX])
    return st.one_of(
        leaf,
        st.builds(Binary, arith, sub, sub),
        st.builds(lambda a, c: Binary(BinaryOp.MUL, a, as_index(c)), sub, st.integers(-8, 8)),
        st.builds(Binary, st.sampled_from([BinaryOp.FLOORDIV, BinaryOp.MOD]), sub, divisor),
        st.builds(lambda a, b: Binary(BinaryOp.MUL, a, b), sub, sub),
        st.builds(lambda a: Unary(UnaryOp.NEG, a), sub),
        st.builds(lambda a: Load(Buffer("T", (9,), INDEX), (a,)), sub),
        st.builds(lambda a, b, c: Select(Binary(BinaryOp.LT, a, b), b, c), sub, sub, sub),
    )


@given(_expressions(3))
@settings(max_examples=100, deadline=None)
def test_any_integer_expression_keeps_its_value(e: Expr) -> None:
    check(e)


@given(
    _expressions(2), _expressions(2), st.sampled_from([BinaryOp.LT, BinaryOp.LE, BinaryOp.EQ, BinaryOp.NE])
)
@settings(max_examples=100, deadline=None)
def test_any_comparison_keeps_its_value(a: Expr, b: Expr, op: BinaryOp) -> None:
    cond = Binary(op, a, b)
    check(cond)


@given(
    st.lists(st.sampled_from([2, 3, 4, 6, 8, 16]), min_size=1, max_size=3),
    st.lists(st.sampled_from([i, j, u]), min_size=2, max_size=3),
    st.integers(0, 30),
)
@settings(max_examples=100, deadline=None)
def test_any_tiled_index_keeps_its_value(factors: list[int], variables: list[Var], offset: int) -> None:
    """Sums of products, split and joined again: what schedules make."""
    e: Expr = as_index(offset)
    for v, f in zip(variables, itertools.cycle(factors), strict=False):
        e = e * f + v
    for f in factors:
        e = e // f * f + e % f
        check(e // f)
        check(e % f)
    check(e)


@given(st.lists(st.tuples(_expressions(2), st.integers(0, 9)), max_size=4))
@settings(max_examples=50, deadline=None)
def test_a_weighted_sum_is_that_of_the_expression(terms: list[tuple[Expr, int]]) -> None:
    whole: Expr = as_index(0)
    for e, k in terms:
        whole = whole + e * k
    simplify = Simplifier(RANGES)
    assert simplify.weighted([e for e, _ in terms], [k for _, k in terms]) == simplify.linear(whole)


def test_zero_divisors_are_left_alone() -> None:
    e = Binary(BinaryOp.FLOORDIV, u, Const(INDEX, 0))
    assert Simplifier(RANGES)(e) is e


def test_comparisons_of_data_do_not_subtract() -> None:
    """What is loaded may be any number, so a difference may overflow; indices do not."""
    x = Buffer("x", (8,), INDEX)
    e = Binary(BinaryOp.LT, x[i], x[j])
    assert Simplifier(RANGES)(e) is e

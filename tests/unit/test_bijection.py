"""Bijections of loops onto iterators: what is recognised is true, and what steps make is recognised."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    Expr,
    Var,
    const,
)
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.tir.analysis.bijection import Image, Unrecognised, image
from tilewright.tir.analysis.points import count_instances

L, J, K = Var("i"), Var("j"), Var("k")


def find(
    values: list[Expr],
    domain: list[int],
    loops: dict[Var, int],
    conditions: tuple[Expr, ...] = (),
    fixed: dict[Var, int] | None = None,
) -> Image | Unrecognised:
    ranges = {v: Interval(0, n - 1) for v, n in (loops | (fixed or {})).items()}
    return image(values, domain, conditions, loops, Simplifier(ranges))


WHOLE: dict[str, tuple[list[Expr], list[int], dict[Var, int], tuple[Expr, ...]]] = {
    "a fused pair": ([L * 8 + J], [24], {L: 3, J: 8}, ()),
    "a split": ([L // 4, L % 4], [2, 4], {L: 8}, ()),
    "three digits": ([L // 6, L % 6 // 2, L % 2], [2, 3, 2], {L: 12}, ()),
    "digits of a fused pair": ([(L * 6 + J) // 4, (L * 6 + J) % 4], [3, 4], {L: 2, J: 6}, ()),
    "a remainder": ([L * 4 + J], [10], {L: 3, J: 4}, (L * 4 + J < 10,)),
    "two remainders": (
        [L * 4 + J * 3 + K],
        [10],
        {L: 3, J: 2, K: 3},
        (L * 4 + J * 3 + K < 10, J * 3 + K < 4),
    ),
    "digits of a remainder": (
        [(L * 4 + J) // 5, (L * 4 + J) % 5],
        [2, 5],
        {L: 3, J: 4},
        (L * 4 + J < 10,),
    ),
    "counting down": ([const(9) - L], [10], {L: 10}, ()),
    "a loop of one iteration": ([L * 4 + J], [4], {L: 1, J: 4}, ()),
    "a constant": ([L, const(0)], [4, 1], {L: 4}, ()),
    "in another order": ([J, L], [5, 3], {L: 3, J: 5}, ()),
}


@pytest.mark.parametrize("name", WHOLE)
def test_patterns_of_splits_and_fusions_are_bijections(name: str) -> None:
    values, domain, loops, conditions = WHOLE[name]
    found = find(values, domain, loops, conditions)
    assert isinstance(found, Image) and found.is_whole(domain), found


WRONG: dict[str, tuple[list[Expr], list[int], dict[Var, int], tuple[Expr, ...], str]] = {
    "a diagonal": ([L, L * 2], [4, 8], {L: 4}, (), "skips values"),
    "the same loop twice": ([L, L], [4, 4], {L: 4}, (), "used twice"),
    "a loop that feeds nothing": ([L], [4], {L: 4, J: 3}, (), "j feeds no iterator"),
    "half of a split": ([L // 4], [2], {L: 8}, (), "not used"),
    "an uneven split": ([L // 4, L % 4], [3, 4], {L: 10}, (), "not divided evenly"),
    "overlapping windows": ([L * 2 + J], [7], {L: 3, J: 3}, (), "repeats values"),
    "a product of loops": ([L * J], [9], {L: 3, J: 3}, (), "not quasi-affine"),
    "out of the domain": ([L * 4 + J], [10], {L: 3, J: 4}, (), "leaves the domain"),
    "a condition of another kind": ([L, J], [2, 5], {L: 2, J: 5}, (L * 5 + J < 7,), "a condition on"),
    "nothing runs": ([L], [4], {L: 4}, (L < 0,), "never runs"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_bijection_is_refused_with_a_reason(name: str) -> None:
    values, domain, loops, conditions, reason = WRONG[name]
    found = find(values, domain, loops, conditions)
    assert isinstance(found, Unrecognised) and reason in found.reason


def test_a_part_of_the_domain_is_told() -> None:
    found = find([L + 5], [10], {L: 5})
    assert isinstance(found, Image) and not found.is_whole([10])
    assert found.spans[0] == (const(5), 5)


def test_loops_outside_may_repeat_the_rest() -> None:
    """After compute_at: the windows of two iterations overlap, each one is a box."""
    found = find([L * 2 + J], [9], {J: 3}, (L * 2 + J < 9,), fixed={L: 4})
    assert isinstance(found, Image) and found.spans[0].extent == 3
    assert find([L * 4 + J], [14], {J: 6}, fixed={L: 3}) == Image(((L * 4, 6),), (False,))


@st.composite
def bindings(draw: st.DrawFn) -> tuple[list[Expr], list[int], dict[Var, int], tuple[Expr, ...]]:
    """Values over three small loops: often what steps make, often not quite."""
    extents = [draw(st.integers(1, 6)) for _ in range(3)]
    loops = dict(zip((L, J, K), extents, strict=True))
    exact = draw(st.booleans())
    scales = [extents[1] * extents[2], extents[2], 1]
    if not exact:
        scales = [draw(st.sampled_from([s, 1, 2, 3])) for s in scales]
    fused = L * scales[0] + J * scales[1] + K * scales[2] + draw(st.sampled_from([0, 0, 0, 1]))
    total = math.prod(extents)
    pair = J * (extents[2] if exact else draw(st.integers(1, 4))) + K
    a = draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0 or not exact]))
    match draw(st.integers(0, 4)):
        case 0:
            values, domain = [fused], [total]
        case 1:
            values, domain = [fused // a, fused % a], [-(-total // a), a]
        case 2:
            values, domain = [L, pair], [extents[0], extents[1] * extents[2]]
        case 3:
            b = draw(st.integers(1, 4))
            values, domain = [fused // (a * b), fused // a % b, fused % a], [-(-total // (a * b)), b, a]
        case _:
            values, domain = [L * 1, J * 1, K * 1], extents
    limit = draw(st.integers(0, total + 1))
    conditions = draw(st.sampled_from([(), (fused < limit,), (pair < limit,), (fused < limit, pair < 5)]))
    return values, domain, loops, conditions


@settings(max_examples=100, deadline=None)
@given(bindings())
def test_what_is_recognised_is_what_is_counted(
    case: tuple[list[Expr], list[int], dict[Var, int], tuple[Expr, ...]],
) -> None:
    values, domain, loops, conditions = case
    found = find(values, domain, loops, conditions)
    if isinstance(found, Unrecognised):
        return
    parts = [s.extent for s in found.spans]
    moved = [v - s.min for v, s in zip(values, found.spans, strict=True)]
    counted = count_instances(moved, parts, (logical_and(*conditions),) if conditions else (), loops)
    assert counted is not None and counted.reason is None, (found, counted)

"""What is called injective is injective, on every point of small domains."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir.expr import Expr, Var, const
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.tir.analysis.affine import determined, is_injective


@st.composite
def an_index(draw: st.DrawFn, variables: list[Var]) -> Expr:
    e: Expr = const(draw(st.integers(-3, 3)))
    for v in variables:
        e = e + v * draw(st.integers(-6, 6))
    match draw(st.sampled_from(["plain", "div", "mod"])):
        case "div":
            return e // draw(st.integers(1, 6))
        case "mod":
            return e % draw(st.integers(1, 6))
        case _:
            return e


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_what_is_called_injective_is(data: st.DataObject) -> None:
    extents = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=2))
    variables = [Var(f"inj_{n}") for n in range(len(extents))]
    indices = [data.draw(an_index(variables)) for _ in range(data.draw(st.integers(1, 3)))]
    simplify = Simplifier({v: Interval(0, e - 1) for v, e in zip(variables, extents, strict=True)})
    known = determined(indices, simplify)
    seen: dict[tuple[object, ...], dict[Var, int]] = {}
    for point in np.ndindex(*extents):
        at = dict(zip(variables, point, strict=True))
        fixed = Simplifier({v: Interval(x, x) for v, x in at.items()})
        values = tuple(fixed.constant(i) for i in indices)
        other = seen.setdefault(values, at)
        for v in variables:
            assert v not in known or other[v] == at[v]


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        (lambda i, j: (i * 6 + j,), True),
        (lambda i, j: (i * 5 + j,), False),
        (lambda i, j: ((i * 6 + j) // 4, (i * 6 + j) % 4), True),
        (lambda i, j: ((i * 6 + j) // 4, (i * 6 + j) % 3), False),
        (lambda i, j: (i + j, j), True),
        (lambda i, j: (i, j // 2), False),
        (lambda i, j: (i * -6 - j + 3,), True),
    ],
)
def test_injective(indices: Callable[[Var, Var], tuple[Expr, ...]], expected: bool) -> None:
    i, j = Var("inj_i"), Var("inj_j")
    simplify = Simplifier({i: Interval(0, 7), j: Interval(0, 5)})
    assert is_injective(indices(i, j), (i, j), simplify) is expected

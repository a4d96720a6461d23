"""Sizes over open dimensions: the arithmetic of shapes."""

import math
import pickle
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.support.sizes import (
    Dim,
    SizeError,
    SymInt,
    capacity,
    is_open,
    ratio_of,
    recording,
    same_size,
    size_of,
    sym_int,
)

BATCH, TOKENS, HEIGHT = Dim("batch", 1, 8), Dim("tokens", 1, 512), Dim("height", 32, 640, 32)
B, S, H = map(sym_int, (BATCH, TOKENS, HEIGHT))


def test_reshapes_come_out_even() -> None:
    assert str(math.prod((B, S, 768)) // (12 * 64)) == "batch * tokens"
    assert same_size(B * S * 768 // B, S * 768)
    assert S * 768 // S == 768


def test_multiples_divide() -> None:
    assert same_size((H + 2 - 3) // 2 + 1, H // 2)
    assert H % 32 == 0
    assert str(H // 2) == "(height // 32) * 16"


def test_the_value_is_that_at_the_capacity() -> None:
    assert int(S) == capacity(S) == 512
    assert capacity((S + 1) // 2) == 256
    assert capacity(7) == 7
    assert is_open((3, S)) and not is_open((3, 4))


def test_what_holds_for_all_sizes_is_answered_without_a_guard() -> None:
    with recording() as guards:
        assert S <= 512 and S >= 1 and S < 513 and S > 0 and S != 0 and S
        assert S == S + 0 and S * B == B * S and not S > 512
    assert not guards.found


def test_what_holds_for_some_is_noted() -> None:
    with recording() as guards:
        assert S != 1
        assert not S < 7
    kept, not_small = guards.found
    assert kept.holds({"tokens": 2}) and not kept.holds({"tokens": 1})
    assert not_small.holds({"tokens": 7}) and not not_small.holds({"tokens": 6})


@pytest.mark.parametrize(
    "wrong", [lambda: S // B, lambda: 3 // S, lambda: S / 2, lambda: float(S), lambda: 1 / S]
)
def test_what_cannot_be_expressed_is_refused(wrong: "object") -> None:
    with pytest.raises(SizeError):
        wrong()  # type: ignore[operator]


def test_a_size_can_be_sent() -> None:
    assert pickle.loads(pickle.dumps(S * 2 + 1)) == S * 2 + 1


sizes = st.fixed_dictionaries({"batch": st.integers(1, 8), "tokens": st.integers(1, 512)})
Step = tuple[str, int]
steps = st.lists(
    st.tuples(st.sampled_from("+-*/%bs"), st.integers(1, 9)),
    max_size=8,
)


@given(steps, sizes)
def test_expressions_are_what_the_numbers_are(todo: list[Step], at: dict[str, int]) -> None:
    open_number, number = S, at["tokens"]
    for op, n in todo:
        match op:
            case "+":
                open_number, number = open_number + n, number + n
            case "-":
                open_number, number = open_number - n, number - n
            case "*":
                open_number, number = open_number * n, number * n
            case "/":
                open_number, number = open_number // n, number // n
            case "%":
                open_number, number = open_number % n, number % n
            case "b":
                open_number, number = open_number + B, number + at["batch"]
            case _:
                open_number, number = open_number + S * B, number + at["tokens"] * at["batch"]
    size = size_of(open_number)
    low, high = size.bounds
    assert size.evaluate(at) == number
    assert low <= number <= high
    assert not isinstance(open_number, SymInt) or int(open_number) == high


def test_a_ratio_is_the_same_for_all_sizes_or_refused() -> None:
    assert ratio_of(S * 6, S * 4) == Fraction(3, 2)
    assert ratio_of(10, 4) == Fraction(5, 2)
    for a, b in ((S, B), (S + 1, S), (S, 4), (4, S)):
        with pytest.raises(SizeError):
            ratio_of(a, b)


def test_a_fraction_takes_no_open_number() -> None:
    with pytest.raises(SizeError):
        Fraction(S, 4)
    with pytest.raises(SizeError):
        Fraction(1, 2) * S

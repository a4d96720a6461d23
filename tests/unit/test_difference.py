"""How far results are apart, and what a tolerance allows."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.cli.difference import Difference, Tolerance, compare_outputs, is_exact


def difference(got: Any, wanted: Any, steps: int = 0) -> Difference:
    (found,) = Tolerance(steps=steps).differences({"y": got}, {"y": wanted})
    return found


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.complex64])
def test_floats_are_relative_to_the_largest_magnitude(dtype: Any) -> None:
    d = difference(np.array([1, 101], dtype), np.array([1, 100], dtype))
    assert (d.largest, d.different, d.reason) == (1, 1, "")
    assert d.error == pytest.approx(0.01)


def test_special_values_are_counted() -> None:
    inf, nan = np.inf, np.nan
    wanted = np.array([inf, -inf, nan, 1, 1, 4])
    assert difference(wanted, wanted) == Difference("y", 0.0)
    d = difference(np.array([inf, inf, nan, nan, inf, 5]), wanted)
    assert (d.error, d.largest, d.different) == (inf, 1, 4)
    assert d.reason == "NaN or infinities in 3 of 6 places differ"


def test_no_reference_to_be_relative_to() -> None:
    assert difference(np.array([0.25]), np.array([0.0])).error == 0.25
    assert difference(np.zeros((0, 3)), np.zeros((0, 3))).error == 0


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64, ml_dtypes.int4])
def test_integers_are_equal_or_a_few_steps_apart(dtype: Any) -> None:
    wanted = np.array([1, 2, 5], dtype)
    got = np.array([1, 4, 4], dtype)
    assert difference(wanted, wanted).error == 0
    d = difference(got, wanted)
    assert (d.error, d.reason) == (np.inf, "2 of 3 integers differ, by up to 2")
    assert difference(got, wanted, steps=1).error == np.inf
    assert difference(got, wanted, steps=2) == Difference("y", 0.0, 2, 2)


def test_distances_of_large_integers_do_not_overflow() -> None:
    low, high = np.array([-(2**63)], np.int64), np.array([2**63 - 1], np.int64)
    assert difference(low, high).largest == pytest.approx(2.0**64)
    assert difference(np.array([0], np.uint64), np.array([2**64 - 1], np.uint64)).largest == 2**64 - 1


def test_bools_and_strings_are_equal_whatever_is_allowed() -> None:
    assert difference(np.array([True]), np.array([False]), steps=5).error == np.inf
    words = np.array(["a", "b"], object)
    assert difference(words, words).error == 0
    assert difference(np.array(["a", "c"], object), words).reason == "1 of 2 strings differ"


def test_shapes_and_types_must_be_equal() -> None:
    x = np.zeros(2, np.float32)
    assert difference(x, np.zeros((2, 1), np.float32)).reason == "shapes [2] and [2, 1]"
    assert difference(x.astype(np.float64), x).reason == "types float64 and float32"
    assert difference(x.astype(np.int32), x).reason == "types int32 and float32"
    (lenient,) = compare_outputs(
        {"y": x.astype(np.float64)}, {"y": x}
    )  # what was written to a file may be wider
    assert lenient.error == 0


def test_sequences_maps_and_nothing() -> None:
    x, y = np.array([1.0]), np.array([2.0])
    assert difference([x, y], [x, y]).error == 0
    assert difference([x, x], [x, y]).error == 0.5
    assert difference([x], [x, y]).reason == "sequences of different lengths"
    assert difference(x, [x]).reason == "sequences of different lengths"
    assert difference([], []).error == 0
    assert difference({"a": 1.0}, {"a": 2.0}).error == 0.5
    assert difference({"b": 1.0}, {"a": 1.0}).reason == "maps with different keys"
    assert difference(None, None).error == 0
    assert difference(x, None).error == difference(None, x).error == np.inf


def test_large_tensors_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.cli.difference._CHUNK", 7)
    wanted = np.linspace(-5, 4, 100).reshape(10, 10)
    got = wanted.copy()
    got[9, 9] += 0.5
    got[0, 1] = np.nan
    d = difference(got, wanted)
    assert (d.largest, d.different, d.error) == (0.5, 2, np.inf)
    got[0, 1] = wanted[0, 1]
    assert difference(got, wanted).error == pytest.approx(0.1)


def test_which_types_are_exact() -> None:
    exact = [np.bool_, np.uint16, np.dtype(object), ml_dtypes.int4, ml_dtypes.uint2]
    assert all(is_exact(np.dtype(t)) for t in exact)
    assert not any(is_exact(np.dtype(t)) for t in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2))


def test_a_tolerance_allows_what_is_no_larger() -> None:
    allowed = Tolerance(0.5)
    assert allowed.allows(Difference("y", 0.5))
    assert not allowed.allows(Difference("y", 0.51))
    worst = allowed.worst({"a": np.ones(1), "b": np.ones(1)}, {"a": np.ones(1), "b": np.full(1, 2.0)})
    assert worst.output == "b"

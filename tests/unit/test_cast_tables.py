"""Conversion to floats of 8 bits, as the tables in ONNX's declaration of Cast have it."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.ops.host.cast import convert_array

NAN, INF = float("nan"), float("inf")
E4M3FN, E4M3FNUZ = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz
E5M2, E5M2FNUZ = ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz
E8M0 = ml_dtypes.float8_e8m0fnu


def converted(value: float, dtype: Any, source: Any, **how: Any) -> float:
    x = np.array([value], source)
    return float(convert_array(x, np.dtype(dtype), **how)[0])


@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("dtype", "top"), [(E4M3FN, 448), (E4M3FNUZ, 240), (E5M2, 57344), (E5M2FNUZ, 57344)])
def test_saturated(dtype: Any, top: float, source: Any) -> None:
    large = 60000.0  # f16 holds it
    assert converted(large, dtype, source) == top and converted(-large, dtype, source) == -top
    assert converted(INF, dtype, source) == top and converted(-INF, dtype, source) == -top
    assert np.isnan(converted(NAN, dtype, source))
    zero = converted(-0.0, dtype, source)
    assert zero == 0 and np.signbit(zero) == (dtype in (E4M3FN, E5M2))


@pytest.mark.parametrize(("dtype", "beyond"), [(E4M3FN, NAN), (E4M3FNUZ, NAN), (E5M2, INF), (E5M2FNUZ, NAN)])
def test_not_saturated(dtype: Any, beyond: float) -> None:
    for value in (1e6, INF):
        np.testing.assert_equal(converted(value, dtype, np.float32, saturate=False), beyond)
        np.testing.assert_equal(converted(-value, dtype, np.float32, saturate=False), -beyond)


@pytest.mark.parametrize("dtype", [E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ])
def test_rounds_half_to_even(dtype: Any) -> None:
    step = float(ml_dtypes.finfo(dtype).eps)
    assert converted(1 + step / 2, dtype, np.float32) == 1
    assert converted(1 + 3 * step / 2, dtype, np.float32) == 1 + 2 * step
    assert converted(1 + step / 2 + 1e-6, dtype, np.float32) == 1 + step


def test_powers_of_two() -> None:
    for value, wanted in (
        (0.0, 2.0**-127),
        (INF, 2.0**127),
        (1e-45, 2.0**-127),
        (3.3e38, 2.0**127),
        (NAN, NAN),
    ):
        np.testing.assert_equal(converted(value, E8M0, np.float32), wanted)
    for value in (0.0, INF, NAN, 3.3e38):
        assert np.isnan(converted(value, E8M0, np.float32, saturate=False, round_mode="nearest"))
    for mode, wanted in (("up", 4.0), ("down", 2.0), ("nearest", 4.0)):
        assert converted(3.0, E8M0, np.float16, round_mode=mode) == wanted
    assert converted(2.9, E8M0, np.float32, round_mode="nearest") == 2.0
    assert converted(4.0, E8M0, np.float32, round_mode="up") == 4.0


def test_integers_of_a_few_bits_keep_the_low_ones() -> None:
    x = np.array([-9, -1, 7, 8, 200])
    assert convert_array(x, np.dtype(ml_dtypes.int4)).astype(int).tolist() == [7, -1, 7, -8, -8]
    assert convert_array(x, np.dtype(ml_dtypes.uint4)).astype(int).tolist() == [7, 15, 7, 8, 8]
    assert convert_array(x, np.dtype(ml_dtypes.int2)).astype(int).tolist() == [-1, -1, -1, 0, 0]

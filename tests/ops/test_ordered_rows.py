"""TopK by every algorithm that a row may take, and on rows that are hard for it; NonMaxSuppression likewise."""

from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from native import TARGETS, run_native

from tilewright.ops.core.suppression import BestBoxes
from tilewright.ops.core.topk import TopK
from tilewright.ops.opdef import Op, TensorType
from tilewright.search.default import schedule_func
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.stmt import For, LoopKind

TARGET = TARGETS[-1]


@lru_cache(maxsize=4)
def scheduled(op: Op, *types: TensorType) -> Func:
    b = FuncBuilder("kernel")
    params = [b.param(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)]
    return schedule_func(b.finish(*op.compute(b, params, "out")), TARGET).func


def run(op: Op, *inputs: Array) -> list[Array]:
    return run_native(scheduled(op, *map(TensorType.of, inputs)), inputs, TARGET)


def check(op: Op, *inputs: Array) -> None:
    for got, wanted in zip(run(op, *inputs), op.reference(inputs), strict=True):
        np.testing.assert_array_equal(got.view(np.uint8), wanted.view(np.uint8))  # the sign of zero, too


def hard_rows(length: int) -> Array:
    rng = np.random.default_rng(length)
    normal = rng.standard_normal(length)
    rows = [
        normal,
        np.sort(normal),  # every element is better than all before it, or worse
        -np.sort(normal),
        np.zeros(length),
        np.where(rng.uniform(size=length) < 0.5, 0.0, -0.0),
        np.full(length, np.nan),
        np.where(rng.uniform(size=length) < 0.1, np.nan, rng.integers(-2, 3, length)),
        rng.choice([np.inf, -np.inf, 1e-40, -1e-40, 0.0], length),
    ]
    return np.array(rows, np.float32)


ROWS = [
    *((n, n) for n in (1, 31, 32, 33, 256, 257, 1000, 8192)),  # ranked; digits of 8 bits, and of 11
    *((n, k) for n in (257, 300, 1000, 5003) for k in (1, 16, 64)),  # filtered
    (64, 7),
    (1000, 65),
]


def in_turn(number: int, largest: bool) -> Any:
    """The direction of this number always, the other one in long runs: neighbours take the two in turn, so that each
    algorithm, length and type has both.
    """
    return () if largest is (number % 2 == 0) else pytest.mark.slow


@pytest.mark.parametrize(
    ("length", "k", "largest"),
    [
        pytest.param(*row, largest, marks=in_turn(number, largest))
        for number, row in enumerate(ROWS)
        for largest in (True, False)
    ],
)
def test_rows_of_all_lengths(length: int, k: int, largest: bool) -> None:
    check(TopK(1, k, largest), hard_rows(length))


TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float64"]


@pytest.mark.parametrize(
    ("dtype", "k", "largest"),
    [
        pytest.param(dtype, k, largest, marks=in_turn(number + (k == 400), largest))
        for number, dtype in enumerate(TYPES)
        for k in (16, 400)
        for largest in (True, False)
    ],
)
def test_elements_of_all_types(dtype: str, k: int, largest: bool) -> None:
    rng = np.random.default_rng(1)
    if dtype.startswith("float"):
        x = rng.standard_normal((2, 400)).astype(dtype)
    else:
        ends = np.iinfo(dtype)
        x = rng.integers(ends.min, ends.max, (2, 400), dtype, endpoint=True)
        x[:, ::3] = rng.choice(np.array([ends.min, ends.max, 0], dtype), (2, 134))
    check(TopK(1, k, largest), x)


def test_bfloat16() -> None:
    x = np.random.default_rng(2).standard_normal((2, 400)).astype(ml_dtypes.bfloat16)
    wide = x.astype(np.float32)
    for k in (16, 400):
        values, places = run(TopK(1, k), x)
        wanted = TopK(1, k).reference([wide])
        np.testing.assert_array_equal(places, wanted[1])
        np.testing.assert_array_equal(values.astype(np.float32), wanted[0])


@pytest.mark.parametrize("length", [1, 100, 1000])
def test_a_single_row(length: int) -> None:
    x = np.random.default_rng(length).standard_normal(length).astype(np.float32)
    for k in {1, length}:
        check(TopK(0, k), x)


def test_the_middle_axis() -> None:
    x = np.random.default_rng(3).standard_normal((2, 300, 3)).astype(np.float32)
    for k in (5, 300):
        check(TopK(1, k), x)


def test_rows_are_divided_among_workers() -> None:
    b = FuncBuilder("kernel")
    x = b.param("x", (64, 1000), TensorType.of(np.zeros(1, np.float32)).dtype)
    func = schedule_func(b.finish(*TopK(1, 1000).compute(b, [x], "out")), TARGET).func
    assert isinstance(func.body, For) and func.body.kind is LoopKind.PARALLEL


def boxes(n: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    centres, sizes = rng.uniform(0, 4, (2, n, 2)), rng.uniform(0.1, 1, (2, n, 2))
    return np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=2).astype(np.float32)


@pytest.mark.parametrize("has_centres", [False, True])
@pytest.mark.parametrize("n", [1, 40, 300, pytest.param(700, marks=pytest.mark.slow)])
def test_boxes_of_one_class(n: int, has_centres: bool) -> None:
    scores = np.random.default_rng(n).uniform(size=(1, 1, n)).astype(np.float32)
    limits = np.array([n]), np.array([0.4], np.float32)
    check(BestBoxes(n, has_centres), boxes(n, n)[:1], scores, *limits)


@pytest.mark.parametrize("has_centres", [False, True])
@pytest.mark.parametrize("n", [1, 40, 300, pytest.param(700, marks=pytest.mark.slow)])
def test_boxes_that_stay(n: int, has_centres: bool) -> None:
    rng = np.random.default_rng(n)
    scores = rng.uniform(size=(2, 3, n)).astype(np.float32)
    scores[1] = np.round(scores[1], 1)  # many are equal
    most, overlap = np.array([n]), np.array([0.4], np.float32)
    for least in (-1.0, 0.3, 0.97, 2.0):
        limits = (most, overlap, np.array([least], np.float32))
        check(BestBoxes(n, has_centres), boxes(n, n), scores, *limits)
    check(BestBoxes(min(n, 20), has_centres), boxes(n, n), scores, np.array([1000]), overlap)
    check(BestBoxes(n, has_centres), boxes(n, n), scores, np.array([-3]), overlap)

"""Operators over open dimensions, one at a time, as one program for all sizes: against ONNX Runtime, as native code
and in the interpreter.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.fuzz.open_models import OpenModel, feeds_at
from tests.onnx_cases import check_outputs, run_onnxruntime
from tests.open_interp import OpenInterpreter
from tilewright.runtime.open_session import OpenSession
from tilewright.support.sizes import Dim, sym_int

Build = Callable[
    [OpenModel, int], str | tuple[str, ...]
]  # the names of the outputs; of a model, and the open size

N = Dim("n", 1, 40)
SIZES = (40, 1, 39, 7, 16, 3)


def one(op: str, *more: Any, **attrs: Any) -> Build:
    """An operator on [3, n, 4], with constants."""

    def build(m: OpenModel, n: int) -> str:
        given = [m.constant(a) for a in more]
        return m.op(op, m.input(3, n, 4), *given, **attrs)

    return build


def best(m: OpenModel, n: int) -> str | tuple[str, ...]:
    return m.op("TopK", m.input(3, n, 4), m.constant([1], np.int64), outputs=2, axis=1)


def least_of_rows(m: OpenModel, n: int) -> str | tuple[str, ...]:
    return m.op("TopK", m.input(3, 4, n), m.constant([1], np.int64), outputs=2, largest=0)[0]


def in_order(m: OpenModel, n: int) -> str | tuple[str, ...]:
    x = m.input(3, n, 4)
    return m.op("TopK", x, m.ints(n), outputs=2, axis=1)


def upper_half(m: OpenModel, n: int) -> str | tuple[str, ...]:
    x = m.input(3, n, 4)
    return m.op("Slice", x, m.ints(n // 2), m.ints(n), m.ints(1))


def backwards(m: OpenModel, n: int) -> str | tuple[str, ...]:
    """The first row lies at the end of memory that is read backwards, beyond what is in use before its beginning."""
    x = m.input(n, 40)
    return m.op("Slice", x, m.ints(-1), m.ints(-(1 << 60)), m.ints(0), m.ints(-1))


def one_hot(m: OpenModel, n: int) -> str | tuple[str, ...]:
    at, x = m.op("Cast", m.input(5), to=7), m.input(n)
    depth = m.op("Squeeze", m.ints(n), m.ints(0))
    return m.op("Add", m.op("OneHot", at, depth, m.constant(np.array([0, 1], np.float32))), x)


def scattered(m: OpenModel, n: int) -> str | tuple[str, ...]:
    x, more = m.input(3, 4), m.input(n, 4)
    at = m.part(np.arange(40)[::-1].reshape(40, 1) % 3, (n, 1))
    return m.op("ScatterND", x, at, more, reduction="add")


def products(m: OpenModel, n: int) -> str | tuple[str, ...]:
    x, w = m.input(3, n, 4), m.input(1, n, 5)
    return m.op("Einsum", x, w, equation="bij,bik->bjk")


def divided(m: OpenModel, n: int) -> str | tuple[str, ...]:
    """The number that is not given has several terms."""
    x = m.input(3, n, 4)
    y = m.op("Concat", x, m.constant(np.zeros((3, 2, 4), np.float32)), x, axis=1)
    return m.op("Reshape", y, m.op("Concat", m.ints(3), m.ints(2 * n + 2), m.ints(-1), axis=0))


def empty(m: OpenModel, n: int) -> str | tuple[str, ...]:
    return m.op("Slice", m.input(3, n, 4), m.ints(0), m.ints(0), m.ints(0))


def squared(m: OpenModel, n: int) -> str | tuple[str, ...]:
    x = m.input(n, n, 4)
    return m.op("Tanh", m.op("Reshape", x, m.op("Concat", m.ints(n * n), m.ints(4), axis=0)))


def resized(mode: str, places: str, to: str, **attrs: Any) -> Build:
    """An image [1, 2, n, 6]; by scales, to a fixed size, one more than twice as large, or as large as another."""

    def build(m: OpenModel, n: int) -> str:
        x = m.input(1, 2, n, 6)
        given: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": places, **attrs}
        if to == "scaled":
            return m.op("Resize", x, "", m.constant(np.array([1, 1, 1.3, 0.5], np.float32)), **given)
        height = {"fixed": 9, "larger": 2 * n + 1, "smaller": n // 2 + 1}[to]
        return m.op("Resize", x, "", "", m.ints(1, 2, height, 9), **given)

    return build


ONE = np.array(1)
OPERATORS: dict[str, Build] = {
    "running sum": one("CumSum", ONE),
    "running sum from the end": one("CumSum", ONE, reverse=1),
    "running sum before each, from the end": one("CumSum", ONE, reverse=1, exclusive=1),
    "place of the largest": one("ArgMax", axis=1),
    "last place of the least": one("ArgMin", axis=1, select_last_index=1),
    "edge": one("Pad", np.array([0, 3, 0, 0, 2, 0]), mode="edge"),
    "largest pool": one("MaxPool", kernel_shape=[1]),
    "triangle": one("Trilu", np.array(-1), upper=0),
    "nearest, to a fixed size": resized("nearest", "half_pixel", "fixed"),
    "nearest, by a decimal fraction": resized("nearest", "asymmetric", "scaled", nearest_mode="floor"),
    "linear, to a fixed size": resized("linear", "half_pixel", "fixed"),
    "linear, corner to corner": resized("linear", "align_corners", "smaller"),
    "linear, larger": resized("linear", "pytorch_half_pixel", "larger"),
    "linear, down to one": resized("linear", "pytorch_half_pixel", "smaller"),
    "cubic, by a decimal fraction": resized("cubic", "half_pixel", "scaled"),
    "cubic, corner to corner": resized("cubic", "align_corners", "larger"),
    "cubic, only what is inside": resized("cubic", "half_pixel", "fixed", exclude_outside=1),
    **{
        f.__name__: f
        for f in (
            *(best, least_of_rows, in_order, upper_half, backwards, one_hot, scattered),
            *(products, divided, empty, squared),
        )
    },
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_right_for_all_sizes(name: str) -> None:
    m = OpenModel(0)
    made = OPERATORS[name](m, sym_int(N))
    model = m.finish(*(made if isinstance(made, tuple) else (made,)))
    with tw.load(model, dims={"n": (N.least, N.most)}, threads=2) as session:
        assert isinstance(session, OpenSession)
        interpreter = OpenInterpreter(model, {"n": N})
        for n in SIZES:
            feeds = feeds_at(model, {"n": n}, np.random.default_rng(n))
            want = run_onnxruntime(model, feeds)
            check_outputs(session.run(feeds), want)
            check_outputs(interpreter.run(feeds, {"n": n}), want)


def test_taps_that_are_unrolled_end_where_the_signal_does() -> None:
    """Windows of one channel overlap; steps over their taps are limited, and are no tiles of rows."""
    m, samples = OpenModel(0), Dim("n", 512, 4000)
    filters = m.constant(m.rng.standard_normal((40, 1, 128)), np.float32)
    made = m.op("Conv", m.input(1, 1, sym_int(samples)), filters, strides=[40], kernel_shape=[128])
    model = m.finish(made)
    with tw.load(model, dims={"n": (samples.least, samples.most)}, threads=1) as session:
        for n in (512, 640, 1000, 1999, 4000):
            feeds = feeds_at(model, {"n": n}, np.random.default_rng(n))
            check_outputs(session.run(feeds), run_onnxruntime(model, feeds))


def test_a_bound_number_without_axes_is_that_of_the_last_run() -> None:
    m = OpenModel(0)
    model = m.finish(m.op("ReduceMean", m.input(3, sym_int(N)), keepdims=0))
    with tw.load(model, dims={"n": (N.least, N.most)}, threads=1) as session:
        for n in (40, 7):
            feeds = feeds_at(model, {"n": n}, np.random.default_rng(n))
            bound = session.bind(feeds)
            (x,), ((name, result),) = feeds.values(), bound.outputs.items()
            for factor in (1.0, -2.0):
                x *= np.float32(factor)
                assert bound.run()[name] is result and isinstance(result, np.ndarray)
                np.testing.assert_allclose(result, x.mean(), rtol=1e-5)
            assert isinstance(session.run(feeds)[name], np.ndarray)

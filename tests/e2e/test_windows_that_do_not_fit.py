"""Windows larger than the padded input: what ONNX's formula says of them, which may be an empty result.

The judge is ONNX's own reference: onnxruntime refuses convolutions without a result.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.onnx_cases import Model, check_outputs, random_feeds
from tilewright.support.errors import UserError


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")


def conv(m: Model, extent: int, kernel: int, **attrs: Any) -> str:
    return m.op("Conv", m.input(1, 2, extent, 6), m.weight(3, 2, kernel, 3), m.weight(3), **attrs)


def depthwise(m: Model, extent: int, kernel: int, **attrs: Any) -> str:
    return m.op("Conv", m.input(1, 16, extent, 6), m.weight(16, 1, kernel, 3), group=16, **attrs)


def transposed(m: Model, extent: int, kernel: int, **attrs: Any) -> str:
    return m.op("ConvTranspose", m.input(1, 2, extent, 6), m.weight(2, 3, kernel, 3), m.weight(3), **attrs)


def pool(m: Model, extent: int, kernel: int, **attrs: Any) -> str:
    return m.op("MaxPool", m.input(1, 3, extent, 6), kernel_shape=[kernel, 3], ceil_mode=1, **attrs)


@pytest.mark.parametrize(
    ("layer", "extent", "kernel", "attrs"),
    [
        (conv, 2, 3, {}),
        (conv, 2, 6, {"strides": [4, 1]}),
        (conv, 0, 3, {"pads": [1, 0, 1, 0]}),
        (depthwise, 2, 3, {}),
        (transposed, 2, 1, {"pads": [1, 0, 1, 0]}),
        (transposed, 1, 2, {"pads": [1, 0, 1, 0], "strides": [2, 1]}),
        (pool, 2, 4, {"strides": [2, 1]}),
    ],
)
def test_an_empty_result(layer: Callable[..., str], extent: int, kernel: int, attrs: dict[str, Any]) -> None:
    """Also where others take it up."""
    m = Model()
    y = layer(m, extent, kernel, **attrs)
    total = m.op("ReduceSum", m.op("Relu", y), m.ints(2, 3), keepdims=0)
    model = m.finish(y, total, m.op("Concat", total, m.input(1, 2), axis=1))
    feeds = random_feeds(model)
    want = dict(zip(["y", "total", "both"], ReferenceEvaluator(model).run(None, feeds), strict=True))
    assert want["y"].size == 0 and want["y"].ndim == 4
    with tw.load(model, threads=1) as session:
        got = dict(zip(want, session.run(feeds).values(), strict=True))
    check_outputs(got, want)


def test_less_than_nothing_is_refused() -> None:
    m = Model()
    with pytest.raises(UserError, match="smaller than the window"):
        tw.load(m.finish(conv(m, 2, 5)))


def test_what_engines_disagree_on_is_refused() -> None:
    """Without ceil_mode, ONNX's formula has no window here, and onnxruntime has one."""
    m = Model()
    model = m.finish(m.op("MaxPool", m.input(1, 1, 2), kernel_shape=[3], strides=[2]))
    with pytest.raises(UserError, match="smaller than the window"):
        tw.load(model)


def test_the_one_window_of_ceil_mode() -> None:
    m = Model()
    model = m.finish(m.op("MaxPool", m.input(1, 1, 2), kernel_shape=[3], strides=[2], ceil_mode=1))
    (x,) = random_feeds(model).values()
    with tw.load(model, threads=1) as session:
        (y,) = session.run(random_feeds(model)).values()
    np.testing.assert_array_equal(y, np.max(x, axis=2, keepdims=True))

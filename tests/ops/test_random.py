"""Random ops: distributions, seeds, types, and that nothing is drawn while a model is imported."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.runtime.session import Session
from tilewright.sessions.dynamic import DynamicSession
from tilewright.support.errors import UserError


def session(
    op_type: str, inputs: Mapping[str, tuple[int, list[int]]], **attrs: Any
) -> Session | DynamicSession:
    graph = helper.make_graph(
        [helper.make_node(op_type, list(inputs), ["y"], **attrs)],
        "random",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_empty_tensor_value_info("y")],
    )
    return tw.load(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), threads=1
    )


def test_normal_numbers_have_mean_and_deviation() -> None:
    y = session("RandomNormal", {}, shape=[100, 100], mean=3.0, scale=2.0).run({})["y"]
    assert y.dtype == np.float32 and y.shape == (100, 100)
    assert abs(y.mean() - 3) < 0.15 and abs(y.std() - 2) < 0.15


def test_uniform_numbers_fill_their_range() -> None:
    like = {"x": (TensorProto.INT64, [50, 100])}
    y = session("RandomUniformLike", like, low=-2.0, high=6.0, dtype=TensorProto.FLOAT16).run(
        {"x": np.zeros((50, 100), np.int64)}
    )["y"]
    assert y.dtype == np.float16 and y.min() >= -2 and y.max() <= 6
    assert abs(float(y.astype(np.float64).mean()) - 2) < 0.3


def test_a_coin_falls_as_often_as_its_probability() -> None:
    p = np.repeat(np.array([[0.0], [0.25], [1.0]], np.float32), 4000, 1)
    coins = session("Bernoulli", {"p": (TensorProto.FLOAT, [3, 4000])}, dtype=TensorProto.BOOL)
    y = coins.run({"p": p})["y"]
    assert y.dtype == np.bool_
    none, some, all_ = y.mean(1)
    assert none == 0 and abs(some - 0.25) < 0.05 and all_ == 1


def test_classes_come_by_their_weights() -> None:
    weights = np.log(np.array([[1.0, 2.0, 1.0]]))
    y = session("Multinomial", {"x": (TensorProto.DOUBLE, [1, 3])}, sample_size=8000).run({"x": weights})["y"]
    assert y.dtype == np.int32 and y.shape == (1, 8000)
    np.testing.assert_allclose(np.bincount(y[0], minlength=3) / 8000, [0.25, 0.5, 0.25], atol=0.03)


@pytest.mark.parametrize("op_type", ["RandomNormal", "RandomUniform"])
def test_a_seed_fixes_the_stream_but_runs_go_on(op_type: str) -> None:
    first, second = (session(op_type, {}, shape=[8], seed=7.0) for _ in range(2))
    a, b = first.run({})["y"], first.run({})["y"]
    assert not np.array_equal(a, b)
    np.testing.assert_array_equal(second.run({})["y"], a)
    np.testing.assert_array_equal(second.run({})["y"], b)
    assert not np.array_equal(session(op_type, {}, shape=[8], seed=8.0).run({})["y"], a)
    assert not np.array_equal(
        session(op_type, {}, shape=[8]).run({})["y"], session(op_type, {}, shape=[8]).run({})["y"]
    )


@pytest.mark.parametrize("shape", [[-1], [1 << 40], [1 << 62, 1 << 62]])
def test_an_absurd_shape_is_refused(shape: list[int]) -> None:
    with pytest.raises(UserError, match="cannot be drawn"):
        session("RandomNormal", {}, shape=shape).run({})


def test_random_integers_are_refused() -> None:
    with pytest.raises(UserError, match="random numbers of type i64"):
        session("RandomNormal", {}, shape=[2], dtype=TensorProto.INT64).run({})


def test_classes_without_weight_are_refused() -> None:
    with pytest.raises(UserError, match="no class of positive weight"):
        session("Multinomial", {"x": (TensorProto.FLOAT, [1, 2])}).run(
            {"x": np.full((1, 2), np.nan, np.float32)}
        )

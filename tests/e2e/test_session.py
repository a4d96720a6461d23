"""`load` and `compile` as users call them: names, caches, files, targets, threads."""

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.onnx_cases import Model, check_model, check_outputs, random_feeds, run_onnxruntime


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(folder))
    return folder


def small_model(batch: int = 3) -> "tuple[Model, str]":
    m = Model()
    x = m.input(batch, 3, 11, 9)
    y = m.op("Conv", x, m.weight(13, 3, 3, 3), m.weight(13), pads=[1, 1, 1, 1])
    y = m.op("Relu", y)
    y = m.op("Flatten", m.op("GlobalAveragePool", y), axis=1)
    return m, m.op("Softmax", m.op("Gemm", y, m.weight(5, 13), m.weight(5), transB=1), axis=-1)


# -------------------------------------------------------------------------------------------------------------- outputs


def test_outputs_keep_their_names_when_they_turn_out_to_be_inputs_or_constants() -> None:
    m = Model()
    x = m.input(2, 3)
    same = m.op("Identity", x)
    also = m.op("Transpose", x, perm=[0, 1])
    known = m.op("Add", m.constant(np.ones((2, 2), np.float32)), m.constant(np.ones((2, 2), np.float32)))
    made = m.op("Relu", x)
    twice = m.op("Relu", x)
    check_model(m.finish(same, also, known, made, twice))


def test_an_intermediate_value_may_be_an_output_too() -> None:
    m = Model()
    x = m.input(5, 8)
    product = m.op("MatMul", x, m.weight(8, 16))
    y = m.op("Relu", product)
    check_model(m.finish(y, product))


def test_outputs_stand_in_the_order_of_the_model() -> None:
    m = Model()
    x = m.input(4, 4)
    a, b = m.op("Exp", x), m.op("Neg", x)
    session = tw.load(m.finish(b, a), cache=False)
    assert [o.name for o in session.outputs] == [b, a]


# ---------------------------------------------------------------------------------------------- caches, files, targets


def test_the_cache_changes_nothing(own_cache: Path) -> None:
    m, y = small_model()
    model = m.finish(y)
    feeds = random_feeds(model)
    data = model.SerializeToString()
    without = tw.load(data, cache=False).run(feeds)
    assert not own_cache.exists()
    first = tw.load(data).run(feeds)
    entries = set(own_cache.iterdir())
    assert entries
    reported: list[str] = []
    second = tw.load(data, progress=lambda what, _done, _total: reported.append(what)).run(feeds)
    assert not reported, "compiled again"
    assert set(own_cache.iterdir()) == entries
    np.testing.assert_array_equal(first[y], without[y])
    np.testing.assert_array_equal(second[y], without[y])


def test_a_model_with_other_shapes_is_another_program() -> None:
    m = Model()
    m.input(2, 6)
    x = "input_1"
    y = m.op("MatMul", x, m.weight(6, 9))
    model = m.finish(y)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    data = model.SerializeToString()
    for batch in (1, 2, 5, 2):
        feeds = {x: np.random.default_rng(batch).standard_normal((batch, 6)).astype(np.float32)}
        session = tw.load(data, shapes={x: (batch, 6)})
        check_outputs(session.run(feeds), run_onnxruntime(model, feeds))


def test_a_saved_program_gives_the_same_bits(tmp_path: Path) -> None:
    m, y = small_model()
    model = m.finish(y)
    feeds = random_feeds(model)
    compiled = tw.compile(model)
    path = tmp_path / "model.tw"
    compiled.save(path)
    want = compiled.session(threads=1).run(feeds)[y]
    for threads in (1, 2):
        got = tw.load(path, threads=threads).run(feeds)[y]
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3", "native"])
def test_every_target_agrees(target: str) -> None:
    m, y = small_model()
    check_model(m.finish(y), target=target)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_results_do_not_depend_on_what_ran_before(batch: int) -> None:
    m, y = small_model(batch)
    model = m.finish(y)
    session = tw.load(model, cache=False)
    a, b = random_feeds(model, 1), random_feeds(model, 2)
    first = session.run(a)[y].copy()
    session.run(b)
    np.testing.assert_array_equal(session.run(a)[y], first)

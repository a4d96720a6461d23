"""Models that choose, move and replace elements by indices, as detectors and decoders do; how many there are may change
from run to run.

Native parts are held to onnxruntime by `check_model`, with one thread and with two. Where the host has a part, one
session runs feeds of several sizes of results, one after another.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import tilewright as tw
from tests.onnx_cases import Array, Model, check_model, check_outputs, run_onnxruntime


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")


def check_runs(model: ModelProto, feeds: Sequence[dict[str, Array]]) -> list[dict[str, Any]]:
    """One session agrees with onnxruntime on all feeds, also when they come again."""
    with tw.load(model, threads=1) as session:
        got = [session.run(f) for f in feeds]
        for f, g in zip(feeds, got, strict=True):
            check_outputs(g, run_onnxruntime(model, f))
            check_outputs(session.run(f), g)
    return got


def uniform(rng: np.random.Generator, *shape: int) -> Array:
    return rng.uniform(size=shape).astype(np.float32)


# ------------------------------------------------------------------------------------------------------ native programs


def test_best_queries_of_a_detector() -> None:
    """Scores of queries and classes as one list; the best are looked up in two tables."""
    m = Model()
    scores, boxes = m.input(2, 30, 11), m.input(2, 30, 4)
    best, at = m.op("TopK", m.op("Reshape", m.op("Sigmoid", scores), m.ints(2, -1)), m.ints(20), outputs=2)
    query = m.op("Div", at, m.ints(11))
    label = m.op("Mod", at, m.ints(11))
    places = m.op("Expand", m.op("Unsqueeze", query, m.ints(-1)), m.ints(1, 1, 4))
    check_model(m.finish(best, label, m.op("GatherElements", boxes, places, axis=1)))


def test_best_of_many_rows() -> None:
    m = Model()
    x = m.input(300, 70)
    values, at = m.op("TopK", m.op("Mul", x, x), m.ints(7), largest=0, outputs=2)
    check_model(m.finish(m.op("Sqrt", values), at))


def test_cache_of_a_decoder_by_slices() -> None:
    """New keys are written at one position of a cache, and all of it is used."""
    m = Model()
    cache, new, query = m.input(1, 4, 32, 16), m.input(1, 4, 1, 16), m.input(1, 4, 1, 16)
    at = m.input(1, 4, 1, 3, dtype=np.int64)
    keys = m.op("ScatterND", cache, at, m.op("Mul", new, new))
    weights = m.op("MatMul", query, m.op("Transpose", keys, perm=[0, 1, 3, 2]))
    places = np.stack(np.meshgrid([0], np.arange(4), [17], indexing="ij"), axis=-1)
    rng = np.random.default_rng(0)
    feeds = {
        cache: uniform(rng, 1, 4, 32, 16),
        new: uniform(rng, 1, 4, 1, 16),
        query: uniform(rng, 1, 4, 1, 16),
    }
    check_model(m.finish(keys, m.op("Softmax", weights)), feeds=feeds | {at: places})


def test_cache_of_a_decoder_by_elements() -> None:
    m = Model()
    cache, new = m.input(2, 3, 20, 8), m.input(2, 3, 4, 8)
    at = m.op("Expand", m.op("Reshape", m.input(4, dtype=np.int64), m.ints(1, 1, 4, 1)), m.ints(2, 3, 4, 8))
    keys = m.op("ScatterElements", m.op("Relu", cache), at, new, axis=2)
    check_model(m.finish(m.op("Tanh", keys)))


def test_messages_of_a_graph_network() -> None:
    """What edges say is added up at the nodes they lead to, many at the same one."""
    m = Model()
    nodes, source, target = m.input(40, 16), m.input(900, dtype=np.int64), m.input(900, 1, dtype=np.int64)
    messages = m.op("Relu", m.op("MatMul", m.op("Gather", nodes, source), m.weight(16, 16)))
    zeros = m.constant(np.zeros((40, 16), np.float32))
    rng = np.random.default_rng(0)
    feeds = {
        nodes: uniform(rng, 40, 16),
        source: rng.integers(0, 40, 900),
        target: rng.integers(-40, 40, (900, 1)),
    }
    check_model(m.finish(m.op("ScatterND", zeros, target, messages, reduction="add")), feeds=feeds)


def test_later_updates_win() -> None:
    m = Model()
    x, at, new = m.input(5), m.input(64, dtype=np.int64), m.input(64)
    check_model(m.finish(m.op("ScatterElements", x, at, new)))


def test_part_of_a_tensor_assigned_to() -> None:
    """`x[..., :2] = y` as it is exported, with all indices of the part."""
    m = Model()
    x, y = m.input(1, 3, 5, 5, 7), m.input(1, 3, 5, 5, 2)
    part = np.stack(np.meshgrid(*(np.arange(n) for n in (1, 3, 5, 5, 2)), indexing="ij"), axis=-1)
    z = m.op("ScatterND", m.op("Sigmoid", x), m.constant(part), m.op("Mul", y, m.constant(np.float32(2))))
    check_model(m.finish(m.op("Reshape", z, m.ints(1, -1, 7))))


def test_masked_fill_and_positions() -> None:
    """Attention over what is not padding; positions count the tokens before."""
    m = Model()
    scores, mask = m.input(2, 4, 9, 9), m.input(2, 9, dtype=np.int64)
    is_padding = m.op("Not", m.op("Cast", mask, to=9))
    filled = m.op(
        "Where",
        m.op("Unsqueeze", is_padding, m.ints(1, 2)),
        m.constant(np.float32(-1e9)),
        m.op("Trilu", scores, upper=0),
    )
    positions = m.op("Sub", m.op("CumSum", mask, m.constant(np.int64(1))), m.ints(1))
    check_model(m.finish(m.op("Softmax", filled), positions))


def test_long_running_sums() -> None:
    m = Model()
    x = m.input(3, 5000)
    y = m.op("CumSum", m.op("Abs", x), m.constant(np.int64(1)), reverse=1)
    z = m.op("CumSum", m.op("Transpose", x, perm=[1, 0]), m.constant(np.int64(0)), exclusive=1)
    check_model(m.finish(y, m.op("Relu", z)))


def test_sequences_turned_around() -> None:
    m = Model()
    x, lengths = m.input(6, 4, 3), m.input(4, dtype=np.int64)
    turned = m.op("ReverseSequence", m.op("Tanh", x), lengths)
    check_model(m.finish(m.op("Concat", x, turned, axis=2)))


def test_pieces_of_which_one_is_empty() -> None:
    m = Model()
    first, second, none = m.op("Split", m.input(3, 4), m.ints(2, 2, 0), axis=1, outputs=3)
    check_model(m.finish(m.op("Add", first, second), none, m.op("Concat", none, second, axis=1)))


# ----------------------------------------------------------------------------------- sizes that depend on the elements


def test_detections_of_an_image() -> None:
    """Boxes that are left over are looked up, cut to the best, and sorted by class."""
    m = Model()
    raw, scores = m.input(1, 200, 4), m.input(1, 3, 200)
    boxes = m.op("Mul", raw, m.constant(np.float32(8)))
    kept = m.op(
        "NonMaxSuppression",
        boxes,
        scores,
        m.ints(20),
        m.constant(np.array([0.5], np.float32)),
        m.constant(np.array([0.9], np.float32)),
    )
    place = m.op("Slice", kept, m.ints(2), m.ints(3), m.ints(1))
    chosen = m.op("Gather", m.op("Squeeze", boxes, m.ints(0)), m.op("Squeeze", place, m.ints(1)))
    best = m.op("GatherND", scores, kept)
    model = m.finish(kept, m.op("Slice", chosen, m.ints(0), m.ints(10), m.ints(0)), best)
    feeds: list[dict[str, Array]] = []
    for seed, scale in ((0, 1.0), (1, 0.95), (2, 0.0)):  # many, few, none
        rng = np.random.default_rng(seed)
        corner, size = uniform(rng, 1, 200, 2), uniform(rng, 1, 200, 2) / 4
        both = np.concatenate([corner, corner + size], axis=2)
        feeds.append({raw: both, scores: uniform(rng, 1, 3, 200) * np.float32(scale)})
    counts = [len(r[kept]) for r in check_runs(model, feeds)]
    assert counts[0] > counts[1] > counts[2] == 0


def test_tokens_replaced_by_features() -> None:
    """Embeddings at marked places are replaced by what another network gave, as in models of images and text."""
    m = Model()
    tokens, image = m.input(2, 6, dtype=np.int64), m.input(12, 8)
    words = m.op("Gather", m.weight(10, 8), tokens)
    marked = m.op("Transpose", m.op("NonZero", m.op("Equal", tokens, m.ints(9))), perm=[1, 0])
    count = m.op("Slice", m.op("Shape", marked), m.ints(0), m.ints(1))
    features = m.op("Slice", m.op("MatMul", image, m.weight(8, 8)), m.ints(0), count)
    mixed = m.op("ScatterND", words, marked, features)
    model = m.finish(mixed, m.op("GatherND", mixed, marked))
    rng = np.random.default_rng(0)
    feeds: list[dict[str, Array]] = []
    for places in ((0, 1, 2), (5,), (), tuple(range(12))):
        ids = rng.integers(0, 9, 12)
        ids[list(places)] = 9
        feeds.append({tokens: ids.reshape(2, 6), image: uniform(rng, 12, 8)})
    assert [r[model.graph.output[1].name].shape[0] for r in check_runs(model, feeds)] == [3, 1, 0, 12]


def test_elements_that_pass_a_threshold() -> None:
    m = Model()
    x = m.input(50)
    passed = m.op("Compress", x, m.op("Greater", x, m.constant(np.float32(0.5))))
    values, at = m.op("TopK", passed, m.op("Shape", passed), outputs=2)
    model = m.finish(values, at, m.op("Gather", passed, at), m.op("ReduceSum", passed))
    feeds = [{x: uniform(np.random.default_rng(n), 50) * np.float32(n / 2)} for n in (2, 3, 4, 0)]
    assert [r[at].size > 0 for r in check_runs(model, feeds)] == [True, True, True, False]


def test_different_words_and_how_often() -> None:
    m = Model()
    ids, vectors = m.input(20, dtype=np.int64), m.weight(9, 4)
    found, _, which, counts = m.op("Unique", ids, outputs=4)
    hot = m.op("OneHot", which, m.op("Size", found), m.constant(np.array([0, 1], np.float32)))
    model = m.finish(m.op("Gather", vectors, found), counts, m.op("ReduceSum", hot, m.ints(0), keepdims=0))
    rng = np.random.default_rng(0)
    check_runs(model, [{ids: rng.integers(0, most, 20)} for most in (2, 9, 1)])


def test_lengths_known_at_run_time() -> None:
    """Masks and positions for as many steps as an input says."""
    m = Model()
    count = m.input(dtype=np.int64)
    steps = m.op("Range", m.constant(np.int64(0)), count, m.constant(np.int64(1)))
    square = m.op(
        "Expand",
        m.constant(np.float32(1)),
        m.op("Concat", *[m.op("Unsqueeze", count, m.ints(0))] * 2, axis=0),
    )
    mask = m.op("Trilu", square, upper=0)
    ragged = m.op("Tile", m.op("Pad", mask, m.ints(0, 1, 0, 0)), m.ints(2, 1))
    check_runs(m.finish(steps, mask, ragged), [{count: np.array(n)} for n in (3, 5, 1)])

"""Open programs in turns with static ones and another engine, as `benchmarks.open_shapes` measures them."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import ModelProto, TensorProto, helper, numpy_helper

from benchmarks.engines.open_calls import feeds_at
from benchmarks.open_shape_cases import DECODERS, DETECTOR, MINILM, OpenCase
from benchmarks.open_shape_measure import (
    KEPT,
    STATIC,
    measure_memory,
    measure_random,
    measure_sample,
    measure_tokens,
    open_race,
    random_sizes,
)
from benchmarks.open_shape_tables import growth, medians_of, summary, worst_of
from benchmarks.open_shapes import main
from benchmarks.suite_results import OURS
from benchmarks.weight_reads import read_weights

F32 = TensorProto.FLOAT
WEIGHT = np.eye(8, 6, dtype=np.float32)


def mlp() -> ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    x = helper.make_tensor_value_info("x", F32, ["n", 8])
    y = helper.make_tensor_value_info("y", F32, ["n", 6])
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(WEIGHT, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@dataclass(frozen=True, slots=True)
class SmallCase(OpenCase):
    path: Path = Path()

    @property
    def model(self) -> Path:
        return self.path


@pytest.fixture
def case(tmp_path: Path) -> SmallCase:
    path = tmp_path / "mlp.onnx"
    path.write_bytes(mlp().SerializeToString())
    given = {"name": "x", "dtype": "float32", "fill": "normal", "shape": ["n", 8]}
    return SmallCase("mlp", [given], {"n": (1, 12)}, [{"n": 3}, {"n": 12}], "n", path)


def test_an_open_program_takes_turns_with_others(case: SmallCase, tmp_path: Path) -> None:
    with open_race(case, (OURS, STATIC, "ort"), 1, tmp_path) as race:
        measure_sample(race, rounds=2)
        race.drop(STATIC)
        measure_random(race, 60)
        measure_memory(race, 1000)
    found = race.found
    assert set(found["sample"]) == {OURS, STATIC, "ort"}
    for cells in found["sample"].values():
        assert [c["sizes"] for c in cells] == case.sample
        assert all(len(c["round_medians_ms"]) == 2 and c["rel_err"] < 1e-5 for c in cells)
    assert set(found["random"]) == {OURS, "ort"} and len(found["random"][OURS]["ms"]) == 60
    assert found["load"][OURS]["compiled"] == found["random"][OURS]["compiled"] == 1
    assert [calls for calls, _ in found["memory"][OURS]["resident_mb"]] == [500, 1000]


def test_an_engine_that_fails_is_told_of_and_the_others_go_on(case: SmallCase, tmp_path: Path) -> None:
    wider = replace(case, sample=[{"n": 3}, {"n": 13}])
    with open_race(wider, (OURS, "ort"), 1, tmp_path) as race:
        measure_sample(race, rounds=1)
        assert race.running == ["ort"]
    assert "n is 13" in race.found["sample"][OURS]["error"] and len(race.found["sample"]["ort"]) == 2


def growing() -> ModelProto:
    """What is appended to a cache, and a sum of all."""
    nodes = [
        helper.make_node("Concat", ["past.0", "x"], ["present.0"], axis=1),
        helper.make_node("ReduceSum", ["present.0", "axis"], ["y"]),
    ]
    shapes = {"x": [1, "sequence", 4], "past.0": [1, "past", 4], "y": [1, 1, 4], "present.0": [1, "total", 4]}
    x, past, y, present = (helper.make_tensor_value_info(n, F32, s) for n, s in shapes.items())
    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    graph = helper.make_graph(nodes, "g", [x, past], [y, present], [axis])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_tokens_are_appended_in_turns(tmp_path: Path) -> None:
    path = tmp_path / "growing.onnx"
    path.write_bytes(growing().SerializeToString())
    inputs = [
        {"name": "x", "dtype": "float32", "fill": "normal", "shape": [1, "sequence", 4]},
        {"name": "past.0", "dtype": "float32", "fill": "normal", "shape": [1, "past", 4], "is_cache": True},
    ]
    sample = [{"sequence": 1, "past": 4, "total": 5}, {"sequence": 3, "past": 1, "total": 4}]
    case = SmallCase("growing", inputs, {"sequence": (1, 3), "past": (1, 60)}, sample, path=path)
    with open_race(case, (OURS, "ort"), 1, tmp_path) as race:
        measure_tokens(race, tokens=40, rounds=2)
    for engine in (OURS, "ort"):
        found = race.found["tokens"][engine]
        assert len(found["times"]) == 40 and found["rel_err"] < 1e-5
        assert found["compiled"] == found["compiled_at_2"] and race.found["prompt"][engine]["ms"] > 0


def test_all_engines_get_the_same_inputs() -> None:
    one, same, other = (feeds_at(list(MINILM.inputs), MINILM.sizes_at(n)) for n in (9, 9, 10))
    assert all((one[n] == same[n]).all() and one[n].shape == (1, 9) for n in one)
    assert other["input_ids"].shape == (1, 10) and one["input_ids"].min() >= 3


def test_random_order_has_every_size_about_as_often() -> None:
    found = random_sizes(MINILM, 300)
    assert len(found) == 300 and found != sorted(found) and found == random_sizes(MINILM, 300)
    counts = np.bincount(found)[1:]
    assert len(counts) == 128 and set(counts.tolist()) <= {2, 3}


@pytest.mark.parametrize("given", DECODERS, ids=lambda c: c.name)
def test_a_cache_grows_within_its_range(given: OpenCase) -> None:
    one, prompt = given.sample
    last = {n: v + (256 if n in ("past", "total") else 0) for n, v in one.items()}
    for sizes in (one, prompt, last):
        assert all(given.dims[n][0] <= v <= given.dims[n][1] for n, v in sizes.items())
        assert sizes["past"] + sizes["sequence"] <= given.dims["total"][1]


def test_weights_that_are_multiplied_count_and_tables_do_not() -> None:
    table, weight = np.zeros((100, 4), np.float32), np.zeros((7, 4), np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["x"]),
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    tensors = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(weight, "w")]
    assert read_weights(helper.make_graph(nodes, "g", [], [], tensors)) == weight.nbytes


def test_summaries() -> None:
    assert medians_of([2, 1, 2, 2], [5.0, 1.0, 3.0, 4.0]) == {1: 1.0, 2: 4.0}
    assert worst_of({"1": 0.9, "2": 1.3}, is_largest=True) == "1.30, at 2"
    assert growth({500: 10.0, 1000: 12.5, 1500: 11.0}) == 1.0
    assert DETECTOR.text({"height": 64, "width": 32}) == "64 x 32" and MINILM.text(MINILM.sizes_at(7)) == "7"


def stored() -> dict[str, Any]:
    def cell(ms: float) -> list[dict[str, Any]]:
        sizes = {"batch": 1, "sequence": 17}
        return [{"sizes": sizes, "median_ms": ms, "round_medians_ms": [ms] * 3, "rel_err": 1e-6}]

    tokens = {
        "compiled_at_2": 1,
        "compiled": 1,
        "resident_at_2": 500.0,
        "resident_mb": 501.0,
        "rel_err": 1e-6,
    }
    load = {OURS: {"seconds": 9.0, "version": "1", "compiled": 1, "fallback": ""}}
    peer = {"ort": {"seconds": 0.5, "version": "2"}}
    times = {"times": [0.02] * 9}
    return {
        "minilm": {
            "1": {
                "load": {**load, **peer},
                "sample": {OURS: cell(2.0), STATIC: cell(1.6), "ort": cell(3.0)},
                "random": {
                    OURS: {"values": [1, 2], "ms": [1.0, 2.0], "compiled": 1},
                    "ort": {"values": [1, 2], "ms": [2.0, 3.0], "compiled": 0},
                },
                "memory": {OURS: {"resident_mb": [[500, 100.0], [10000, 100.5]]}},
            }
        },
        "detector": {"1": {"load": {OURS: {**load[OURS], "fallback": "Resize is not followed"}}}},
        "gpt2_decode": {
            "1": {
                "load": load,
                "tokens": {OURS: {**times, **tokens}, KEPT: {"error": "no state"}},
                "prompt": {OURS: {"ms": 70.0}},
                "limit": {"bytes": 500e6, "ms": 16.0},
            }
        },
    }


def test_a_page_is_made_of_stored_results(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(stored()), encoding="utf-8")
    shown = CliRunner().invoke(main, ["--from", str(path), "--no-save"], catch_exceptions=False).output
    assert "| 17 | 2.000 | 1.600 | 3.000 | 1.25 [1.25, 1.25] | 1.50 [1.50, 1.50] |" in shown
    assert "| ort | 0.5 |  | 0.01 | 1.73 | 1.50, at 2 |" in shown
    assert "| open | 100 | 100 | +0.5 |" in shown
    assert (
        "**There is no program for all sizes**, and ours was not measured: Resize is not followed." in shown
    )
    assert "| gpt2_decode, open | 70.0 | 50.0 | 0.80 | 0 | 500 | 501 | 1e-06 |" in shown
    assert "open, cache in place failed (tokens): no state." in shown
    assert "Not measured: detector, recogniser, llama_decode (one thread); lengths, calls in random" in shown


def test_a_page_begins_with_what_it_shows() -> None:
    (told,) = summary(stored())
    assert "takes 1.25 times as long as static programs (at worst 1.25, at 17)" in told
    assert "is 1.50 times as quick as ONNX Runtime (at worst 1.50, at 17)" in told


def test_later_results_replace_parts(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(stored()), encoding="utf-8")
    memory = {"memory": {OURS: {"resident_mb": [[500, 7.0], [1000, 9.0]]}}}
    second.write_text(json.dumps({"minilm": {"1": memory}}), encoding="utf-8")
    given = ["--from", str(first), "--from", str(second), "--no-save"]
    shown = CliRunner().invoke(main, given, catch_exceptions=False).output
    assert "| open | 7 | 9 | +2.0 |" in shown and "| 17 | 2.000" in shown

"""Random models agree with onnxruntime, on one thread and on two, and on any x86-64.

A failure prints its seed and the smallest model that shows it. Longer searches: `python -m tests.fuzz.campaign`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import checker, shape_inference

import tests.fuzz.campaign as campaign
from tests.fuzz.minimize import minimize
from tests.fuzz.rules import CHAINS, RULES, Rule, random_model
from tests.onnx_cases import Model, random_feeds
from tilewright.search import default

QUICK = 6  # tests of as many seeds each
SEEDS = 5


def some_of(tests: int) -> list[Any]:
    """Two thirds of them always, and the rest in long runs."""
    return [pytest.param(n, marks=() if 3 * n < 2 * tests else pytest.mark.slow) for n in range(tests)]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")


def check(seeds: range, folder: Path, target: str = "native", rules: tuple[Rule, ...] = RULES) -> None:
    found = (campaign.check_seed(s, folder, target, rules) for s in seeds)
    failures = [f for f in found if f is not None]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("n", some_of(QUICK))
def test_random_models(n: int, tmp_path: Path) -> None:
    check(range(n * SEEDS, (n + 1) * SEEDS), tmp_path)


@pytest.mark.parametrize("n", some_of(3))
def test_recurrences_sorts_and_windows_next_to_each_other(n: int, tmp_path: Path) -> None:
    check(range(3000 + n * SEEDS, 3000 + (n + 1) * SEEDS), tmp_path, rules=CHAINS)


def test_random_models_on_any_x86_64(tmp_path: Path) -> None:
    check(range(1000, 1006), tmp_path, "x86-64")


@pytest.mark.parametrize("rung", [1, 2])
def test_random_models_with_simple_schedules(
    rung: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left when recipes are refused works too: every block alone, and no schedule at all."""
    monkeypatch.setattr(default, "LADDER", default.LADDER[rung:])
    check(range(2000 + 10 * rung, 2006 + 10 * rung), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("n", range(40))
def test_many_random_models(n: int, tmp_path: Path) -> None:
    check(range(10_000 + n * 20, 10_000 + (n + 1) * 20), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("n", range(20))
def test_many_chains(n: int, tmp_path: Path) -> None:
    check(range(20_000 + n * 20, 20_000 + (n + 1) * 20), tmp_path, rules=CHAINS)


# --------------------------------------------------------------------------------------------------- the fuzzer itself


def test_models_are_valid_and_reproducible() -> None:
    operators = set[str]()
    for seed in range(60):
        model = random_model(seed)
        checker.check_model(shape_inference.infer_shapes(model, strict_mode=True))
        assert model.SerializeToString() == random_model(seed).SerializeToString()
        operators |= {n.op_type for n in model.graph.node}
    assert len(operators) > 50


def test_a_failing_model_is_made_small() -> None:
    m = Model()
    x = m.input(2, 3)
    y = m.op("Tanh", m.op("Neg", m.op("Abs", x)))
    z = m.op("Exp", m.op("Relu", x))
    model = m.finish(m.op("Add", y, z), z)
    feeds = random_feeds(model)
    small, fed = minimize(model, feeds, lambda m, _: any(n.op_type == "Neg" for n in m.graph.node))
    assert [n.op_type for n in small.graph.node] == ["Neg"]
    assert [np.asarray(v).tolist() for v in fed.values()] == [np.abs(feeds[x]).tolist()]


def test_a_wrong_result_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    m = Model()
    model = m.finish(m.op("Neg", m.input(2, 3)))
    feeds = random_feeds(model)
    assert campaign.failure(model, feeds) is None
    want = campaign.run_onnxruntime(model, feeds)
    monkeypatch.setattr(campaign, "run_onnxruntime", lambda *_: {k: v + 1 for k, v in want.items()})
    assert (campaign.failure(model, feeds) or "").startswith("AssertionError")


def test_an_error_is_a_failure() -> None:
    m = Model()
    model = m.finish(m.op("Neg", m.input(2, 3)))
    message = campaign.failure(model, random_feeds(model), target="no such machine")
    assert (message or "").startswith("UserError")

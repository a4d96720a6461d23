"""Cost models that are trained: losses, trees as arrays and as ONNX, the guard (`training/trees.py` and its parts)."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

import tilewright
from tests.unit.cost_samples import AT, made_samples
from tilewright.learned.analytical import AnalyticalModel
from tilewright.learned.candidates import CostModel
from tilewright.learned.compiled_scorer import CompiledScorer
from tilewright.learned.ensemble import CostTrees
from tilewright.learned.features import FEATURES
from tilewright.learned.model_file import METADATA, StoredTrees, read_trees, trees_of
from tilewright.runtime.session import Session
from tilewright.support.arrays import FloatArray
from tilewright.support.errors import UserError
from tilewright.training.boosting import TreeShape, boosted, ensemble_of, single_below
from tilewright.training.evaluate import predict
from tilewright.training.export import trees_model, write_trees
from tilewright.training.metrics import kernel_taus, regrets
from tilewright.training.pairs import PairLoss, ranked_pairs
from tilewright.training.samples import KernelSamples
from tilewright.training.table import stacked
from tilewright.training.trees import Loss, TrainedTrees, TreeSettings, train_trees

SMALL = TreeShape(trees=40, leaves=12, depth=5, rate=0.2, least_rows=5, smoothing=1.0)
SAMPLES = made_samples()
TRAIN, TEST = SAMPLES[:36], SAMPLES[36:]


def trained(loss: Loss = "centred", is_residual: bool = True, is_guarded: bool = True) -> TrainedTrees:
    settings = TreeSettings(
        loss=loss, is_residual=is_residual, is_guarded=is_guarded, shape=SMALL, emphasis=0.0
    )
    return train_trees(TRAIN, settings, seed=0)


def tau(model: CostModel, samples: list[KernelSamples] = TEST) -> float:
    return float(np.nanmean(kernel_taus(samples, predict(model, samples))))


@pytest.mark.parametrize("is_soft", [True, False])
def test_derivatives_of_the_loss_of_pairs_are_those_of_its_value(is_soft: bool) -> None:
    table = stacked(SAMPLES[:2])
    pairs = ranked_pairs(table, seed=0)
    loss = PairLoss(pairs, len(table.log_seconds), is_soft)
    rng = np.random.default_rng(0)
    scores = table.log_costs + rng.normal(0.0, 0.1, len(table.log_costs))
    first, second = loss.derivatives(scores)
    assert (second > 0).all() and np.isclose(first.sum(), 0.0)
    for row in (0, 7, 30):
        step = np.zeros_like(scores)
        step[row] = 1e-5
        slope = (loss(scores + step) - loss(scores - step)) / 2e-5
        assert slope * pairs.weights.sum() * loss.temperature**2 == pytest.approx(first[row], rel=1e-4)


def test_pairs_within_their_noise_are_not_ranked() -> None:
    (one,) = SAMPLES[:1]
    quiet = ranked_pairs(stacked([one]), seed=0)
    loud = ranked_pairs(stacked([replace(one, noise=np.full(len(one), 0.2))]), seed=0)
    assert 0 < len(loud) < len(quiet)
    assert loud.gaps.min() > 0.2 * 2**0.5 > quiet.gaps.min()


def test_noisy_pairs_count_less() -> None:
    (one,) = SAMPLES[:1]
    weights = [
        ranked_pairs(stacked([replace(one, noise=np.full(len(one), noise))]), seed=0).weights.sum()
        for noise in (0.0, 0.05, 0.2)
    ]
    assert weights[0] == pytest.approx(len(one)) and weights[0] > weights[1] > 2 * weights[2] > 0.0


def test_a_soft_loss_is_least_where_scores_are_times() -> None:
    table = stacked(SAMPLES[:3])
    loss = PairLoss(ranked_pairs(table, seed=0), len(table.log_seconds))
    right = loss(table.log_seconds)
    assert right < loss(table.log_costs) and right < loss(2.0 * table.log_seconds)
    assert loss(table.log_seconds + 5.0) == pytest.approx(right)  # a factor of all seconds changes no order


@pytest.mark.parametrize("loss", ["rank", "centred", "absolute"])
@pytest.mark.parametrize("is_residual", [True, False])
def test_trees_rank_other_programs_better_than_costs_do(loss: Loss, is_residual: bool) -> None:
    model = trained(loss, is_residual, is_guarded=False).model
    stated = tau(AnalyticalModel())
    assert stated < 0.75
    assert tau(model) > stated + (0.15 if is_residual else 0.05)


def test_trees_of_seconds_predict_seconds() -> None:
    model = trained("absolute").model
    errors = [np.abs(p - np.log(s.seconds)).mean() for s, p in zip(TEST, predict(model, TEST), strict=True)]
    costs = [np.abs(np.log(s.candidates.costs / s.seconds)).mean() for s in TEST]
    assert np.mean(errors) < 0.5 * np.mean(costs)


def test_a_model_chooses_better_schedules() -> None:
    found, stated = (regrets(TEST, predict(m, TEST)) for m in (trained().model, AnalyticalModel()))
    assert np.mean(list(found.values())) < 0.5 * np.mean(list(stated.values()))


def test_features_that_are_left_out_do_not_matter() -> None:
    settings = TreeSettings(without=("term_", "knob_"), shape=SMALL)
    used = {FEATURES[c] for c in train_trees(TRAIN, settings, 0).ensemble.used_columns}
    assert used and not any(name.startswith(("term_", "knob_")) for name in used)
    assert {"knob_rows", "term_far"} <= {FEATURES[c] for c in trained().ensemble.used_columns}


# ------------------------------------------------------------------------------------------------------ trees as arrays


def rows_of(samples: list[KernelSamples]) -> FloatArray:
    return np.concatenate([s.candidates.features for s in samples]).astype(np.float32).astype(np.float64)


def test_arrays_score_and_explain_as_lightgbm_does() -> None:
    table = stacked(TRAIN)
    times = table.log_seconds
    booster = boosted(
        table.features, table.log_costs, lambda s: (s - times, np.ones(len(s))), SMALL, 0, FEATURES
    )
    found = ensemble_of(booster, SMALL.depth)
    rows = rows_of(TEST)
    assert found.scores(rows) == pytest.approx(booster.predict(rows), abs=1e-5)
    shares = found.contributions(rows[:40])
    by_lightgbm = booster.predict(rows[:40], pred_contrib=True)
    assert np.delete(shares, -2, axis=1) == pytest.approx(by_lightgbm, abs=1e-5)
    assert not shares[:, -2].any(), "one member does not disagree with itself"
    assert shares.sum(axis=1) == pytest.approx(found.scores(rows[:40]), abs=1e-5)


def test_members_that_disagree_make_a_schedule_dearer() -> None:
    rows = rows_of(TEST)[:40]
    found = trained().ensemble
    alone = found.member_scores(rows)
    assert alone.shape == (40, found.members) and found.members > 1
    assert found.scores(rows) == pytest.approx(alone.mean(axis=1) + found.caution * alone.std(axis=1))
    assert found.contributions(rows).sum(axis=1) == pytest.approx(found.scores(rows), abs=1e-5)
    assert (found.scores(rows) > alone.mean(axis=1)).any()


def test_thresholds_are_rounded_towards_the_first_child() -> None:
    for value in (0.1, 1.0 / 3.0, -0.1, 1e-35, 2.0):
        below = single_below(value)
        assert float(below) <= value < float(np.nextafter(below, np.float32(np.inf)))


@pytest.fixture(scope="module")
def stored() -> StoredTrees:
    found = trained()
    return StoredTrees(found.ensemble, True, found.guard, {"task": "schedules"})


def test_a_file_holds_what_was_trained(stored: StoredTrees, tmp_path: Path) -> None:
    size = write_trees(tmp_path / "model.onnx", stored)
    again = read_trees(tmp_path / "model.onnx")
    assert size == (tmp_path / "model.onnx").stat().st_size < 2 << 20
    for name in ("columns", "thresholds", "leaves"):
        assert np.array_equal(getattr(again.ensemble, name), getattr(stored.ensemble, name))
    assert again.ensemble.left_shares == pytest.approx(stored.ensemble.left_shares, abs=1e-3)
    assert again.training == {"task": "schedules"}
    assert again.guard is not None and stored.guard is not None
    for s in TEST:
        assert again.guard.trust(s.candidates.features) == pytest.approx(
            stored.guard.trust(s.candidates.features), abs=1e-4
        )


def test_the_graph_scores_as_the_ensemble_does_by_reference_and_compiled(stored: StoredTrees) -> None:
    rows = rows_of(TEST)[:150]
    wanted = stored.ensemble.scores(rows)
    model = trees_model(stored)
    (by_reference,) = ReferenceEvaluator(model).run(None, {"features": rows[:64].astype(np.float32)})
    assert by_reference == pytest.approx(wanted[:64], abs=1e-5)
    with tilewright.load(model, threads=1) as session:
        assert isinstance(session, Session)
        assert CompiledScorer(session)(rows) == pytest.approx(wanted, abs=1e-5)


def test_what_is_no_cost_model_of_this_version_is_refused(stored: StoredTrees, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no cost model"):
        trees_of(ModelProto())
    model = trees_model(stored)
    (held,) = [p for p in model.metadata_props if p.key == METADATA]
    held.value = held.value.replace('"knob_rows"', '"knob_lines"')
    with pytest.raises(UserError, match="another version"):
        trees_of(model)
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(UserError, match="cost train"):
        read_trees(tmp_path / "text.onnx")


def test_a_tree_of_one_leaf_is_the_same_on_all_ways() -> None:
    ones = np.ones((1, 3))
    tree = CostTrees(
        np.zeros((1, 3), np.int64),
        np.full((1, 3), 0.5, np.float32),
        np.full((1, 4), 2.0, np.float32),
        ones,
    )
    rows = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert tree.scores(rows).tolist() == [2.0, 2.0]
    assert tree.contributions(rows)[:, -1].tolist() == [2.0, 2.0]


# ---------------------------------------------------------------------------------------------------------------- guard


def moved(samples: KernelSamples, feature: str, by: float) -> KernelSamples:
    features = samples.candidates.features.copy()
    features[:, AT[feature]] += by
    return replace(samples, candidates=replace(samples.candidates, features=features))


def test_what_is_far_from_all_that_was_trained_is_ranked_by_costs() -> None:
    model = trained().model
    assert model.guard is not None
    known = max(
        TRAIN, key=lambda s: float(s.candidates.features[0, AT["work"]])
    )  # moved, it leaves all others
    trusts = [
        float(model.guard.trust(moved(known, "work", by).candidates.features)[0])
        for by in np.arange(0.0, 20.0, 0.2)
    ]
    assert float(model.guard.trust(TRAIN[0].candidates.features)[0]) == 1.0
    assert trusts[0] > 0.9 and trusts[-1] == 0.0
    assert all(a >= b for a, b in pairwise(trusts))
    assert any(0.0 < t < 1.0 for t in trusts)  # it fades
    away = moved(known, "work", 100.0)
    assert model.log_seconds(away.candidates) == pytest.approx(np.log(away.candidates.costs))
    assert model.log_seconds(known.candidates) != pytest.approx(np.log(known.candidates.costs))


def test_a_family_that_was_not_trained_is_ranked_by_costs() -> None:
    guard = trained().guard
    assert guard is not None
    other = moved(moved(TRAIN[0], "is_gemm", -1.0), "is_chain", 1.0)
    assert (guard.trust(TRAIN[0].candidates.features) == 1.0).all()
    assert (guard.trust(other.candidates.features) == 0.0).all()


def test_most_kernels_of_other_programs_are_trusted() -> None:
    guard = trained().guard
    assert guard is not None
    trusts = [float(guard.trust(s.candidates.features)[0]) for s in TEST]
    assert np.mean(trusts) > 0.8

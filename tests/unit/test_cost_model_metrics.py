"""What cost models are judged by, and which kernels they are judged on."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kendalltau

from tests.unit.cost_samples import KINDS, made_samples
from tilewright.learned.analytical import AnalyticalModel
from tilewright.support.arrays import FloatArray
from tilewright.support.errors import UserError
from tilewright.training.evaluate import judge_models
from tilewright.training.metrics import (
    all_errors,
    chosen_errors,
    expected_best,
    kendall_tau,
    program_taus,
    regrets,
    sure_regrets,
    taus_by_kind,
)
from tilewright.training.samples import KernelSamples
from tilewright.training.splits import family_splits, kind_distances, manual_split, random_split
from tilewright.training.table import stacked, usable

SAMPLES = made_samples(programs=10, kernels=3, schedules=12, names=("unet", "gpt2"))


def timed(program: str, *seconds: float) -> KernelSamples:
    some = made_samples(1, 1, len(seconds))[0]
    return replace(some, program=program, seconds=np.array(seconds), noise=np.zeros(len(seconds)))


def guesses(*values: float) -> FloatArray:
    return np.log(np.array(values))


def test_regret_of_a_program_is_that_of_all_of_its_kernels() -> None:
    samples = [timed("a", 1.0, 2.0), timed("a", 4.0, 3.0), timed("b", 5.0, 6.0)]
    predictions = [guesses(2, 1), guesses(9, 1), guesses(1, 2)]  # the slower, the quicker, the quicker
    assert regrets(samples, predictions) == pytest.approx({"a": 100.0 * 1.0 / 4.0, "b": 0.0})
    assert regrets(samples, predictions, top=2) == {"a": 0.0, "b": 0.0}


def test_a_choice_that_may_be_the_best_costs_nothing_beyond_noise() -> None:
    noisy = replace(timed("a", 1.0, 1.04, 1.5), noise=np.full(3, 0.05))
    for chosen, plain, sure in ((0, 0.0, 0.0), (1, 4.0, 0.0), (2, 50.0, 50.0)):
        predictions = [np.where(np.arange(3) == chosen, 0.0, 1.0)]
        assert regrets([noisy], predictions) == pytest.approx({"a": plain})
        assert sure_regrets([noisy], predictions) == pytest.approx({"a": sure})


def test_what_is_predicted_alike_is_taken_at_random() -> None:
    seconds = np.array([1.0, 2.0, 3.0, 10.0])
    assert expected_best(seconds, np.zeros(4), 1) == pytest.approx(4.0)
    assert expected_best(seconds, np.array([0.0, 0.0, 0.0, -1.0]), 1) == 10.0
    # With the last sure, one of the others: 1, 2 or 3.
    assert expected_best(seconds, np.array([0.0, 0.0, 0.0, -1.0]), 2) == pytest.approx(2.0)
    # Two of the four: 1 in half of the pairs, 2 in a third, 3 in a sixth.
    assert expected_best(seconds, np.zeros(4), 2) == pytest.approx(1 / 2 + 2 / 3 + 3 / 6)
    assert expected_best(seconds, np.zeros(4), 9) == 1.0


def test_tau_without_noise_is_kendalls() -> None:
    rng = np.random.default_rng(0)
    seconds = rng.uniform(1.0, 2.0, 40)
    predicted = np.log(seconds) + rng.normal(0.0, 0.2, 40)
    wanted = kendalltau(seconds, predicted).statistic
    assert kendall_tau(seconds, np.zeros(40), predicted) == pytest.approx(wanted)


def test_pairs_within_their_noise_do_not_count() -> None:
    seconds, wrong = np.array([1.0, 1.01, 2.0]), guesses(2, 1, 3)
    assert kendall_tau(seconds, np.zeros(3), wrong) == pytest.approx(1 / 3)
    assert kendall_tau(seconds, np.full(3, 0.02), wrong) == 1.0
    assert np.isnan(kendall_tau(seconds, np.full(3, 2.0), wrong))


def test_kinds_have_taus_of_their_own() -> None:
    found = taus_by_kind(SAMPLES, np.linspace(0.0, 1.0, len(SAMPLES)))
    assert set(found) <= set(KINDS) and len(found) > 1
    assert taus_by_kind(SAMPLES, np.full(len(SAMPLES), np.nan)) == {}


def test_errors_of_seconds_are_of_what_was_chosen() -> None:
    samples = [timed("a", 1.0, 2.0), timed("a", 1e-6, 2e-6)]  # the second kernel is too short to be judged
    choices, seconds = [guesses(2, 1), guesses(1, 2)], [guesses(7, 1), guesses(7, 7)]
    assert chosen_errors(samples, choices, seconds) == {"a": [pytest.approx(50.0)]}
    assert all_errors(samples, seconds) == [pytest.approx((600 + 50) / 2)]


def test_tau_of_a_program_is_over_its_kernels() -> None:
    samples = [timed("a", 1.0), timed("a", 2.0), timed("a", 3.0), timed("b", 1.0)]
    predictions = [guesses(1), guesses(3), guesses(2), guesses(1)]
    assert program_taus(samples, predictions, predictions) == {"a": pytest.approx(1 / 3)}


# --------------------------------------------------------------------------------------------------------------- splits


def test_random_splits_hold_out_programs() -> None:
    splits = [random_split(SAMPLES, seed) for seed in range(3)]
    for s in splits:
        assert not {k.program for k in s.train} & {k.program for k in s.test}
        assert len({k.program for k in s.test}) == 2 and len(s.train) + len(s.test) == len(SAMPLES)
    assert len({frozenset(k.program for k in s.test) for s in splits}) > 1
    with pytest.raises(UserError, match="one program"):
        random_split(SAMPLES[:3], 0)


def test_a_kernel_of_a_held_out_program_is_not_trained_in_another() -> None:
    twin = replace(SAMPLES[0], program="program9")
    split = manual_split([*SAMPLES, twin], ("unet",))
    assert all(s.program == "unet" for s in split.test) and len(split.test) == 3
    assert twin not in split.train and len(split.train) == len(SAMPLES) - 3


def test_manual_splits_hold_out_networks_by_name() -> None:
    assert {s.program for s in manual_split(SAMPLES).test} == {"unet", "gpt2"}


def test_family_splits_hold_out_kinds() -> None:
    found = {s.name: s for s in family_splits(SAMPLES)}
    assert set(found) == {"windows", "attention"}
    assert {s.kind for s in found["windows"].test} == {"convolution"}
    assert "convolution" not in {s.kind for s in found["windows"].train}
    assert {s.kind for s in found["attention"].test} == {"attention"}


def test_programs_with_kinds_of_their_own_are_unlike_others() -> None:
    plain = [replace(timed("a", 1.0), kind="gemm"), replace(timed("b", 1.0), kind="gemm")]
    found = kind_distances([*plain, replace(timed("c", 1.0), kind="attention")])
    assert found == pytest.approx({"a": 0.5, "b": 0.5, "c": 1.0})


def test_schedules_without_a_time_are_left_out() -> None:
    seconds = SAMPLES[0].seconds.copy()
    seconds[:3] = np.nan
    broken = replace(SAMPLES[0], seconds=seconds)
    assert len(usable(broken)) == len(seconds) - 3 == len(stacked([broken]).log_seconds)
    with pytest.raises(UserError, match="nothing to train on"):
        stacked([replace(broken, seconds=np.full(len(seconds), np.nan))])


def test_an_evaluation_says_what_was_asked_for() -> None:
    found = judge_models(
        SAMPLES, lambda s, seed: AnalyticalModel(), lambda s, seed: AnalyticalModel(), 2
    ).as_json()
    keys = {"ape_mean", "ape_worst", "analytical_ape_mean", "top5_regret", "top10_regret", "tau"}
    assert set(found["splits"]) == {"random", "manual", "family"}
    for split in found["splits"].values():
        assert keys <= set(split)
        assert split["ape_mean"] == split["analytical_ape_mean"] > 0.0
        assert split["ape_worst"] >= split["ape_mean"] >= split["top5_regret"] >= split["top10_regret"]
        assert split["tau"] == split["analytical_tau"]
    assert found["fusion"]["mape"] == found["fusion"]["analytical_mape"]
    assert len(found["splits"]["random"]["ape_by_seed"]) == 2

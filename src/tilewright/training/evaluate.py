"""How good cost models are on kernels that they were not trained on: regrets and rank correlations on all splits."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tilewright.learned.analytical import AnalyticalModel
from tilewright.learned.candidates import CostModel
from tilewright.training.metrics import (
    Predictions,
    all_errors,
    chosen_errors,
    kernel_taus,
    program_taus,
    regrets,
    sure_regrets,
    taus_by_kind,
)
from tilewright.training.samples import KernelSamples
from tilewright.training.splits import SampleSplit, family_splits, manual_split, random_split
from tilewright.training.table import usable

Train: TypeAlias = Callable[[Sequence[KernelSamples], int], CostModel]  # samples and a seed
OnStage: TypeAlias = Callable[[str], None]
_TOPS = (1, 5, 10)
_TENTH = 0.1  # of the schedules of a kernel: what a tuner measures that spares nine of ten measurements


@dataclass(slots=True)
class SplitResult:
    """Of one split, over all of its seeds and parts. Figures of one list belong to programs or kernels."""

    regrets: dict[int, list[float]] = field(default_factory=lambda: {k: [] for k in _TOPS})
    analytical_regrets: dict[int, list[float]] = field(default_factory=lambda: {k: [] for k in _TOPS})
    tenth: list[float] = field(default_factory=list[float])  # regrets of the best of a tenth of all schedules
    analytical_tenth: list[float] = field(default_factory=list[float])
    sure: list[float] = field(default_factory=list[float])  # regrets beyond noise
    analytical_sure: list[float] = field(default_factory=list[float])
    taus: list[float] = field(default_factory=list[float])
    analytical_taus: list[float] = field(default_factory=list[float])
    kind_taus: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list[float]))
    worst: tuple[float, str] = (-1.0, "")  # regret, and whose it is
    seed_regrets: list[float] = field(default_factory=list[float])  # the mean of each

    def add(self, test: Sequence[KernelSamples], predictions: Predictions, stated: Predictions) -> None:
        for top in _TOPS:
            found = regrets(test, predictions, top)
            self.regrets[top] += found.values()
            self.analytical_regrets[top] += regrets(test, stated, top).values()
            if top == 1:
                self.worst = max(self.worst, *((v, k) for k, v in found.items()))
                self.seed_regrets.append(float(np.mean(list(found.values()))))
        self.tenth += regrets(test, predictions, share=_TENTH).values()
        self.analytical_tenth += regrets(test, stated, share=_TENTH).values()
        self.sure += sure_regrets(test, predictions).values()
        self.analytical_sure += sure_regrets(test, stated).values()
        taus = kernel_taus(test, predictions)
        self.taus += taus[np.isfinite(taus)].tolist()
        for kind, tau in taus_by_kind(test, taus).items():
            self.kind_taus[kind].append(tau)
        others = kernel_taus(test, stated)
        self.analytical_taus += others[np.isfinite(others)].tolist()

    def as_json(self) -> dict[str, Any]:
        """Regrets in percent; τ between -1 and 1."""
        return {
            "ape_mean": _mean(self.regrets[1]),
            "ape_worst": max(self.regrets[1], default=None),
            "analytical_ape_mean": _mean(self.analytical_regrets[1]),
            "top5_regret": _mean(self.regrets[5]),
            "top10_regret": _mean(self.regrets[10]),
            "tau": _mean(self.taus),
            "tenth_regret": _mean(self.tenth),
            "analytical_tenth_regret": _mean(self.analytical_tenth),
            "ape_beyond_noise": _mean(self.sure),
            "analytical_ape_beyond_noise": _mean(self.analytical_sure),
            "analytical_ape_worst": max(self.analytical_regrets[1], default=None),
            "analytical_top5_regret": _mean(self.analytical_regrets[5]),
            "analytical_top10_regret": _mean(self.analytical_regrets[10]),
            "analytical_tau": _mean(self.analytical_taus),
            "tau_by_kind": {kind: _mean(some) for kind, some in sorted(self.kind_taus.items())},
            "ape_by_seed": self.seed_regrets,
            "worst_program": self.worst[1],
        }


@dataclass(slots=True)
class FusionResult:
    """Of predicted seconds: what searches of fusion add up."""

    errors: list[float] = field(default_factory=list[float])
    schedule_errors: list[float] = field(default_factory=list[float])
    taus: list[float] = field(default_factory=list[float])
    analytical_errors: list[float] = field(default_factory=list[float])
    analytical_taus: list[float] = field(default_factory=list[float])

    def add(
        self,
        test: Sequence[KernelSamples],
        choices: Predictions,
        predictions: Predictions,
        stated: Predictions,
    ) -> None:
        self.errors += [e for some in chosen_errors(test, choices, predictions).values() for e in some]
        self.schedule_errors += all_errors(test, predictions)
        self.taus += program_taus(test, choices, predictions).values()
        self.analytical_errors += [e for some in chosen_errors(test, choices, stated).values() for e in some]
        self.analytical_taus += program_taus(test, choices, stated).values()

    def as_json(self) -> dict[str, Any]:
        return {
            "mape": _mean(self.errors),
            "tau": _mean(self.taus),
            "mape_all_schedules": _mean(self.schedule_errors),
            "analytical_mape": _mean(self.analytical_errors),
            "analytical_tau": _mean(self.analytical_taus),
        }


@dataclass(slots=True)
class Evaluation:
    splits: dict[str, SplitResult]
    parts: dict[str, SplitResult]  # of the family split, by what is held out
    fusion: FusionResult
    seeds: int
    points: dict[
        str, list[tuple[float, float]]
    ]  # measured and predicted seconds of chosen schedules, by kind
    stated_points: dict[str, list[tuple[float, float]]]  # the same by the closed form

    def as_json(self) -> dict[str, Any]:
        return {
            "splits": {name: found.as_json() for name, found in self.splits.items()},
            "fusion": self.fusion.as_json(),
            "families": {name: found.as_json() for name, found in self.parts.items()},
            "seeds": self.seeds,
        }


def judge_models(
    samples: Sequence[KernelSamples],
    train: Train,
    train_seconds: Train | None,
    seeds: int,
    tell: OnStage = lambda what: None,
) -> Evaluation:
    """Train with each seed and judge on each split; `train_seconds` makes models of absolute times, for fusion."""
    known = [s for s in map(usable, samples) if len(s)]
    splits = {n: SplitResult() for n in ("random", "manual", "family")}
    result = Evaluation(splits, {}, FusionResult(), seeds, {}, {})
    for seed in range(seeds):
        split = random_split(known, seed)
        tell(f"random split, seed {seed}")
        choices = _judge(split, train, seed, result.splits["random"])
        if train_seconds is not None:
            seconds = train_seconds(split.train, seed)
            predictions, stated = predict(seconds, split.test), predict(AnalyticalModel(), split.test)
            result.fusion.add(split.test, choices, predictions, stated)
            if seed == 0:
                result.points = _points(split.test, choices, predictions)
                result.stated_points = _points(split.test, choices, stated)
        split = manual_split(known)
        if split.train and split.test:
            tell(f"manual split, seed {seed}")
            _judge(split, train, seed, result.splits["manual"])
        for split in family_splits(known):
            if split.train:
                tell(f"without {split.name}, seed {seed}")
                part = result.parts.setdefault(split.name, SplitResult())
                _judge(split, train, seed, result.splits["family"], part)
    return result


def _judge(split: SampleSplit, train: Train, seed: int, *results: SplitResult) -> Predictions:
    model = train(split.train, seed)
    predictions, stated = predict(model, split.test), predict(AnalyticalModel(), split.test)
    for result in results:
        result.add(split.test, predictions, stated)
    return predictions


def _points(
    samples: Sequence[KernelSamples], choices: Predictions, predictions: Predictions
) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for s, by, predicted in zip(samples, choices, predictions, strict=True):
        at = int(np.argmin(by))
        found[s.kind].append((float(s.seconds[at]), float(np.exp(predicted[at]))))
    return dict(sorted(found.items()))


def predict(model: CostModel, samples: Sequence[KernelSamples]) -> Predictions:
    return [model.log_seconds(s.candidates) for s in samples]


def _mean(values: Sequence[float]) -> float | None:
    """None if there are none, which JSON can say."""
    return float(np.mean(values)) if values else None

"""Which features moved a prediction: of the schedule that a model chooses, and of the one that the closed form does.

A prediction is the closed form times a correction; the correction's logarithm is a sum over features
(`CostTrees.contributions`). So every feature has a factor, which is said in percent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.families.space import KnobValues, Space
from tilewright.learned.features import ABSENT, FEATURES, SpaceFeatures, kernel_features
from tilewright.learned.model_file import StoredTrees
from tilewright.learned.space import ASKED
from tilewright.search.default import spaces
from tilewright.support.arrays import FloatArray
from tilewright.support.errors import UserError
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.training.charts import contribution_chart

_COST = FEATURES.index("cost")
_LEAST = 0.05  # percent, given: what is said of a feature that adds less helps nobody
_PLAIN = frozenset(  # features that are numbers as they are; others are logarithms
    (
        "blocks",
        "reductions",
        "element_bytes",
        "space_count",
        "reduce_count",
        "lanes",
        "hertz",
        "fma",
        "threads",
    )
)
_TERM_WORDS = {
    "arithmetic": "arithmetic",
    "edges": "edges of tiles and loops",
    "near": "bytes from caches",
    "far": "bytes from memory",
    "copies": "copies",
    "beside": "other blocks",
    "team": "sharing and meetings",
}
_BYTES = frozenset(("input_bytes", "constant_bytes", "output_bytes", "local_bytes", "l1", "l2", "l3"))


@dataclass(frozen=True, slots=True, eq=False)
class ExplainedSchedule:
    family: str
    decisions: KnobValues
    features: FloatArray
    cost: float  # seconds, by the closed form
    seconds: float  # as predicted
    contributions: FloatArray  # to the logarithm of the correction, as `CostTrees.contributions` has them

    def describe(self) -> str:
        knobs = ", ".join(f"{k} {v}" for k, v in self.decisions.items())
        return f"{self.family}: {knobs}" if knobs else self.family


@dataclass(frozen=True, slots=True, eq=False)
class ExplainedKernel:
    """`best` is what the model chooses, `stated` what the closed form does; they may be the same."""

    name: str
    trust: float  # of the guard
    schedules: int  # that were ranked
    best: ExplainedSchedule
    stated: ExplainedSchedule

    @property
    def is_same(self) -> bool:
        return (self.best.family, self.best.decisions) == (self.stated.family, self.stated.decisions)

    @property
    def gain(self) -> float:
        """How much longer the closed form's choice takes, as predicted: a factor."""
        return self.stated.seconds / self.best.seconds

    @property
    def usual(self) -> float:
        """The correction of a schedule of which nothing is known, in percent."""
        return 100.0 * math.expm1(float(self.best.contributions[-1]))

    @property
    def doubt(self) -> float:
        """What the disagreement of the model's members adds to the prediction of the best, in percent."""
        return 100.0 * math.expm1(float(self.best.contributions[-2]))

    def moved(self, count: int) -> list[tuple[str, float]]:
        """The features that moved the prediction of the best most: in words, and by how much in percent."""
        return _moved(self.best, self.best.contributions[:-2], count)

    def decided(self, count: int) -> list[tuple[str, float]]:
        """The features by which the best differs most from the closed form's choice."""
        return _moved(
            self.best, self.best.contributions[:-2] - self.stated.contributions[:-2], count, self.stated
        )

    def svg(self, count: int = 12) -> str:
        title = f"{self.name}: {self.best.describe()}"
        return contribution_chart(title, self.moved(count))


def explain_kernel(
    name: str, func: Func, target: Target, constants: frozenset[str], stored: StoredTrees
) -> ExplainedKernel:
    """`target` is for the threads that it runs on. UserError if no family has a schedule for it."""
    own = kernel_features(func, target, constants)
    found = [_Ranked.of(space, own, stored) for space in spaces(func, target, constants)]
    found = [r for r in found if len(r.costs)]
    if not found:
        raise UserError(f"{name} has no design space: there is one way to run it")
    best = min(found, key=lambda r: r.seconds.min())
    stated = min(found, key=lambda r: r.costs.min())
    chosen = (best, int(best.seconds.argmin())), (stated, int(stated.costs.argmin()))
    explained = [r.explained(n, stored) for r, n in chosen]
    guard = stored.guard
    trust = 1.0 if guard is None else float(guard.trust(best.rows[:1])[0])
    return ExplainedKernel(name, trust, sum(len(r.costs) for r in found), *explained)


@dataclass(frozen=True, slots=True, eq=False)
class _Ranked:
    """The points of a space that are worth ranking."""

    space: Space
    points: Sequence[KnobValues]
    rows: FloatArray
    costs: FloatArray
    seconds: FloatArray

    @classmethod
    def of(cls, space: Space, own: dict[str, float], stored: StoredTrees) -> "_Ranked":
        points, costs = space.ranked()
        points, costs = points[:ASKED], costs[:ASKED]
        rows = SpaceFeatures(own, space, float(costs[0]) if len(costs) else math.inf).rows(points, costs)
        seconds = costs * np.exp(stored.model().corrections(rows)) if len(costs) else costs
        return cls(space, [space.decisions(p) for p in points], rows, costs, seconds)

    def explained(self, at: int, stored: StoredTrees) -> ExplainedSchedule:
        return ExplainedSchedule(
            self.space.family,
            self.points[at],
            self.rows[at],
            float(self.costs[at]),
            float(self.seconds[at]),
            correction_shares(self.rows[at : at + 1], stored)[0],
        )


def correction_shares(rows: FloatArray, stored: StoredTrees) -> FloatArray:
    """What each feature adds to the logarithm of the correction of schedules of one kernel, as far as the guard trusts
    the model.
    """
    shares = stored.ensemble.contributions(rows)
    if not stored.is_residual:  # then the closed form is taken back, which one of the features says
        shares[:, _COST] -= math.log(2.0) * rows[:, _COST]
    return shares if stored.guard is None else stored.guard.trust(rows)[:, None] * shares


def _moved(
    schedule: ExplainedSchedule, shares: FloatArray, count: int, other: ExplainedSchedule | None = None
) -> list[tuple[str, float]]:
    order = np.argsort(-np.abs(shares), kind="stable")[:count]
    found: list[tuple[str, float]] = []
    for n in map(int, order):
        percent = 100.0 * math.expm1(float(shares[n]))
        if abs(percent) < _LEAST:
            break
        words = feature_words(FEATURES[n], float(schedule.features[n]))
        if other is not None and other.features[n] != schedule.features[n]:
            words += f" instead of {feature_words(FEATURES[n], float(other.features[n]))}"
        found.append((words, percent))
    return found


def feature_words(name: str, value: float) -> str:
    """A feature as people say it."""
    kind, _, rest = name.partition("_")
    match kind:
        case "is":
            return f"family {rest}" if value > 0.5 else f"not {rest}"
        case "knob":
            return f"no {rest}" if value == ABSENT else f"{rest} {round(2.0**value - 2.0)}"
        case "term":
            words = _TERM_WORDS.get(rest, rest)  # which a family need not tell
            return f"no {words}" if value == ABSENT else f"{100.0 * 2.0**value:.0f} % {words}"
        case _:
            return _own_words(name, value)


def _own_words(name: str, value: float) -> str:
    if name == "cost":
        return f"a cost of {1e6 * 2.0**value:.3g} µs"
    if name == "over_cheapest":
        return f"{2.0**value:.2f} times the cheapest cost"
    words = name.replace("_", " ")
    if value == ABSENT:
        return f"no {words}"
    if name in _PLAIN:
        return f"{words} {value:g}"
    number = 2.0**value
    return f"{words} {number:.3g}{' B' if name in _BYTES else ''}"

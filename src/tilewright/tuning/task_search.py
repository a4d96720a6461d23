"""The search for one task inside of a program: which points are tried, and which of them wins.

Ratios are of a candidate's time over that of what was compiled, at the same site in the same runs. In passing they are
taken from a few runs, so the best of many is partly luck: the best few are measured again, and only these measurements
decide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.families.space import KnobValues
from tilewright.search.database import Choice
from tilewright.search.evolve import Evolution, Proposal
from tilewright.support.turns import median_of_rounds
from tilewright.tuning.candidate import Task
from tilewright.tuning.candidates import Point
from tilewright.tuning.failures import Failure

FINALISTS = 3
_BY_FAR = 0.95  # a ratio, given: more than luck
CLEARLY_BETTER = 0.985  # a ratio, given: what is measured in passing differs by about as much from run to run


@dataclass(slots=True, eq=False)
class TaskSearch:
    """`sites` are those of the task, by number; `seconds` what they take together as compiled."""

    task: Task
    sites: Sequence[int]
    seconds: float
    seed: int = 0
    trials: int = 0
    batches: int = 0
    last_gain: float = 0.0
    best: float = 1.0  # ratio, measured in passing
    decided: float = 1.0  # ratio, of what was chosen
    chosen: Choice | None = None  # None: what was compiled
    failed: list[Failure] = field(default_factory=list[Failure])
    _evolution: Evolution | None = None
    _finals: dict[Proposal, list[float]] = field(default_factory=dict[Proposal, list[float]])

    @property
    def evolution(self) -> Evolution:
        if self._evolution is None:
            self._evolution = Evolution(self.task.design_spaces(), self.seed)
        return self._evolution

    @property
    def points(self) -> int:
        """How many were ranked; 0 before anybody has asked for them."""
        return 0 if self._evolution is None else self._evolution.size

    def recall(self, rule: str, decisions: KnobValues, ratio: float) -> None:
        """A ratio that was measured before."""
        p = self.evolution.find(rule, decisions)
        if p is not None:
            self.evolution.tell(p, ratio)
            self.best = min(self.best, ratio)

    @property
    def promise(self) -> float:
        """Seconds of a run that another batch may gain: as much as the last, or a little if it gained nothing."""
        return self.seconds * self.best * max(self.last_gain, 0.1 / max(self.batches, 1))

    def point(self, p: Proposal) -> Point:
        return self.evolution.rule(p), self.evolution.decisions(p)

    def tell(self, found: Sequence[tuple[Proposal, float]]) -> None:
        """The ratios of a batch, infinite where a candidate failed."""
        before = self.best
        for p, ratio in found:
            self.trials += 1
            self.evolution.tell(p, ratio)
            self.best = min(self.best, ratio)
        self.batches += 1
        self.last_gain = 1 - self.best / before

    # ---------------------------------------------------------------------------------------------------- the finals

    def finalists(self) -> list[Proposal]:
        """Those that are worth measuring again."""
        best = self.evolution.best
        if best is None or best[1] >= CLEARLY_BETTER:
            return []
        return self.evolution.winners(FINALISTS)

    def tell_final(self, p: Proposal, ratio: float) -> None:
        self._finals.setdefault(p, []).append(ratio)

    def settle(self) -> None:
        """Take what was clearly the best in passing, without measuring it again."""
        best = self.evolution.best
        if best is not None and best[1] < _BY_FAR:
            rule, decisions = self.point(best[0])
            self.chosen, self.decided = Choice(rule, decisions), best[1]

    def decide(self) -> None:
        """Take the best of the finalists, if it is better beyond doubt."""
        found = [(p, median_of_rounds(r)) for p, r in self._finals.items() if all(map(math.isfinite, r))]
        if not found:
            return
        p, ratio = min(found, key=lambda f: f[1].value)
        if ratio.value < CLEARLY_BETTER and ratio.high < 1.0:
            rule, decisions = self.point(p)
            self.chosen, self.decided = Choice(rule, decisions), ratio.value

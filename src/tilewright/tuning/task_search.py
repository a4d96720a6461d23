"""The search for one task inside of a program: which points are tried, and which of them wins.

Ratios are of a candidate's time over that of what was compiled, at the same site in neighbouring runs. The few that a
candidate is first timed with only say whether it is worth more: of many, the best is luck otherwise. The *leaders* are
timed again whenever the program runs and a site has nothing new to try, and these ratios alone decide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tilewright.families.space import KnobValues
from tilewright.learned.online import OnlineModel, OnlineSpace
from tilewright.search.database import Choice
from tilewright.search.default import Refine, as_stated
from tilewright.search.evolve import Evolution, Proposal
from tilewright.search.grain import GrainSpace
from tilewright.support.turns import median_of_rounds
from tilewright.tuning.candidate import Task
from tilewright.tuning.candidates import Point
from tilewright.tuning.failures import Failure
from tilewright.tuning.trial import Candidate

_LEADERS = 3  # candidates of a task that are timed again; bound
_ENOUGH = 48  # ratios that decide: more would not change what is chosen; bound
_LEAST_RATIOS = 6  # that decide, given: fewer are luck
_WORTH_MORE = 0.995  # a ratio, given: a candidate that first took longer is not timed again
_BETTER = 0.99  # a ratio, given: less of a gain than this is none
_DOUBT = (
    0.2  # that what is chosen is no gain, given: the whole program is compared in the end, with less doubt
)


@dataclass(slots=True, eq=False)
class Entrant:
    """A candidate that may be the best."""

    proposal: Proposal
    candidate: Candidate
    first: float  # the median of the ratios that it was first timed with
    ratios: list[float] = field(default_factory=list[float])  # measured since

    @property
    def ratio(self) -> float:
        """As far as it is known."""
        return median([self.first, *self.ratios])

    @property
    def is_known(self) -> bool:
        return len(self.ratios) >= _LEAST_RATIOS


@dataclass(slots=True, eq=False)
class TaskSearch:
    """`sites` are those of the task, by number; `seconds` what they take together as compiled."""

    task: Task
    sites: Sequence[int]
    seconds: float
    seed: int = 0
    refine: Refine = as_stated  # ranks points that were not measured
    online: OnlineModel = field(
        default_factory=OnlineModel
    )  # of all tasks of a tuning; learns from what is told
    trials: int = 0
    batches: int = 0
    last_gain: float = 0.0
    decided: float = 1.0  # ratio, of what was chosen
    chosen: Choice | None = None  # None: what was compiled
    failed: list[Failure] = field(default_factory=list[Failure])
    leaders: list[Entrant] = field(default_factory=list[Entrant])  # the best first
    _evolution: Evolution | None = None
    _ranked_with: int = 0  # the version of the online model
    # What an earlier tuning has measured: is it yet to be timed again?
    _recalled: dict[Proposal, bool] = field(default_factory=dict[Proposal, bool])

    @property
    def evolution(self) -> Evolution:
        if self._evolution is None:
            found = self.task.design_spaces(self.refine)
            # One thread runs all parts anyway.
            offered = found if self.task.threads == 1 else [GrainSpace(s) for s in found]
            learning = [OnlineSpace(s, self.task.key, self.online) for s in offered]
            self._evolution = Evolution(learning, self.seed)
        return self._evolution

    @property
    def points(self) -> int:
        """How many were ranked; 0 before anybody has asked for them."""
        return 0 if self._evolution is None else self._evolution.size

    @property
    def best(self) -> float:
        """The least ratio of what was timed again."""
        return min((e.ratio for e in self.leaders if e.is_known), default=1.0)

    def recall(self, rule: str, decisions: KnobValues, ratio: float) -> None:
        """A ratio that was measured before."""
        p = self.evolution.find(rule, decisions)
        if p is not None:
            self.evolution.tell(p, ratio)
            self._learn(p, ratio)
            self._recalled[p] = ratio < _WORTH_MORE

    def propose(self, count: int) -> list[Proposal]:
        """Points to be built next: those that were worth more in an earlier tuning come first."""
        self.online.learn()
        if self._ranked_with != self.online.version:
            self.evolution.rank()
            self._ranked_with = self.online.version
        again = [p for p, is_due in self._recalled.items() if is_due][:count]
        self._recalled |= dict.fromkeys(again, False)
        return again + self.evolution.propose(count - len(again))

    def is_new(self, p: Proposal) -> bool:
        """Or was it measured in an earlier tuning?"""
        return p not in self._recalled

    @property
    def promise(self) -> float:
        """Seconds of a run that another batch may gain: as much as the last, or a little if it gained nothing."""
        return self.seconds * self.best * max(self.last_gain, 0.1 / max(self.batches, 1))

    def point(self, p: Proposal) -> Point:
        return self.evolution.rule(p), self.evolution.decisions(p)

    # ------------------------------------------------------------------------------------------------ what was timed

    def tell(self, p: Proposal, candidate: Candidate | None, ratios: Sequence[float]) -> None:
        """The first ratios of a candidate; none if it failed."""
        self.trials += self.is_new(p)
        first = median(ratios) if ratios else math.inf
        self.evolution.tell(p, first)
        self._learn(p, first)
        if candidate is not None and first < _WORTH_MORE:
            self.leaders.append(Entrant(p, candidate, first))
            self._sort()

    def _learn(self, p: Proposal, ratio: float) -> None:
        space = self.evolution.spaces[p.space]
        assert isinstance(space, OnlineSpace)
        space.tell(p.row, ratio)

    def tell_again(self, entrant: Entrant, ratios: Sequence[float]) -> None:
        """Further ratios of a leader; none if it failed."""
        entrant.ratios += ratios
        known = entrant.ratio if ratios else math.inf
        self.evolution.tell(entrant.proposal, known)
        if known >= _WORTH_MORE and (entrant.is_known or not ratios):
            self.leaders = [e for e in self.leaders if e is not entrant]
        self._sort()

    def _sort(self) -> None:
        self.leaders.sort(key=lambda e: e.ratio)
        del self.leaders[_LEADERS:]

    def end_batch(self, before: float) -> None:
        """`before` is the best before the batch."""
        self.batches += 1
        self.last_gain = 1 - self.best / before

    def doubtful(self) -> Entrant | None:
        """The leader of which least is known, if that is not enough."""
        known = min(self.leaders, key=lambda e: len(e.ratios), default=None)
        return known if known is not None and len(known.ratios) < _ENOUGH else None

    # ------------------------------------------------------------------------------------------------------- the end

    def decide(self) -> None:
        """Take the best of the leaders, if it is better with little doubt."""
        known = [(e, median_of_rounds(e.ratios, _DOUBT)) for e in self.leaders if e.is_known]
        found = [(e, r) for e, r in known if r.value < _BETTER and r.high < 1.0]
        if found:
            entrant, ratio = min(found, key=lambda f: f[1].value)
            rule, decisions = self.point(entrant.proposal)
            self.chosen, self.decided = Choice(rule, decisions), ratio.value

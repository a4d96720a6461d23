"""The search proposes each point once and finds the best of a space with a fraction of its points."""

import numpy as np
import pytest

from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.schedule.schedule import Schedule
from tilewright.search.evolve import Evolution, Proposal
from tilewright.support.errors import ScheduleError

SIZE = 12


class Valley(Space):
    """Four knobs of twelve choices. What a point really takes has its minimum at `best`; the cost form knows two of the
    knobs and is wrong about the others.
    """

    family = "valley"

    def __init__(self, best: tuple[int, ...] = (3, 7, 9, 2)) -> None:
        self.best = best
        self.knobs = tuple(Knob(f"k{n}", tuple(range(SIZE))) for n in range(4))

    def points(self) -> Points:
        return np.indices((SIZE,) * 4).reshape(4, -1).T.astype(np.int64)

    def cost(self, points: Points) -> Costs:
        away = np.abs(points[:, :2] - np.array(self.best[:2])).sum(axis=1)
        return np.where(points[:, 3] == 11, np.inf, 1e-3 * (1.0 + 0.2 * away))

    def build(self, decisions: KnobValues) -> Schedule:
        raise ScheduleError("nothing is built here")

    def seconds(self, row: tuple[int, ...]) -> float:
        return 2e-3 * (1 + sum(0.1 * abs(a - b) for a, b in zip(row, self.best, strict=True)))


def search(space: Valley, trials: int, seed: int) -> list[tuple[Proposal, float]]:
    evolution = Evolution([space], seed)
    found: list[tuple[Proposal, float]] = []
    while len(found) < trials:
        batch = evolution.propose(16)
        if not batch:
            break
        for p in batch:
            found.append((p, space.seconds(p.row)))
            evolution.tell(*found[-1])
    return found


@pytest.mark.parametrize("seed", range(4))
def test_finds_the_best_of_twenty_thousand_with_few_trials(seed: int) -> None:
    space = Valley()
    found = search(space, 400, seed)
    assert min(s for _, s in found) <= 2e-3 * 1.1, min(found, key=lambda f: f[1])


def test_no_point_comes_twice_and_none_without_a_schedule() -> None:
    space = Valley()
    found = search(space, 500, 0)
    rows = [p.row for p, _ in found]
    assert len(set(rows)) == len(rows) >= 500
    assert all(row[3] != 11 for row in rows)


def test_begins_with_the_cheapest_by_cost() -> None:
    space = Valley()
    first = Evolution([space]).propose(8)
    assert all(p.row[:2] == space.best[:2] for p in first)


def test_the_same_seed_gives_the_same_search() -> None:
    assert search(Valley(), 100, 7) == search(Valley(), 100, 7)
    assert search(Valley(), 100, 7) != search(Valley(), 100, 8)


class Small(Valley):
    family = "small"

    def __init__(self) -> None:
        super().__init__((0, 0, 0, 0))
        self.knobs = (Knob("a", (1, 2, 3)), Knob("b", (5,)))

    def points(self) -> Points:
        return np.array([[1, 5], [2, 5], [3, 5]])

    def cost(self, points: Points) -> Costs:
        return np.zeros(len(points))


def test_a_small_space_ends() -> None:
    evolution = Evolution([Small()])
    batch = evolution.propose(16)
    assert {p.row for p in batch} == {(1, 5), (2, 5), (3, 5)}
    for p in batch:
        evolution.tell(p, 1.0)
    assert evolution.propose(16) == []


def test_failures_have_no_children() -> None:
    evolution = Evolution([Valley()])
    for p in evolution.propose(16):
        evolution.tell(p, float("inf"))
    assert evolution.best is None and evolution.winners(3) == []
    assert len(evolution.propose(16)) == 16


def test_several_spaces_are_one_ranking() -> None:
    evolution = Evolution([Valley(), Small()])
    # The small one predicts no time at all.
    assert [p.space for p in evolution.propose(5)] == [1, 1, 1, 0, 0]


def test_stored_decisions_are_found_again() -> None:
    space = Valley()
    evolution = Evolution([Small(), space])
    p = evolution.find("valley", {"k3": 4, "k0": 1, "k1": 2, "k2": 3})
    assert p == Proposal(1, (1, 2, 3, 4))
    assert evolution.find("valley", {"k0": 1}) is None
    assert evolution.find("elsewhere", {}) is None


def test_what_was_told_before_is_not_proposed() -> None:
    space = Valley()
    evolution = Evolution([space])
    known = Evolution([space]).propose(8)
    for p in known:
        evolution.tell(p, space.seconds(p.row))
    assert not set(evolution.propose(32)) & set(known)

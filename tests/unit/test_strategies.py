"""Strategies propose each point once and find the best of a small space, and recorded spaces are searched as others."""

import math
from typing import Any

import pytest

from benchmarks.recorded_spaces import RecordedTask
from benchmarks.strategies import (
    POLICIES,
    STRATEGIES,
    mean_regrets,
    policy_table,
    program_regrets,
    regret_table,
    regrets,
)
from tilewright.search.anneal import Annealing


def recorded(name: str, scale: float) -> dict[str, Any]:
    """A bowl over two knobs whose cost form knows one of them; one point fails, another family has one point."""
    points: list[Any] = []
    for a in range(8):
        for b in range(8):
            seconds = None if (a, b) == (7, 7) else scale * (1 + 0.1 * (abs(a - 5) + abs(b - 2)))
            points.append([[a, b], 1.0 + abs(a - 5), seconds])
    other = {"family": "other", "knobs": ["c"], "points": [[[1], 0.5, 9 * scale]]}
    spaces = [{"family": "bowl", "knobs": ["a", "b"], "points": points}, other]
    return {"name": name, "kind": "bowl", "default_seconds": 2 * scale, "points_in_all": 65, "spaces": spaces}


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_point_is_proposed_once(name: str) -> None:
    task = RecordedTask(recorded("a", 1e-3))
    assert task.size == 65 and task.best_seconds == 1e-3
    strategy = STRATEGIES[name](task.spaces, 0)
    assert strategy.size == 65 and strategy.best is None
    seen: list[Any] = []
    while batch := strategy.propose(7):
        assert len(batch) <= 7
        for p in batch:
            strategy.tell(p, task.seconds(p))
        seen += batch
    assert len(seen) == len(set(seen)) == 65
    assert strategy.best is not None and strategy.best[1] == 1e-3


def test_annealing_goes_downhill() -> None:
    task = RecordedTask(recorded("a", 1e-3))
    found = regrets(task, Annealing, 40, seed=1)
    assert found[-1] < 0.11 and found == sorted(found, reverse=True)
    assert regrets(task, Annealing, 40, seed=1) == found


def test_annealing_survives_candidates_that_fail() -> None:
    task = RecordedTask(recorded("a", 1e-3))
    strategy = Annealing(task.spaces)
    for p in strategy.propose(20):
        strategy.tell(p, math.inf)
    assert strategy.best is None and len(strategy.propose(100)) == 45


def test_tables_of_regrets() -> None:
    tasks = [RecordedTask(recorded("a", 1e-3)), RecordedTask(recorded("b", 1e-4))]
    curves = {n: mean_regrets(tasks, make, 65) for n, make in STRATEGIES.items()}
    assert all(c[-1] == pytest.approx(0) for c in curves.values())
    assert (
        regret_table(curves).splitlines()[0] == "| strategy | 8 trials | 16 trials | 32 trials | 64 trials |"
    )
    for policy in POLICIES.values():
        found = program_regrets(tasks, policy, 0)
        assert len(found) == 130 and found[-1] == pytest.approx(0)
    assert policy_table(tasks).count("\n") == 1 + len(POLICIES)

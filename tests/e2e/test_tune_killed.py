"""`tilewright tune` is killed at any moment, again and again: the database is whole, nothing that was measured is lost
but what was being written, and the next process goes on.
"""

from pathlib import Path

import pytest

from benchmarks.killed_tuning import Kill, KilledTuning, Seen, problems
from examples.models import mlp
from tilewright.cli.status import ExitStatus


def kill_again_and_again(folder: Path, kills: int, latest: float, seed: int) -> list[Kill]:
    killed = KilledTuning(folder, mlp((96, 192, 96)), seed=seed, latest=latest)
    nothing = killed.start("--resume")
    _, messages = nothing.communicate(timeout=120)
    assert nothing.returncode == ExitStatus.USER_ERROR and "there is nothing to resume" in messages
    assert not killed.database.exists()
    found = [killed.kill_one() for _ in range(kills)]
    assert [p for k in found for p in k.problems] == [] and killed.end() == []
    process = killed.start("--resume")
    _, messages = process.communicate(timeout=120)
    assert process.returncode == ExitStatus.USER_ERROR and "the last tuning has ended" in messages
    return found


def test_a_tuning_that_is_killed_goes_on(tmp_path: Path) -> None:
    assert any(k.is_resumed for k in kill_again_and_again(tmp_path, 2, latest=0.5, seed=3))


@pytest.mark.slow
def test_a_tuning_that_is_killed_fifty_times_goes_on(tmp_path: Path) -> None:
    found = kill_again_and_again(tmp_path, 50, latest=2.5, seed=50)
    lost, rows = sum(k.lost for k in found), sum(k.lost_rows for k in found)
    resumed = sum(k.is_resumed for k in found)
    print(f"{found[-1].measured} measurements, {resumed} times resumed")
    print(f"{lost} measurements and {rows} rows that were begun are lost")
    assert resumed > 25 and lost <= 50


def test_what_is_wrong_after_a_kill_is_seen() -> None:
    """The measure itself: each of these would be a bug of the database."""
    before = Seen(10, 10, 10, 4, 10, 10, 10)
    right = Seen(18, 14, 14, 4, 14, 14, 10)  # a run of four was lost
    assert problems(before, right, 1) == []
    assert problems(before, Seen(18, 14, 14, 4, 14, 14, 10, is_whole=False), 1) == ["the database is damaged"]
    assert "rows" in problems(before, Seen(18, 14, 14, 4, 13, 14, 10), 1)[0]
    assert "lost" in problems(before, Seen(24, 14, 14, 4, 14, 14, 10), 1)[0]
    assert "twice" in problems(before, Seen(18, 14, 14, 4, 14, 14, 10, repeated=1), 1)[0]
    assert "account" in problems(before, Seen(18, 14, 14, 4, 14, 14, 15), 1)[0]

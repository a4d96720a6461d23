"""Which is the fastest, on a machine that is never the same twice."""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

import pytest

from tilewright.support.turns import (
    LEAST_ROUNDS,
    MOST_ROUNDS,
    Series,
    brief_turn,
    median_of_rounds,
    quickest,
    speedup,
    take_turns,
    until_clear,
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.support.turns.time.sleep", lambda _: None)


def for_ever() -> bool:
    return False


def compare(turns: Sequence[Callable[[], float]], is_over: Callable[[], bool]) -> list[float]:
    """`quickest` of turns with one run each; an infinite one cannot run."""

    def turn(run: Callable[[], float]) -> list[float]:
        return [s for s in [run()] if s < math.inf]

    return list(quickest({n: partial(turn, t) for n, t in enumerate(turns)}, is_over).values())


class Noisy:
    """Runners whose times drift together and differ by chance on their own."""

    def __init__(self, *seconds: float, noise: float = 0.02, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.noise, self.drift, self.taken = noise, 1.0, [0] * len(seconds)
        self.turns = [self._turn(i, s) for i, s in enumerate(seconds)]

    def _turn(self, i: int, seconds: float) -> Callable[[], float]:
        def turn() -> float:
            self.taken[i] += 1
            self.drift *= math.exp(self.rng.gauss(0, 0.02))
            return seconds * self.drift * math.exp(abs(self.rng.gauss(0, self.noise)))

        return turn


def test_a_small_difference_is_seen_through_noise() -> None:
    """Five in a hundred, where the machine drifts by as much in a few turns: the quicker one wins nearly always."""
    right = 0
    for seed in range(50):
        a, b = compare(Noisy(1.0, 0.95, seed=seed).turns, for_ever)
        right += b < a
    assert right >= 47


def test_who_is_obviously_slower_drops_out_at_once() -> None:
    runners = Noisy(1.0, 2.0, 1.0)
    compare(runners.turns, for_ever)
    assert runners.taken[1] == LEAST_ROUNDS < runners.taken[0]


def test_it_ends_when_they_are_known_to_be_alike() -> None:
    runners = Noisy(1.0, 1.0, noise=0.0)
    runners.rng.gauss = lambda mu=0.0, sigma=1.0: 0.0  # type: ignore[method-assign]
    a, b = compare(runners.turns, for_ever)
    assert a == pytest.approx(b)
    assert runners.taken[0] < MOST_ROUNDS


@pytest.mark.parametrize(("is_over", "rounds"), [(lambda: True, LEAST_ROUNDS), (lambda: False, MOST_ROUNDS)])
def test_it_takes_no_more_than_its_time(is_over: Callable[[], bool], rounds: int) -> None:
    runners = Noisy(1.0, 1.01, noise=0.3)
    compare(runners.turns, is_over)
    assert runners.taken == [rounds, rounds]


def test_who_cannot_run_is_out_and_the_others_go_on() -> None:
    alive = Noisy(1.0, 1.1)
    calls: list[int] = []

    def failing() -> float:
        calls.append(1)
        return math.inf if len(calls) > 1 else 0.1

    a, b, c = compare([alive.turns[0], failing, alive.turns[1]], for_ever)
    assert b == math.inf and a < c < math.inf
    assert len(calls) == 2
    assert compare([lambda: math.inf], for_ever) == [math.inf]
    assert compare([], for_ever) == []


def test_one_alone_is_timed_as_little_as_possible() -> None:
    runners = Noisy(1.0)
    (taken,) = compare(runners.turns, for_ever)
    assert taken == pytest.approx(1.0, rel=0.3)
    assert runners.taken == [LEAST_ROUNDS]


def test_one_that_dropped_out_is_compared_with_what_ran_beside_it() -> None:
    """The machine becomes three times as slow after the second has dropped out: it stays the slower one."""

    def drifting(seconds: float) -> Callable[[], float]:
        rounds = count(1)
        return lambda: seconds * (1.0 if next(rounds) <= LEAST_ROUNDS else 3.0)

    a, b, c = compare([drifting(1.0), drifting(1.5), drifting(1.02)], for_ever)
    assert a < c < b


def test_an_interval_holds_the_median_nearly_as_often_as_it_says() -> None:
    rng = random.Random(5)
    for doubt, least in ((0.05, 0.90), (0.01, 0.96)):
        held = 0
        for _ in range(400):
            found = median_of_rounds([rng.expovariate(1.0) for _ in range(12)], doubt)
            held += found.low <= math.log(2) <= found.high
        assert held >= least * 400


def test_a_comparison_is_of_the_rounds_that_both_had() -> None:
    ours, theirs = Series(((1.0,), (2.0,), (9.0,))), Series(((2.0,), (4.0,)))
    assert speedup(ours, theirs).value == 2.0


def test_turns_alternate_and_who_cannot_run_is_out() -> None:
    order: list[str] = []

    def turn(name: str) -> list[float]:
        order.append(name)
        return [] if name == "b" and len(order) > 3 else [1.0, 3.0]

    found = take_turns({name: partial(turn, name) for name in "abc"}, 3)
    assert "".join(order) == "abc" + "cba" + "ac"
    assert {name: s.round_medians for name, s in found.items()} == {"a": (2.0,) * 3, "c": (2.0,) * 3}


def test_who_does_not_go_on_keeps_its_times() -> None:
    found = take_turns({name: lambda: [1.0] for name in "ab"}, 3, go_on=lambda n, _: "a" if n == 1 else "ab")
    assert [len(found[name].rounds) for name in "ab"] == [3, 1]


def test_the_first_run_of_a_turn_does_not_count() -> None:
    waits = iter([0.02, *[0.0] * 10_000_000])
    assert statistics.median(brief_turn(lambda: _spin(next(waits)))) < 0.01


def test_a_long_run_counts_at_once() -> None:
    runs: list[int] = []

    def run() -> None:
        runs.append(1)
        _spin(0.06)

    assert min(brief_turn(run)) >= 0.06
    assert len(runs) == 1


def _spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def rounds_until_clear(*seconds: float) -> int:
    runners = Noisy(*seconds)
    turns = {n: (lambda t=t: [t()]) for n, t in enumerate(runners.turns)}
    found = take_turns(turns, 200, go_on=until_clear(0, 1, 25))
    assert len(found[0].rounds) == len(found[1].rounds)
    return len(found[0].rounds)


def test_turns_end_when_it_is_clear_who_is_quicker() -> None:
    assert rounds_until_clear(1.0, 0.8) == rounds_until_clear(0.8, 1.0) == 25
    assert rounds_until_clear(1.0, 1.0) == 200

"""The simulation of many nodes: what can be computed by hand comes out of it."""

import pytest

from benchmarks.cluster_simulation import Costs, Mode, simulate

# Two candidates a part; a node of one core builds for 2 s and times for 1 s.
FREE = Costs(2, [1.0], [1.0], 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("mode", Mode)
def test_without_costs_of_the_driver_throughput_grows_with_the_nodes(mode: Mode) -> None:
    for nodes in (1, 7):
        found = simulate(nodes, 1, FREE, mode)
        assert found.trials_a_second == pytest.approx(nodes * 2 / 3)
        assert found.runners == pytest.approx(1 / 3)
    assert simulate(3, 2, FREE, Mode.ALONE).trials_a_second == pytest.approx(3 * 2 / 2)  # builds on two cores


def test_a_batch_waits_for_the_driver() -> None:
    """One node: 2 proposals, 2 chunks and a part sent, 2 rows."""
    costs = Costs(2, [1.0], [1.0], 0.1, 0.2, 0.4, 0.05, 0.02, 0.01)
    found = simulate(1, 1, costs, Mode.AS_IS)
    seconds = 3 + 2 * 0.1 + 2 * 0.2 + 0.4 + 2 * 0.05
    assert found.trials_a_second == pytest.approx(2 / seconds)
    assert found.driver == pytest.approx(
        {"search": 0.2 / seconds, "messages": 0.8 / seconds, "database": 0.1 / seconds}
    )
    batched = simulate(1, 1, costs, Mode.BATCHED)
    assert batched.trials_a_second == pytest.approx(2 / (seconds - 0.1 + 0.02 + 2 * 0.01))


def test_a_driver_with_too_many_nodes_is_the_limit() -> None:
    costs = Costs(2, [1.0], [1.0], 0.0, 0.0, 0.0, 0.01, 0.0, 0.001)
    alone = simulate(1000, 1, costs, Mode.ALONE)
    assert alone.trials_a_second == pytest.approx(100, rel=0.05) and alone.driver["database"] > 0.95
    together = simulate(1000, 1, costs, Mode.AS_IS)
    assert together.trials_a_second == pytest.approx(2000 / (3 + 20))  # nothing else happens meanwhile
    assert simulate(1000, 1, costs, Mode.ALONE_BATCHED).trials_a_second > 6 * alone.trials_a_second


def test_all_nodes_wait_for_the_slowest() -> None:
    costs = Costs(2, [1.0], [1.0, 9.0], 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    together, alone = (simulate(200, 1, costs, m) for m in (Mode.AS_IS, Mode.ALONE))
    assert together.trials_a_second == pytest.approx(200 * 2 / 11)
    assert alone.trials_a_second > 1.3 * together.trials_a_second

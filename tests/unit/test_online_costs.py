"""Costs that learn from what a tuning measures (`learned/online.py`)."""

from collections.abc import Sequence

import numpy as np

from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.learned.online import OnlineModel, OnlineSpace
from tilewright.schedule.schedule import Schedule
from tilewright.search.evolve import Evolution


class Tiles(Space):
    """Rows times vectors. Its costs say that only vectors matter."""

    family = "gemm"
    knobs = (Knob("rows", (1, 2, 4, 8)), Knob("vectors", (1, 2, 4)))

    def points(self) -> Points:
        return np.array([(r, v) for r in self.knobs[0].choices for v in self.knobs[1].choices], np.int64)

    def cost(self, points: Points) -> Costs:
        return np.asarray(1.0 + 0.01 * points[:, 1], np.float64)

    def build(self, decisions: KnobValues) -> Schedule:
        raise AssertionError("nothing is built here")


def seconds(point: Sequence[int]) -> float:
    """Few rows are slow, which costs do not say."""
    return (1.0 + 0.01 * point[1]) * (1.0 + 1.0 / point[0])


def spaces(model: OnlineModel, count: int) -> list[OnlineSpace]:
    return [OnlineSpace(Tiles(), f"kernel{n}", model) for n in range(count)]


def tell(space: OnlineSpace, points: Sequence[tuple[int, int]], scale: float) -> None:
    for p in points:
        space.tell(p, scale * seconds(p))


def test_what_one_kernel_shows_ranks_another() -> None:
    model = OnlineModel()
    first, second, other = spaces(model, 3)
    assert other.ranked()[0][0].tolist() == [1, 1]  # by costs, all rows are the same
    tell(first, [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2)], 1.0)
    tell(second, [(1, 4), (2, 4), (4, 4), (8, 4)], 50.0)  # a larger kernel: only its order matters
    model.learn()
    points, costs = other.ranked()
    assert points[0].tolist() == [8, 1] and (np.diff(costs) >= 0.0).all()
    assert {tuple[int, ...](p) for p in points} == {tuple[int, ...](p) for p in Tiles().points()}
    assert np.array_equal(other.cost(points), costs)


def test_little_is_learned_from_little() -> None:
    model = OnlineModel()
    (space,) = spaces(model, 1)
    tell(space, [(1, 1), (8, 1)], 1.0)
    space.tell((4, 1), float("inf"))  # it failed
    model.learn()
    assert np.array_equal(space.cost(Tiles().points()), Tiles().cost(Tiles().points()))


def test_nothing_new_changes_no_ranking() -> None:
    model = OnlineModel()
    model.learn()
    assert model.version == 0
    (space,) = spaces(model, 1)
    tell(space, [(1, 1)], 1.0)
    model.learn()
    model.learn()
    assert model.version == 1


def test_a_search_that_is_ranked_again_proposes_no_point_twice() -> None:
    model = OnlineModel()
    (space,) = spaces(model, 1)
    search = Evolution([space])
    seen: list[tuple[int, ...]] = []
    for _ in range(4):
        for p in search.propose(3):
            seen.append(p.row)
            search.tell(p, seconds(p.row))
            space.tell(p.row, seconds(p.row))
        model.learn()
        search.rank()
    assert len(seen) == len(set(seen)) == 12

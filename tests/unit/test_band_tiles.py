"""Tiles of chains in bands, and of windows alone, as knobs: any of them gives the right results, and none is taken
untried that was not before.
"""

import numpy as np
import pytest
from native import run_native
from numpy.typing import NDArray
from test_recipes_lanes import depthwise
from test_window_chains import CHAINS, bottleneck, integers

from tilewright.families.bands.cost import best_expansion_tile, projection_tile
from tilewright.families.bands.space import BandsSpace, bands_space
from tilewright.families.bands.tiles import BAND, KNOBS
from tilewright.families.space import Space
from tilewright.families.window.cost import ROWS, UNROLLS, VECTORS
from tilewright.families.window.recipe import LoopOrder
from tilewright.families.window.space import window_space
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr
from tilewright.search.default import make_request, schedule_as
from tilewright.search.evolve import Evolution
from tilewright.target.target import AVX2, AVX512, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.compare import same_func
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.verify import verify_func

SAMPLE = 6


def space_of(func: Func, target: Target = AVX2) -> Space:
    space = bands_space(make_request(func, target, frozenset())) or window_space(
        make_request(func, target, frozenset())
    )
    assert space is not None
    return space


def mean(pixels: int, channels: int) -> Func:
    b = FuncBuilder("mean")
    x = b.param("X", (pixels, channels), DType.F32)

    def element(*at: Expr) -> Expr:
        channel, pixel = at
        return x[pixel, channel]

    return b.finish(b.reduce("M", (channels,), (pixels,), element))


PROGRAMS: dict[str, Func] = {
    **CHAINS,
    "wide bottleneck": bottleneck((1, 8, 12, 40), 64, 3, 1),
    "windows": depthwise(40, 15, 3, 1, last=True),
    "windows, strided": depthwise(24, 17, 5, 2, last=True),
    "windows, channels first": depthwise(3, 34, 3, 1, last=False),
    "mean": mean(64, 72),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_any_point_means_the_same(name: str) -> None:
    """Of what is ranked, and of its children."""
    func = PROGRAMS[name]
    space, arrays = space_of(func), integers(func)
    (want,) = run_func(func, *arrays)
    rng = np.random.default_rng(len(name))
    points, _ = space.ranked()
    for point in (*rng.choice(points, SAMPLE), *children(space, rng)):
        assert space.has_point(point)
        built = space.build(space.decisions(point)).module.funcs[0]
        verify_func(built)
        np.testing.assert_array_equal(run_native(built, arrays, AVX2)[0], want, str(space.decisions(point)))


def children(space: Space, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Points with any values of the knobs that have a cost, as a search makes them."""
    drawn = np.stack([rng.choice(k.choices, 4000) for k in space.knobs], axis=1)
    return list(drawn[np.isfinite(space.cost(drawn))][:SAMPLE])


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_point_can_be_built(name: str) -> None:
    space = space_of(PROGRAMS[name], AVX512 if name == "wide bottleneck" else AVX2)
    points, _ = space.ranked()
    for point in np.random.default_rng(1).choice(points, 3 * SAMPLE):
        verify_func(space.build(space.decisions(point)).module.funcs[0])


@pytest.mark.parametrize("name", ["wide bottleneck", "windows", "separable", "stem"])
def test_there_are_many_points_and_none_twice(name: str) -> None:
    points, _ = space_of(PROGRAMS[name]).ranked()
    assert len(points) >= 100
    assert len(np.unique(points, axis=0)) == len(points)
    assert Evolution([space_of(PROGRAMS[name])]).size == len(points)


# ------------------------------------------------------------------------------------------------------- the default


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("threads", [1, 2])
def test_bands_have_the_best_tiles_of_the_cost_form_by_default(name: str, threads: int) -> None:
    target = AVX2.for_threads(threads)
    space = space_of(CHAINS[name], target)
    assert isinstance(space, BandsSpace)
    form, chosen = space.form, space.decisions(space.ranked()[0][0])
    if form.k:
        tile = best_expansion_tile(form, chosen["channels"], target)
        assert (chosen["expand_rows"], chosen["expand_vectors"]) == tile
    if form.projected:
        best = projection_tile(form, *form.lines(chosen["rows"]), target)
        assert (chosen["project_rows"], chosen["project_vectors"]) == (best.rows, best.vectors)
        assert chosen["columns_outside"] == best.columns_outside
    assert (chosen["expand_outside"], chosen["unroll"], chosen["prefetch"]) == (0, 64, 0)


@pytest.mark.parametrize("name", CHAINS)
def test_no_tiles_cost_less_than_the_usual_ones_of_a_band(name: str) -> None:
    space = space_of(CHAINS[name])
    points, costs = space.ranked()
    usual: dict[tuple[int, ...], float] = {}
    for point, cost in zip(points, costs, strict=True):
        assert cost >= usual.setdefault(tuple(map(int, point[BAND])), cost)


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in CHAINS and "bottleneck" not in n])
@pytest.mark.parametrize("threads", [1, 2])
def test_windows_have_usual_tiles_by_default(name: str, threads: int) -> None:
    space = space_of(PROGRAMS[name], AVX2.for_threads(threads))
    chosen = space.decisions(space.ranked()[0][0])
    assert chosen["rows"] in ROWS and chosen["vectors"] in VECTORS and chosen["unroll"] in UNROLLS
    assert (chosen["order"], chosen["prefetch"]) == (LoopOrder.ROWS_OUTSIDE, 0)


@pytest.mark.parametrize("name", ["bottleneck", "windows"])
def test_knobs_that_are_not_decided_are_as_usual(name: str) -> None:
    """As what was recorded before there were these knobs."""
    space = space_of(PROGRAMS[name])
    chosen = space.decisions(space.ranked()[0][0])
    old = ("rows", "channels") if name == "bottleneck" else ("rows", "vectors", "unroll")
    known, all_of_it = ({n: chosen[n] for n in old}, chosen)
    assert same_func(space.build(known).module.funcs[0], space.build(all_of_it).module.funcs[0])


# ------------------------------------------------------------------------------------------------------ what is not


def changed(space: Space, **values: int) -> NDArray[np.int64]:
    chosen = {**space.decisions(space.ranked()[0][0]), **values}
    return np.array([chosen[k.name] for k in space.knobs], np.int64)


BROKEN: list[tuple[str, dict[str, int]]] = [
    ("bottleneck", {"rows": 3}),
    ("bottleneck", {"channels": 12}),
    ("bottleneck", {"expand_vectors": 2, "channels": 8}),
    ("bottleneck", {"project_vectors": 6}),
    ("bottleneck", {"expand_rows": 8, "expand_vectors": 3}),
    ("bottleneck", {"window_rows": 8, "window_vectors": 8}),
    ("bottleneck", {"unroll": 7}),
    ("separable", {"expand_rows": 1}),
    ("windows", {"rows": 12, "vectors": 8}),
    ("windows", {"rows": 9}),
    ("windows", {"order": 3}),
]


@pytest.mark.parametrize(("name", "values"), BROKEN, ids=str)
def test_what_does_not_fit_is_no_point(name: str, values: dict[str, int]) -> None:
    space = space_of(PROGRAMS[name])
    assert not space.has_point(changed(space, **values))


def test_the_order_of_one_panel_is_no_choice() -> None:
    points, _ = space_of(depthwise(8, 15, 3, 1, last=True)).ranked()
    assert set(points[:, 3]) == {LoopOrder.ROWS_OUTSIDE}


def test_what_tuning_finds_replays() -> None:
    func = PROGRAMS["bottleneck"]
    space = space_of(func)
    points, _ = space.ranked()
    chosen = space.decisions(points[len(points) // 2])
    made = schedule_as(func, AVX2, frozenset(), "bands", chosen)
    assert tuple(chosen) == KNOBS
    assert same_func(made.func, space.build(chosen).module.funcs[0])


def test_costs_do_not_depend_on_other_points() -> None:
    for name in ("bottleneck", "windows"):
        space = space_of(PROGRAMS[name])
        points, costs = space.ranked()
        alone = [float(space.cost(points[n : n + 1])[0]) for n in range(0, len(points), 97)]
        np.testing.assert_allclose(alone, costs[::97])

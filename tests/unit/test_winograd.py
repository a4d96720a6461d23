"""Convolutions by fewer multiplications: what they compute, how they are scheduled, and when they are chosen."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from native import run_native

from tilewright.families.choosing import choosing
from tilewright.families.space import Points, Space
from tilewright.families.winograd.recipe import find_stages
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Scope
from tilewright.ops.core.conv import Conv
from tilewright.ops.opdef import OpAlternative, Sample, TensorType
from tilewright.schedule.validate import check_valid
from tilewright.search.algorithms import algorithm_seconds, choose_algorithms
from tilewright.search.default import schedule_func, spaces
from tilewright.support.arrays import Array
from tilewright.support.sizes import Dim, sym_int
from tilewright.target.target import AVX2
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Alternative, Func, single
from tilewright.tir.interp import run_func
from tilewright.tir.pipeline import lower_func
from tilewright.tir.stmt import PREFETCH, LoopKind, blocks, loops

Sound = Callable[[Func], Func]


def layer(
    shape: Sequence[int], channels: int, kernel: Sequence[int], pad: int = 1, **attributes: Any
) -> Sample:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    w = rng.standard_normal((channels, shape[1], *kernel)).astype(np.float32)
    bias = rng.standard_normal(channels).astype(np.float32)
    pads = [pad if k > 1 else 0 for k in kernel] * 2
    return Conv.sample(x, w, bias, pads=pads, **attributes)


def algorithms(s: Sample) -> Sequence[OpAlternative]:
    return s.op.alternatives([TensorType.of(t) for t in s.inputs])


def func_of(s: Sample, algorithm: OpAlternative | None = None) -> Func:
    b = FuncBuilder("layer")
    types = [TensorType.of(t) for t in s.inputs]
    params = [b.param(n, t.shape, t.dtype) for n, t in zip("xwc", types, strict=True)]
    compute = s.op.compute if algorithm is None else algorithm.compute
    return b.finish(*compute(b, params, "conv"))


def error(got: Array, s: Sample) -> float:
    (want,) = s.op.reference(s.inputs)
    return float(np.abs(got - want).max() / np.abs(want).max())


LAYERS = {
    "whole tiles": layer((1, 16, 8, 8), 16, (3, 3)),
    "tiles beyond the edges, two images": layer((2, 16, 7, 5), 24, (3, 3)),
    "a part of a vector": layer((1, 20, 6, 6), 18, (3, 3)),
    "no padding": layer((1, 16, 8, 6), 16, (3, 3), pad=0),
    "one axis": layer((1, 16, 9), 16, (3,)),
    "along rows only": layer((1, 16, 4, 7), 16, (1, 3)),
    "five taps": layer((1, 16, 6, 4), 16, (5, 5), pad=2),
}


@pytest.mark.parametrize("name", ["whole tiles", "one axis", "along rows only"])
def test_filters_are_stored_as_the_register_tile_reads_them(name: str) -> None:
    """In panels of columns, one row of channels behind the other, whatever axes the tiles have."""
    s = LAYERS[name]
    for a in algorithms(s):
        before, after = (
            next(f for f in func.locals if f.name == "conv_filter")
            for func in (func_of(s, a), schedule_func(func_of(s, a), AVX2, frozenset("wc")).func)
        )
        assert len(after.shape) == len(before.shape) + 1, a.name
        assert after.shape[-2] == s.inputs[1].shape[1], a.name  # channels of the image, which are walked


@pytest.mark.parametrize("name", LAYERS)
def test_all_algorithms_give_the_convolution(name: str, sound: Sound) -> None:
    s = LAYERS[name]
    found = algorithms(s)
    assert found, "none fits"
    for a in found:
        func = sound(func_of(s, a))
        (plain,) = run_func(func, *s.inputs)
        assert error(plain, s) < 5e-6, a.name


@pytest.mark.parametrize("name", LAYERS)
def test_scheduled_and_native_they_still_do(name: str, sound: Sound) -> None:
    s = LAYERS[name]
    for a in algorithms(s)[:3]:
        done = schedule_func(func_of(s, a), AVX2, frozenset("wc"))
        assert done.trace, a.name
        check_valid(sound(done.func))
        (interpreted,) = run_func(done.func, *s.inputs)
        (native,) = run_native(done.func, s.inputs)
        assert error(interpreted, s) < 5e-6 and error(native, s) < 5e-6, a.name


@pytest.mark.parametrize(
    "s",
    [
        layer((1, 16, 8, 8), 16, (3, 3), strides=[2, 2]),
        layer((1, 16, 8, 8), 16, (3, 3), dilations=[2, 2]),
        layer((1, 8, 8, 8), 16, (3, 3)),  # few channels
        layer((1, 16, 8, 8), 16, (1, 1)),
        layer((1, 16, 8, 8), 16, (7, 7), pad=3),  # no points
        layer((1, 16, 2, 2), 16, (3, 3)),  # one tile
    ],
)
def test_other_convolutions_have_none(s: Sample) -> None:
    assert not algorithms(s)


def test_stages_share_the_loop_over_blocks_of_tiles() -> None:
    s = layer((1, 16, 32, 32), 16, (3, 3))
    rows = [a for a in algorithms(s) if "2×8 tiles" in a.name]
    done = schedule_func(func_of(s, rows[0]), AVX2, frozenset("wc")).func
    shared = [n for n in loops(done.body) if n.kind is LoopKind.PARALLEL]
    parallel = [n for n in shared if any(b.is_reduction for b in blocks(n))]
    assert [n.extent for n in parallel] == [4]
    inside = {b.name.split("_p")[0] for b in blocks(parallel[0])}
    assert {"conv_input", "conv_tile", "conv"} <= inside
    tile = next(b for b in done.locals if b.name == "conv_tile")
    assert tile.scope is Scope.REGISTER


def points_where(space: Space, points: Points, **knobs: int) -> Points:
    names = [k.name for k in space.knobs]
    return points[np.all([points[:, names.index(name)] == v for name, v in knobs.items()], axis=0)]


def test_every_kind_of_point_gives_the_convolution() -> None:
    """Of each order of the stages and of the loops, and of the largest and the smallest register tile."""
    s = layer((1, 16, 32, 32), 16, (3, 3))
    (space,) = spaces(func_of(s, blocks_of(s, "2×8")), AVX2, frozenset("wc"))
    points, costs = space.ranked()
    assert (np.diff(costs) >= 0).all() and len(points) == 736
    assert {k.name: k.choices for k in space.knobs}["inside"] == (0, 1)
    for inside, outside, prefetch in [(0, 0, 0), (0, 1, 32), (1, 0, 32), (1, 1, 0)]:
        some = points_where(space, points, inside=inside, columns_outside=outside, prefetch=prefetch)
        sizes = some[:, 0] * some[:, 1]
        for n in {int(sizes.argmin()), int(sizes.argmax())}:
            built = space.build(space.decisions(some[n])).module.funcs[0]
            check_valid(built)
            (native,) = run_native(built, s.inputs)
            assert error(native, s) < 5e-6, space.decisions(some[n])


def test_tiles_in_a_line_are_asked_for_ahead() -> None:
    """Of a channel count that leaves a part of a vector. Where a block has several rows of tiles, none are."""
    s = layer((1, 20, 16, 48), 16, (3, 3))
    (space,) = spaces(func_of(s, blocks_of(s, "1×12")), AVX2, frozenset("wc"))
    points, _ = space.ranked()
    assert not len(points_where(space, points, ahead=2, inside=0)), "tiles are divided among workers"
    built = space.build(space.decisions(points_where(space, points, ahead=2)[0])).module.funcs[0]
    check_valid(built)
    asking = [n for n in loops(built.body) if dict(n.annotations).get(PREFETCH) == 2]
    assert [n.extent for n in asking] == [12]
    (native,) = run_native(built, s.inputs)
    assert error(native, s) < 5e-6
    (other,) = spaces(func_of(s, blocks_of(s, "4×12")), AVX2, frozenset("wc"))
    assert {k.name: k.choices for k in other.knobs}["ahead"] == (0,)


@pytest.mark.parametrize(
    ("shape", "channels"), [((1, 64, 56, 56), 64), ((1, 128, 28, 28), 128), ((1, 512, 7, 7), 512)]
)
def test_there_is_enough_to_tune(shape: tuple[int, ...], channels: int) -> None:
    s = layer(shape, channels, (3, 3))
    for a in algorithms(s):
        (space,) = spaces(func_of(s, a), AVX2, frozenset("wc"))
        assert len(space.ranked()[0]) >= 100, a.name


@pytest.mark.parametrize(("width", "is_asked"), [(256, True), (24, False)])
def test_images_beyond_the_caches_are_asked_for(width: int, is_asked: bool) -> None:
    s = layer((1, 32, width, width), 32, (3, 3))
    a = next(a for a in algorithms(s) if "F(4×4" in a.name)
    (space,) = spaces(func_of(s, a), AVX2, frozenset("wc"))
    assert (space.decisions(space.ranked()[0][0])["ahead"] > 0) == is_asked


def test_the_cost_of_an_algorithm_is_that_of_its_best_point() -> None:
    """But for the blocks beside its stages."""
    s = layer((1, 64, 56, 56), 64, (3, 3))
    func = func_of(s, blocks_of(s, "1×14"))
    (space,) = spaces(func, AVX2, frozenset("wc"))
    _, costs = space.ranked()
    assert 0 <= costs[0] - algorithm_seconds(func, AVX2) < 0.2 * costs[0]


def test_images_of_open_size_are_scheduled_in_every_order() -> None:
    """Rows of tiles are blocks where one has all of them; and no stage goes beyond the tiles in use."""
    height, width = (sym_int(Dim(n, 8, 40, 2)) for n in ("height", "width"))
    shapes = [(1, 16, height, width), (24, 16, 3, 3), (24,)]
    op = layer((1, 16, 40, 40), 24, (3, 3)).op
    types = [TensorType(DType.F32, shape) for shape in shapes]
    found = op.alternatives(types)
    assert any(f"blocks of {n}×all" in a.name for a in found for n in (10, 20)), "none has all rows"
    for a in found:
        b = FuncBuilder("layer")
        params = [b.param(n, t.shape, t.dtype) for n, t in zip("xwc", types, strict=True)]
        func = b.finish(*a.compute(b, params, "conv"))
        (space,) = spaces(func, AVX2, frozenset("wc"))
        points, _ = space.ranked()
        for inside in (0, 1):
            point = points_where(space, points, inside=inside)[0]
            built = space.build(space.decisions(point)).module.funcs[0]
            check_valid(built)
            for phase in lower_func(built)[0]:
                rows = [n for n in loops(phase.func.body) if set(n.var.name.split("_")) & set("grt")]
                assert all(n.limit is not None for n in rows if n.extent > 4), (a.name, rows)


def test_stages_are_found_by_their_structure() -> None:
    s = layer((1, 16, 8, 8), 16, (3, 3))
    func = func_of(s, algorithms(s)[0])
    stages = find_stages(func)
    assert stages is not None
    assert stages == (("conv_filter",), ("conv_input",), "conv_gemm", ("conv_tile",))
    assert [b.name for b in blocks(func.body) if choosing(b)] == ["conv_filter", "conv_input", "conv_tile"]
    assert find_stages(func_of(s)) is None
    assert [s.family for s in spaces(func, AVX2)] == ["winograd"]


def alternatives(s: Sample, errors: float = 1e-6) -> Func:
    """The convolution with all algorithms to choose from."""
    func = func_of(s)

    def make(a: OpAlternative) -> Func:
        return func_of(s, a)

    found = tuple(Alternative(a.name, lambda a=a: make(a), lambda: errors) for a in algorithms(s))
    return replace(func, alternatives=found)


def test_cost_chooses_among_algorithms() -> None:
    s = layer((1, 64, 28, 28), 64, (3, 3))
    (chosen,) = choose_algorithms(single(alternatives(s)), AVX2, lambda e: e < 2e-5)[0].funcs
    assert not chosen.alternatives and find_stages(chosen) is not None
    assert algorithm_seconds(chosen, AVX2) < algorithm_seconds(func_of(s), AVX2)


@pytest.mark.parametrize("bound", [0.0, 1e-7])
def test_an_error_that_is_not_allowed_rules_them_out(bound: float) -> None:
    s = layer((1, 64, 28, 28), 64, (3, 3))
    (chosen,) = choose_algorithms(single(alternatives(s)), AVX2, lambda e: 0 < e + 1e-30 < bound)[0].funcs
    assert not chosen.alternatives and not chosen.algorithm and find_stages(chosen) is None


def blocks_of(s: Sample, size: str) -> OpAlternative:
    return next(a for a in algorithms(s) if f"blocks of {size} tiles" in a.name)


@pytest.mark.parametrize("size", ["2×3×3", "4×3×3"])
def test_blocks_of_several_images(size: str, sound: Sound) -> None:
    s = layer((4, 16, 5, 6), 24, (3, 3))
    done = schedule_func(sound(func_of(s, blocks_of(s, size))), AVX2, frozenset("wc"))
    check_valid(sound(done.func))
    (interpreted,) = run_func(done.func, *s.inputs)
    (native,) = run_native(done.func, s.inputs)
    assert error(interpreted, s) < 5e-6 and error(native, s) < 5e-6
    tile = next(b for b in done.func.locals if b.name == "conv_tile")
    assert tile.scope is Scope.REGISTER, "what follows runs on registers, as within an image"


def tiles_of_a_block(func: Func) -> int:
    product = next(b for b in blocks(func.body) if b.is_reduction)
    return product.store.buffer.shape[-2]


@pytest.mark.parametrize(("batch", "tiles"), [(1, 4), (2, 8), (8, 32)])
def test_images_of_few_tiles_share_the_filters(batch: int, tiles: int) -> None:
    """Filters are far larger than tiles here: each time that they are read is one too many."""
    s = layer((batch, 512, 7, 7), 512, (3, 3))
    f4 = {tiles_of_a_block(func_of(s, a)): func_of(s, a) for a in algorithms(s) if "F(4×4" in a.name}
    assert max(f4) == tiles
    seconds = {n: algorithm_seconds(f, AVX2) for n, f in f4.items()}
    assert min(seconds, key=lambda n: seconds[n]) == tiles


def test_images_of_many_tiles_stay_apart() -> None:
    s = layer((8, 16, 32, 32), 16, (3, 3))
    assert all(tiles_of_a_block(func_of(s, a)) <= 16 * 16 for a in algorithms(s))


def test_a_single_image_has_blocks_within_it_only() -> None:
    found = [a.name for a in algorithms(layer((1, 16, 7, 7), 16, (3, 3)))]
    assert [n.split("blocks of ")[1] for n in found] == ["2×2 tiles", "4×4 tiles"]

"""Layouts by cost: what is chosen is the cheapest by the estimates, which are those of all layouts of a few buffers."""

from itertools import product
from math import inf

import pytest
from test_layouts import Build, conv, module_of, transposed

from tests.onnx_cases import Model
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer
from tilewright.schedule.step import Step
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.search.cut import cheapest
from tilewright.search.join import join_funcs
from tilewright.search.labelling import total
from tilewright.search.layout_choice import Component, LayoutProblem, choose_layouts
from tilewright.search.layout_terms import LayoutTerm, layout_terms
from tilewright.search.layouts import find_images, lay_out
from tilewright.target.target import AVX2
from tilewright.tir.func import Module


def problem_of(module: Module) -> LayoutProblem:
    images = find_images(module)
    return LayoutProblem(tuple(images), layout_terms(module, images, AVX2))


def laid_out(module: Module) -> tuple[Module, tuple[Step, ...], tuple[Component, ...]]:
    """The module with the cheapest layouts, the steps taken, and why."""
    last, why = choose_layouts(module, find_images(module), AVX2)
    return *lay_out(module, last), why


def components(build: Build) -> tuple[Component, ...]:
    return laid_out(module_of(build))[2]


def chosen(build: Build) -> dict[str, tuple[int, ...]]:
    """The shapes of the buffers inside of kernels that have another layout than they were declared with."""
    after, steps, _ = laid_out(module_of(build))
    turned = {s.buffer for s in steps if isinstance(s, TransformLayout)}
    return {b.name: b.shape for f in after.funcs for b in f.locals if b.name in turned}


def depthwise(m: Model, channels: int, size: int, stride: int = 1) -> str:
    return conv(m, m.input(1, channels, size, size), channels, channels, group=channels, strides=[stride] * 2)


def chain(m: Model) -> str:
    x = m.input(1, 16, 24, 24)
    for _ in range(3):
        x = m.op("Relu", conv(m, x, 16, 16))
    return x


SMALL: dict[str, Build] = {
    "one": lambda m: conv(m, m.input(1, 16, 12, 12), 16, 24, strides=[2, 2]),
    "chain": chain,
    "depthwise": lambda m: conv(m, depthwise(m, 16, 14), 16, 16, kernel=1),
    "residual": lambda m: (lambda x: m.op("Add", x, conv(m, x, 16, 16)))(conv(m, m.input(1, 3, 9, 9), 3, 16)),
}


@pytest.mark.parametrize("name", SMALL)
def test_no_layouts_are_cheaper_than_those_chosen(name: str) -> None:
    problem = problem_of(module_of(SMALL[name]))
    assert len(problem.images) <= 12
    found = cheapest(problem.alone, problem.pairs)
    every = [total(x, problem.alone, problem.pairs) for x in product((0, 1), repeat=len(problem.images))]
    assert total(found, problem.alone, problem.pairs) == pytest.approx(min(every), rel=1e-6)


@pytest.mark.parametrize("name", SMALL)
def test_the_reasons_given_are_those_costs(name: str) -> None:
    module = module_of(SMALL[name])
    _, _, found = laid_out(module)
    assert sorted(n for c in found for n in c.buffers) == sorted(b.name for b in find_images(module))
    for c in found:
        assert c.seconds <= c.otherwise
        assert ("channels last," in str(c)) == c.is_last


def test_turning_outweighs_what_a_lone_depthwise_convolution_saves() -> None:
    assert chosen(lambda m: depthwise(m, 32, 56)) == {}
    (component,) = components(lambda m: depthwise(m, 32, 56))
    assert not component.is_last and component.seconds < component.otherwise


def test_strides_of_a_lone_depthwise_convolution_are_sorted_out_in_its_border() -> None:
    """Every second column goes side by side; pixels stay innermost."""
    assert chosen(lambda m: depthwise(m, 16, 9, stride=2)) == {"conv_3__conv0_pad": (1, 16, 11, 2, 6)}


def test_turning_pays_in_a_chain_of_convolutions() -> None:
    """What is given and wanted channels first is turned once on the way in and once on the way out."""

    def build(m: Model) -> str:
        x = conv(m, m.input(1, 64, 28, 28), 64, 64, kernel=1)
        x = conv(m, m.op("Relu", x), 64, 64, group=64)
        return conv(m, m.op("Relu", conv(m, x, 64, 64)), 64, 64)

    module = module_of(build)
    after, _, found = laid_out(module)
    assert {b.shape[-1] for b in after.temps} == {64}
    assert any(c.is_last and c.seconds < c.otherwise for c in found)


def test_channels_that_fill_the_nearest_cache_line_by_line_are_turned_before() -> None:
    """A strided convolution alone: many channels are brought side by side first, few are read where they are."""
    many = chosen(lambda m: conv(m, m.input(1, 128, 56, 56), 128, 128, strides=[2, 2]))
    assert (1, 57, 57, 128) in many.values()
    few = chosen(lambda m: conv(m, m.input(1, 16, 56, 56), 16, 128, strides=[2, 2]))
    assert "conv_3__conv0_pad" not in few


def test_results_that_are_interleaved_have_pixels_in_lanes() -> None:
    (shape,) = chosen(lambda m: transposed(m, m.input(1, 8, 3, 32), 8, 16)).values()
    assert shape == (1, 16, 2, 2, 3, 32)  # the residues of a channel next to each other


def test_pieces_of_an_output_are_made_in_its_layout() -> None:
    """They are read by nobody but a concatenation that the caller wants channels first."""

    def build(m: Model) -> str:
        x = m.op("Relu", conv(m, m.input(1, 3, 16, 16), 3, 16))
        return m.op("Concat", conv(m, x, 16, 16), conv(m, x, 16, 16, kernel=1), axis=1)

    after, _, _ = laid_out(module_of(build))
    assert (1, 32, 16, 16) in {b.shape for b in after.temps}  # both, one behind the other
    assert {c.is_last for c in components(build)} >= {False}


# ------------------------------------------------------------------------------------------------------------ branches


def term(costs: tuple[float, float], *buffers: Buffer) -> LayoutTerm:
    """Of a buffer alone; or of two, which cost this much together and apart."""
    if len(buffers) == 1:
        return LayoutTerm(buffers, ((costs[0], costs[0]), (costs[1], costs[1])))
    return LayoutTerm(buffers, ((costs[0], costs[1]), (costs[1], costs[0])))


def test_branches_together_outweigh_what_each_of_them_would_not() -> None:
    """A trunk that is a little better as it is feeds three branches that are better off with channels last, each by
    less than turning costs. Whoever goes along the graph and decides at each buffer leaves all as they are.
    """
    trunk, *branches = (Buffer(n, (1, 8, 4, 4), DType.F32) for n in ("trunk", "a", "b", "c"))
    terms = [term((0.0, 5e-6), trunk)]
    for b in branches:
        terms += [term((3e-6, 0.0), b), term((0.0, 4e-6), b, trunk)]
    p = LayoutProblem((trunk, *branches), terms)
    greedy: list[int] = []
    for n in range(4):
        near = [t for (u, v), t in p.pairs.items() if v == n]
        costs = [p.alone[n][x] + sum(t[greedy[0]][x] for t in near) for x in (0, 1)]
        greedy.append(int(costs[1] < costs[0]))
    assert greedy == [0, 0, 0, 0]
    assert cheapest(p.alone, p.pairs) == [1, 1, 1, 1]
    (found,) = p.components([1, 1, 1, 1])
    assert found.seconds == pytest.approx(5e-6) and found.otherwise == pytest.approx(9e-6)


def test_what_runs_in_bands_has_channels_in_lanes() -> None:
    def build(m: Model) -> str:
        x = m.op("Relu", conv(m, m.input(1, 16, 56, 56), 16, 96, kernel=1))
        return conv(m, m.op("Relu", conv(m, x, 96, 96, group=96)), 96, 16, kernel=1)

    module, joined = join_funcs(module_of(build), AVX2)
    assert joined
    bands = [c for c in laid_out(module)[2] if c.otherwise == inf]
    assert bands and all(c.is_last for c in bands)
    assert "otherwise it cannot be" in str(bands[0])

"""Regions that do not pay are given back, with the reason."""

from collections.abc import Callable, Iterable, Mapping

import pytest
from graph_cases import f32, layers

from tilewright.graph.border import border_seconds
from tilewright.graph.build import GraphBuilder
from tilewright.graph.external import YES, Answer, Capabilities, No, Order, Plugin, Region, RunRegion, Unit
from tilewright.graph.graph import Node
from tilewright.graph.passes.partition import Offer, offer
from tilewright.graph.passes.prune import FEW, MOST, prune, stated_seconds
from tilewright.ops.core.activation import Relu
from tilewright.ops.core.pointwise import Exp
from tilewright.ops.opdef import TensorType
from tilewright.ops.outside import Outside
from tilewright.support.arrays import Array

Hint = Callable[[Region], float | None]


class MatMuls(Plugin):
    """Takes MatMuls, and says of each how long it takes."""

    name = "matmuls"

    def __init__(self, hint: Hint = lambda region: None, names: tuple[str, ...] = ("MatMul",)) -> None:
        self.hint, self.names = hint, names

    def supports(self, unit: Unit) -> Answer:
        return YES if unit.name in self.names else No("no MatMul")

    def seconds(self, region: Region, threads: int) -> float | None:
        return self.hint(region)

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        raise AssertionError

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
        raise AssertionError


def each(seconds: float) -> Callable[[Iterable[Node]], float]:
    return lambda nodes: seconds * sum(1 for _ in nodes)


def never(nodes: Iterable[Node]) -> float:
    raise AssertionError("there is no need for an estimate")


def reasons(found: Offer) -> set[str]:
    return {r.reason for r in found.refusals if r.reason != "no MatMul"}


def test_a_few_regions_stay_and_nobody_asks_for_an_estimate() -> None:
    for hint in (None, 1.0):
        found = offer(layers(FEW), MatMuls(lambda r, hint=hint: hint))
        assert prune(found, 1, never) is found


def test_a_plugin_that_takes_every_second_node_gets_none_if_they_are_small() -> None:
    found = prune(offer(layers(40), MatMuls()), 1, each(1e-6))
    assert found.regions == ()
    (reason,) = reasons(found)
    assert "its border costs 10 µs" in reason and "native code takes 1 µs" in reason
    assert sum(r.reason == reason for r in found.refusals) == 40


def test_a_plugin_that_takes_every_second_node_gets_those_with_the_most_work() -> None:
    graph = layers(40)
    index = {n: i for i, n in enumerate(graph.nodes)}
    found = prune(offer(graph, MatMuls()), 1, lambda nodes: sum(1e-3 * (1 + index[n]) for n in nodes))
    assert [index[r.graph.nodes[0]] for r in found.regions] == list(range(80 - 2 * MOST, 80, 2))
    (reason,) = reasons(found)
    assert f"of 40 regions that it would get, the {MOST} with the most work are enough" in reason


def test_more_are_borne_of_a_plugin_that_says_it_is_much_quicker() -> None:
    assert len(prune(offer(layers(40), MatMuls(lambda r: 1e-4)), 1, each(1e-3)).regions) == 40
    assert len(prune(offer(layers(40), MatMuls(lambda r: 8e-4)), 1, each(1e-3)).regions) == MOST


@pytest.mark.parametrize(("stated", "kept"), [(0.98e-3, 1), (0.995e-3, 0), (2e-3, 0)])
def test_a_plugin_loses_what_native_code_is_quicker_with(stated: float, kept: int) -> None:
    """Its border counts: ten microseconds and what crosses it."""
    found = prune(offer(layers(6), MatMuls(lambda r: stated)), 1, each(1e-3))
    assert len(found.regions) == 6 * kept
    assert len(reasons(found)) == 1 - kept
    assert all("native code takes 1e+03 µs, the plugin" in r for r in reasons(found))


def test_where_placements_are_measured_hints_do_not_count() -> None:
    found = offer(layers(6), MatMuls(lambda r: 1.0))
    assert len(prune(found, 1, each(1e-3), by_hints=False).regions) == 6


def test_what_native_code_does_not_know_stays() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(4, 8))
    for _ in range(2 * MOST):
        x = b.apply(Outside("Strange", (x.type,), (x.type,)), b.apply(Relu(), x))
    found = offer(b.finish(x), MatMuls(lambda r: 1.0, ("Outside",)))
    assert len(prune(found, 1, never).regions) == 2 * MOST


@pytest.mark.parametrize("hint", [float("nan"), -1.0, float("inf"), None])
def test_hints_that_make_no_sense_are_none(hint: float | None) -> None:
    plugin = MatMuls(lambda r: hint)
    assert stated_seconds(plugin, offer(layers(1), plugin).regions[0], 1) is None


def test_a_plugin_that_fails_to_say_has_not_said() -> None:
    plugin = MatMuls(lambda r: 1 // 0)
    assert stated_seconds(plugin, offer(layers(1), plugin).regions[0], 1) is None


def test_a_plugin_without_threads_is_asked_about_one() -> None:
    class Lonely(MatMuls):
        capabilities = Capabilities(threads=False)

        def seconds(self, region: Region, threads: int) -> float | None:
            return float(threads)

    (region,) = offer(layers(1), Lonely()).regions
    assert stated_seconds(Lonely(), region, 4) == 1.0
    assert stated_seconds(MatMuls(lambda r: 4.0), region, 4) == 4.0


def test_a_border_that_converts_costs_more() -> None:
    class Turned(MatMuls):
        order = Order.CHANNELS_LAST

    b = GraphBuilder()
    x = b.input("x", TensorType(f32().dtype, (1, 64, 128, 128)))
    graph = b.finish(b.apply(Exp(), b.apply(Relu(), x)))
    (plain,) = offer(graph, MatMuls(names=("Relu",))).regions
    (turned,) = offer(graph, Turned(names=("Relu",))).regions
    assert border_seconds(turned) > 2 * border_seconds(plain) > 2e-5

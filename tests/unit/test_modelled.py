"""Placement by estimates: nothing runs."""

from collections.abc import Callable, Iterable, Mapping

from graph_cases import f32, layers

from tilewright.graph.build import GraphBuilder
from tilewright.graph.external import YES, Answer, No, Part, Pattern, Plugin, Region, RunRegion, Unit
from tilewright.graph.graph import Graph, Node
from tilewright.graph.passes.partition import offer
from tilewright.graph.passes.prune import MOST
from tilewright.ops.core.pointwise import Exp
from tilewright.ops.outside import Outside
from tilewright.placement.measured import MEASURED_PIECES, MeasuredChoice, choose
from tilewright.placement.modelled import Modelled
from tilewright.support.arrays import Array

OURS = 1e-3  # seconds that native code takes for each node


class Hinting(Plugin):
    """Takes some operators, and says how long it takes for each node; None: it does not say."""

    name = "hinting"

    def __init__(self, each: Callable[[Node], float | None], *names: str, name: str = "hinting") -> None:
        self.each, self.names = each, names
        self.name = name  # type: ignore[misc]

    def supports(self, unit: Unit) -> Answer:
        return YES if unit.name in self.names else No("not for me")

    def seconds(self, region: Region, threads: int) -> float | None:
        stated = [self.each(n) for n in region.graph.nodes]
        return None if None in stated else sum(t for t in stated if t is not None)

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        raise AssertionError("nothing is compiled to decide")

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
        raise AssertionError


def native(nodes: Iterable[Node]) -> float:
    return OURS * sum(1 for _ in nodes)


def unknown(part: Graph, plugin: str) -> float | None:
    return None


def decided(
    graph: Graph, *plugins: Plugin, known: Callable[[Graph, str], float | None] = unknown
) -> tuple[MeasuredChoice, Modelled]:
    offers = [offer(graph, p) for p in plugins]
    lab = Modelled(graph, offers, 1, native, known)
    claims = {o.plugin.name: [u for r in o.regions for u in r.units] for o in offers}
    return choose(graph, claims, lab), lab


def nodes_of(graph: Graph, found: MeasuredChoice, plugin: str = "hinting") -> list[int]:
    assert found.assignment is not None
    return [i for i, n in enumerate(graph.nodes) if found.assignment.get(n) == plugin]


def test_a_plugin_that_says_it_is_quicker_gets_all() -> None:
    graph = layers(6)
    found, _ = decided(graph, Hinting(lambda n: 0.1 * OURS, "MatMul", "Relu"))
    assert found.name == "hinting"


def test_a_plugin_that_says_it_is_slower_gets_nothing() -> None:
    found, lab = decided(layers(6), Hinting(lambda n: 2 * OURS, "MatMul", "Relu"))
    assert found.name == "native" and found.assignment == {}
    assert "by estimate, others are quicker" in lab.why_not("hinting")


def test_each_gets_what_it_is_quicker_with() -> None:
    graph = layers(12)
    at = {n: i for i, n in enumerate(graph.nodes)}
    found, _ = decided(graph, Hinting(lambda n: OURS * (0.1 if at[n] >= 10 else 3.0), "MatMul", "Relu"))
    assert found.name == "mixed"
    assert nodes_of(graph, found) == list(range(10, 24))


def test_one_part_that_pays_is_found_among_others_that_do_not() -> None:
    """Pieces are much finer than those that are measured."""
    graph = layers(50)
    at = {n: i for i, n in enumerate(graph.nodes)}
    found, _ = decided(graph, Hinting(lambda n: OURS * (0.1 if at[n] in (40, 41) else 1.5), "MatMul", "Relu"))
    assert nodes_of(graph, found) == [40, 41]


def test_two_plugins_share_a_model() -> None:
    graph = layers(12)
    at = {n: i for i, n in enumerate(graph.nodes)}
    left = Hinting(lambda n: OURS * (0.1 if at[n] < 8 else 2.0), "MatMul", "Relu", name="left")
    right = Hinting(lambda n: OURS * (0.1 if at[n] >= 16 else 2.0), "MatMul", "Relu", name="right")
    found, _ = decided(graph, left, right)
    assert nodes_of(graph, found, "left") == list(range(8))
    assert nodes_of(graph, found, "right") == list(range(16, 24))


def test_a_plugin_with_a_little_everywhere_gets_few() -> None:
    """It is quicker with every second node, by more than a border costs."""
    graph = layers(40)
    found, lab = decided(graph, Hinting(lambda n: 0.55 * OURS, "MatMul"))
    assert found.assignment is not None
    assert 0 < len(lab.regions(graph, found.assignment)) <= MOST


def test_what_is_taken_together_is_not_cut() -> None:
    graph = layers(12)
    at = {n: i for i, n in enumerate(graph.nodes)}

    class Fused(Hinting):
        def patterns(self) -> tuple[Pattern, ...]:
            return (Pattern("dense", Part("Relu", (Part("MatMul"),))),)

    found, _ = decided(graph, Fused(lambda n: OURS * (0.1 if at[n] in (8, 9, 11) else 2.0)))
    assert nodes_of(graph, found) == [8, 9]


def test_a_plugin_that_does_not_say_gets_nothing_and_that_is_the_reason() -> None:
    found, lab = decided(layers(6), Hinting(lambda n: None, "MatMul", "Relu"))
    assert found.name == "native"
    assert lab.why_not("hinting") == "it does not say how long it takes, and was not measured"


def test_one_that_does_not_say_does_not_spoil_it_for_others() -> None:
    graph = layers(25)
    at = {n: i for i, n in enumerate(graph.nodes)}
    silent = Hinting(lambda n: None, "MatMul", "Relu", name="silent")
    other = Hinting(lambda n: OURS * (0.1 if at[n] == 40 else 2.0), "MatMul", "Relu")
    found, _ = decided(graph, silent, other)
    assert nodes_of(graph, found) == [40]


def test_what_was_measured_before_counts() -> None:
    """A plugin that does not say how long it takes was measured: quick with the second half."""
    graph = layers(24)
    late = set(graph.nodes[24:])

    def known(part: Graph, plugin: str) -> float | None:
        ours = 1e-3 * len(part.nodes)
        return ours * (0.5 if late.issuperset(part.nodes) else 2.0) if plugin else ours

    found, lab = decided(graph, Hinting(lambda n: None, "MatMul", "Relu"), known=known)
    assert lab.pieces == MEASURED_PIECES
    assert found.name == "mixed"
    mine = nodes_of(graph, found)
    assert mine and min(mine) >= 24 and len(mine) >= 20


def strange(hint: float | None) -> tuple[Graph, Plugin]:
    """In the middle there is an operator that native code does not know."""
    b = GraphBuilder()
    x = b.input("x", f32(4, 8))
    for i in range(10):
        x = b.apply(Exp(), x)
        if i == 5:
            x = b.apply(Outside("Strange", (x.type,), (x.type,)), x)
    return b.finish(x), Hinting(lambda n: hint, "Outside", "Exp")


def test_what_only_a_plugin_knows_it_gets_whatever_it_costs() -> None:
    for hint in (None, 100 * OURS):
        graph, plugin = strange(hint)
        found, _ = decided(graph, plugin)
        assert found.name == "mixed"
        assert nodes_of(graph, found) == [6]


def test_what_nobody_takes_is_left_to_fail() -> None:
    graph, _ = strange(None)
    found, _ = decided(graph, Hinting(lambda n: 0.5 * OURS, "Exp"))
    assert found.assignment is None

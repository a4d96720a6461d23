"""Placement by measurement: pieces of a model, who gets which, and that the whole decides in the end."""

from collections.abc import Callable, Sequence

import pytest
from graph_cases import f32, floats

from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph, Node
from tilewright.graph.segments import segments, subgraph, work
from tilewright.graph.surroundings import Surroundings
from tilewright.graph.verify import verify_graph
from tilewright.lab import digest
from tilewright.measured import Assignment, choose
from tilewright.ops.activation import Relu
from tilewright.ops.arithmetic import Add
from tilewright.ops.contraction import MatMul
from tilewright.ops.pointwise import Exp


def layers(n: int, width: int = 8) -> Graph:
    """Products and activations in turns, with a shortcut over each pair."""
    b = GraphBuilder()
    x = b.input("x", f32(4, width))
    for i in range(n):
        h = b.apply(MatMul(), x, b.constant(f"w{i}", floats(width, width)))
        x = b.apply(Add(), b.apply(Relu() if i < n // 2 else Exp(), h), x)
    return b.finish(x)


class Pretended:
    """A lab that adds up what nodes are said to take; `whole` is what is really so."""

    def __init__(self, seconds: Callable[[Node, str], float], whole: float = 1.0) -> None:
        self._seconds, self._whole = seconds, whole
        self.compared: list[Assignment] = []

    def seconds(self, part: Graph, plugin: str) -> float | None:
        return sum(self._seconds(n, plugin) for n in part.nodes)

    def compare(self, graph: Graph, choices: Sequence[Assignment]) -> list[float]:
        self.compared = list(choices)
        return [
            sum(self._seconds(n, c.get(n, "")) for n in graph.nodes)
            * (self._whole if len(set(c.values())) > 0 else 1.0)
            for c in choices
        ]


def by_activation(node: Node, plugin: str) -> float:
    """The plugin is quick at exponentials, and we are at the rest."""
    is_exp = isinstance(node.op, Exp)
    return 1e-3 * (1.0 if is_exp == (plugin == "theirs") else 1.3)


def test_pieces_are_in_order_and_have_about_the_same_work() -> None:
    graph = layers(16)
    pieces = segments(graph, 4)
    assert [n for p in pieces for n in p] == list(graph.nodes)
    assert len(pieces) == 4
    loads = [sum(map(work, p)) for p in pieces]
    assert max(loads) <= 1.5 * min(loads)
    around = Surroundings(graph)
    for p in pieces:
        verify_graph(subgraph(around, "piece", p))


def test_little_goes_across_a_cut() -> None:
    """Where many values are alive, there is no cut."""
    b = GraphBuilder()
    x = b.input("x", f32(4, 8))
    heads = [b.apply(MatMul(), x, b.constant(f"w{i}", floats(8, 8))) for i in range(8)]
    total = heads[0]
    for h in heads[1:]:
        total = b.apply(Add(), total, h)
    graph = b.finish(b.apply(Relu(), b.apply(Exp(), total)))
    for p in segments(graph, 20)[1:]:
        assert len(subgraph(Surroundings(graph), "piece", p).inputs) <= 3


def test_each_gets_what_it_is_quickest_at() -> None:
    graph = layers(12)
    lab = Pretended(lambda n, p: 1e-3 * (0.7 if (graph.nodes.index(n) >= 18) == (p == "theirs") else 1.0))
    found = choose(graph, ["theirs"], lab)
    assert found.chosen == "mixed"
    assert found.seconds["mixed"] < min(found.seconds["native"], found.seconds["theirs"])
    assert {graph.nodes.index(n) for n in found.assignment} == set(range(18, 36))


def test_changing_hands_all_the_time_does_not_pay() -> None:
    """Every second node is quicker elsewhere, by less than it takes to get there."""
    graph = layers(12)
    lab = Pretended(lambda n, p: 1e-6 * (0.7 if (graph.nodes.index(n) % 2 == 0) == (p == "theirs") else 1.0))
    assert "mixed" not in choose(graph, ["theirs"], lab).seconds


def test_the_whole_has_the_last_word() -> None:
    """Parts promise more than the whole keeps: native code stays."""
    lab = Pretended(by_activation, whole=1.5)
    found = choose(layers(12), ["theirs"], lab)
    assert found.chosen == "native" and found.assignment == {}
    assert len(lab.compared) >= 2


def test_native_code_stays_where_a_plugin_is_hardly_faster() -> None:
    found = choose(layers(4), ["theirs"], Pretended(lambda n, p: 0.995e-3 if p else 1e-3))
    assert found.chosen == "native"


def test_a_plugin_that_takes_nothing_is_not_compared() -> None:
    class Nothing(Pretended):
        def seconds(self, part: Graph, plugin: str) -> float | None:
            return None if plugin else 1e-3

    found = choose(layers(4), ["theirs"], Nothing(by_activation))
    assert list(found.seconds) == ["native"]


@pytest.mark.parametrize("change", ["names", "weights", "ops", "shape"])
def test_a_part_is_known_by_what_it_computes(change: str) -> None:
    before = digest(layers(2))
    b = GraphBuilder()
    x = b.input("other" if change == "names" else "x", f32(4, 16 if change == "shape" else 8))
    for i in range(2):
        width = x.shape[1]
        h = b.apply(MatMul(), x, b.constant(f"w{i}", floats(width, width)))
        x = b.apply(Add(), b.apply(Relu() if i == 0 and change != "ops" else Exp(), h), x)
    assert (digest(b.finish(x)) == before) == (change in ("names", "weights"))

"""What a plugin is asked about, and the regions that come of its answers."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from graph_cases import f32, feeds_of, floats

from tilewright.graph.build import GraphBuilder
from tilewright.graph.external import YES, Answer, No, Order, Part, Pattern, Plugin, Region, RunRegion, Unit
from tilewright.graph.graph import Graph, Node
from tilewright.graph.interp import interpret_graph
from tilewright.graph.passes.externalise import externalise, first_order, last_order, outside_regions
from tilewright.graph.passes.partition import Offer, offer
from tilewright.graph.verify import verify_graph
from tilewright.ops.core.activation import Relu
from tilewright.ops.core.arithmetic import Add, Mul
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.pointwise import Exp, Neg, Sqrt
from tilewright.ops.outside import Outside
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError


class Picky(Plugin):
    """Takes the operators that it is given."""

    name = "picky"

    def __init__(self, *names: str, patterns: tuple[Pattern, ...] = (), least: int = 0) -> None:
        self.names, self._patterns, self.least = names, patterns, least

    def patterns(self) -> tuple[Pattern, ...]:
        return self._patterns

    def supports(self, unit: Unit) -> Answer:
        return YES if unit.name in self.names else No(f"{unit.name} is not for me")

    def accepts(self, region: Region) -> Answer:
        return YES if len(region.graph.nodes) >= self.least else No("too small")

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        return b""

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
        raise AssertionError


def shown(found: Offer) -> list[str]:
    return [" ".join(type(n.op).__name__ for n in r.graph.nodes) for r in found.regions]


def chain(*ops: type[Exp] | type[Neg] | type[Relu] | type[Sqrt]) -> Graph:
    b = GraphBuilder()
    value = b.input("x", f32(2, 3))
    for op in ops:
        value = b.apply(op(), value)
    return b.finish(value)


def test_neighbours_become_one_region_and_refusals_have_reasons() -> None:
    found = offer(chain(Exp, Neg, Relu, Neg, Exp), Picky("Exp", "Neg"))
    assert shown(found) == ["Exp Neg", "Neg Exp"]
    assert [(r.unit.name, r.reason) for r in found.refusals] == [("Relu", "Relu is not for me")]


def test_a_region_has_its_constants_by_name_and_the_values_that_cross_its_border() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(2, 3))
    h = b.apply(MatMul(), x, b.constant("w", floats(3, 4)), name="h")
    y = b.apply(Relu(), b.apply(Add(), h, b.constant("b", floats(4))), name="y")
    graph = b.finish(b.apply(Mul(), y, h), y)
    (region,) = offer(graph, Picky("MatMul", "Add", "Relu")).regions
    assert [v.name for v in region.graph.inputs] == ["x"]
    assert [v.name for v in region.graph.outputs] == ["h", "y"]
    assert list(region.constants) == ["w", "b"]
    verify_graph(region.graph)


def test_regions_do_not_wait_for_each_other() -> None:
    """Both sides of a diamond with a custom op on one: taking both ends would close a circle."""
    b = GraphBuilder()
    x = b.input("x", f32(4))
    first = b.apply(Exp(), x)
    other = b.apply(Sqrt(), first)  # refused
    graph = b.finish(b.apply(Add(), first, other))
    assert shown(offer(graph, Picky("Exp", "Add"))) == ["Exp", "Add"]


def test_regions_do_not_wait_for_each_other_through_another_region() -> None:
    b = GraphBuilder()
    x, z = b.input("x", f32(4)), b.input("z", f32(4))
    a1, b1 = b.apply(Exp(), x), b.apply(Exp(), z)
    gap_a, gap_b = b.apply(Sqrt(), a1), b.apply(Sqrt(), b1)
    a2, b2 = b.apply(Add(), b1, gap_a), b.apply(Add(), a1, gap_b)
    graph = b.finish(b.apply(Mul(), a2, b2))
    found = offer(graph, Picky("Exp", "Add", "Mul"))
    after = externalise(graph, found.regions)  # fails if they wait for each other
    assert {n for r in found.regions for n in r.graph.nodes} == {
        n for n in graph.nodes if not isinstance(n.op, Sqrt)
    }
    verify_graph(after)


def test_a_plugin_of_every_second_op_yields_small_regions_that_it_may_refuse() -> None:
    graph = chain(Exp, Neg, Exp, Neg, Exp, Neg)
    assert len(offer(graph, Picky("Exp")).regions) == 3
    found = offer(graph, Picky("Exp", least=2))
    assert found.regions == ()
    assert [r.reason for r in found.refusals].count("too small") == 3


def test_patterns_come_first_and_in_order() -> None:
    asked: list[str] = []

    def note(answer: Answer) -> Callable[[Unit], Answer]:
        def check(unit: Unit) -> Answer:
            asked.append(unit.name)
            return answer

        return check

    b = GraphBuilder()
    x = b.input("x", f32(2, 3))
    h = b.apply(Add(), b.constant("b", floats(4)), b.apply(MatMul(), x, b.constant("w", floats(3, 4))))
    graph = b.finish(b.apply(Relu(), h))
    sum_of = Part("Add", (Part("MatMul"), None))  # the product is the second operand here
    patterns = (
        Pattern("dense relu", Part("Relu", (sum_of,)), note(No("not today"))),
        Pattern("dense", sum_of, note(YES)),
        Pattern("product", Part("MatMul"), note(YES)),
    )
    found = offer(graph, Picky("Relu", patterns=patterns))
    assert asked == ["dense relu", "dense"]
    (region,) = found.regions
    assert [u.name for u in region.units] == ["dense", "Relu"]
    assert [(r.unit.name, r.reason) for r in found.refusals] == [("dense relu", "not today")]


def test_what_is_needed_outside_is_no_match() -> None:
    b = GraphBuilder()
    h = b.apply(MatMul(), b.input("x", f32(2, 3)), b.constant("w", floats(3, 4)))
    graph = b.finish(b.apply(Relu(), h), h)
    found = offer(graph, Picky(patterns=(Pattern("p", Part("Relu", (Part("MatMul"),))),)))
    assert found.regions == () and {r.unit.name for r in found.refusals} == {"MatMul", "Relu"}


def test_a_plugin_that_fails_to_answer_has_refused() -> None:
    class Broken(Picky):
        def supports(self, unit: Unit) -> Answer:
            raise RuntimeError("no idea")

    found = offer(chain(Exp), Broken())
    assert [r.reason for r in found.refusals] == ["the plugin failed to answer (RuntimeError: no idea)"]


def test_a_region_becomes_one_node_that_waits_for_its_inputs() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(4))
    early = b.apply(Exp(), x)
    late = b.apply(Sqrt(), x)
    graph = b.finish(b.apply(Add(), early, late), b.apply(Neg(), early))
    found = offer(graph, Picky("Exp", "Add"))
    after = externalise(graph, found.regions)
    verify_graph(after)
    assert [n.name if isinstance(n.op, Outside) else type(n.op).__name__ for n in after.nodes] == [
        "Sqrt",
        "picky:0",
        "Neg",
    ]
    with pytest.raises(UserError, match="none runs it"):
        outside_regions(after, ())
    (region,) = outside_regions(after, {"picky:0"})
    assert region.key == "picky:0" and [v.name for v in region.inputs] == ["x", late.name]


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_channels_go_last_and_come_back(rank: int) -> None:
    array = floats(*range(2, 2 + rank))
    assert np.array_equal(array.transpose(last_order(rank)).transpose(first_order(rank)), array)
    assert last_order(rank)[-1] == 1


def test_a_plugin_that_wants_channels_last_gets_them() -> None:
    b = GraphBuilder()
    graph = b.finish(b.apply(Neg(), b.apply(Exp(), b.input("x", f32(2, 3, 4, 5)))))

    class Last(Picky):
        order = Order.CHANNELS_LAST

    after = externalise(graph, offer(graph, Last("Exp")).regions)
    verify_graph(after)
    (node,) = [n for n in after.nodes if isinstance(n.op, Outside)]
    assert node.inputs[0].shape == node.outputs[0].shape == (2, 4, 5, 3)

    def run(n: Node) -> Node:
        return replace(n, op=Exp()) if isinstance(n.op, Outside) else n

    same = replace(after, nodes=tuple(map(run, after.nodes)))
    feeds = feeds_of(graph)
    for want, got in zip(
        interpret_graph(graph, feeds).values(), interpret_graph(same, feeds).values(), strict=True
    ):
        assert np.array_equal(want, got)


def test_nobody_else_knows_what_an_outside_node_means() -> None:
    op = Outside("npu:0", (f32(2),), (f32(3),))
    assert op.infer([f32(2)]) == (f32(3),)
    with pytest.raises(UserError, match="npu:0 takes"):
        op.infer([f32(4)])
    with pytest.raises(UserError, match="none has taken it"):
        op.reference([])

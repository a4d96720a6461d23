"""Estimates of native code: sane, complete, and divided among the nodes of the model."""

from itertools import pairwise

import pytest
from graph_cases import WINDOW, f32, floats

from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph
from tilewright.ops.core.activation import Relu
from tilewright.ops.core.arithmetic import Add
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.conv import Conv
from tilewright.ops.core.pointwise import Exp
from tilewright.ops.outside import Outside
from tilewright.placement.estimate import Estimated, node_seconds
from tilewright.target.names import resolve_target
from tilewright.target.target import Target

TARGET = resolve_target("x86-64-v3")


def native_seconds(graph: Graph, target: Target, threads: int) -> float:
    return sum(node_seconds(graph, target, threads).values())


def dense(*widths: int, rows: int = 64) -> Graph:
    b = GraphBuilder()
    x = b.input("x", f32(rows, widths[0]))
    for i, (k, n) in enumerate(pairwise(widths)):
        x = b.apply(Relu(), b.apply(MatMul(), x, b.constant(f"w{i}", floats(k, n))))
    return b.finish(x)


def test_a_product_takes_about_as_long_as_its_multiplications() -> None:
    """Between a third of the peak of a core and all of it."""
    seconds = native_seconds(dense(512, 512, rows=256), TARGET, 1)
    peak = 8 * 2 * 3.3e9  # multiplications a second
    least = 256 * 512 * 512 / peak
    assert least < seconds < 3 * least


def test_twice_the_work_takes_about_twice_as_long() -> None:
    one, two = (native_seconds(dense(512, 512, rows=n), TARGET, 1) for n in (128, 256))
    assert 1.7 < two / one < 2.3


def test_a_team_is_quicker() -> None:
    graph = dense(512, 512, rows=256)
    assert native_seconds(graph, TARGET, 2) < 0.6 * native_seconds(graph, TARGET, 1)


def test_parts_add_up() -> None:
    graph = dense(64, 256, 64, 512)
    estimated = Estimated(graph, TARGET, 1)
    assert estimated(graph.nodes[:2]) + estimated(graph.nodes[2:]) == pytest.approx(estimated(graph.nodes))
    assert estimated(graph.nodes) == pytest.approx(native_seconds(graph, TARGET, 1))


def test_the_time_is_with_the_nodes_that_take_it() -> None:
    graph = dense(256, 1024, 16)
    found = node_seconds(graph, TARGET, 1)
    big, _, small, _ = (found[n] for n in graph.nodes)
    assert big > 10 * small


def test_nodes_that_passes_put_together_share_the_time() -> None:
    """Three MatMuls of one input are one: each has a third of it."""
    b = GraphBuilder()
    x = b.input("x", f32(64, 256))
    made = [b.apply(MatMul(), x, b.constant(f"w{i}", floats(256, 256))) for i in range(3)]
    graph = b.finish(b.apply(Add(), b.apply(Add(), b.apply(Exp(), made[0]), made[1]), made[2]))
    found = node_seconds(graph, TARGET, 1)
    matmuls = [found[n] for n in graph.nodes if isinstance(n.op, MatMul)]
    assert len(matmuls) == 3
    assert max(matmuls) < 1.5 * min(matmuls)
    assert sum(matmuls) > 0.8 * sum(found.values())


def test_convolutions_have_an_estimate() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(1, 32, 28, 28))
    graph = b.finish(b.apply(Relu(), b.apply(Conv(WINDOW), x, b.constant("w", floats(32, 32, 3, 3)))))
    least = 32 * 32 * 9 * 28 * 28 / (8 * 2 * 3.3e9)
    assert 0.2 * least < native_seconds(graph, TARGET, 1) < 4 * least  # it may take fewer multiplications


def test_what_native_code_does_not_know_takes_no_time() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(64, 256))
    y = b.apply(Outside("Strange", (x.type,), (x.type,)), b.apply(Exp(), x))
    graph = b.finish(b.apply(MatMul(), y, b.constant("w", floats(256, 256))))
    found = node_seconds(graph, TARGET, 1)
    exp, strange, matmul = graph.nodes
    assert found.get(strange, 0.0) == 0.0
    assert 0 < found[exp] < found[matmul]

"""Contractions that share an input become one; those who read a part find it as if it had never been joined."""

from collections.abc import Callable

import numpy as np
import pytest
from graph_cases import check_lowered, check_pass, f32, floats, groups, names

from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph, Value
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.passes.join_contractions import join_contractions
from tilewright.ops.core.activation import Relu, Swish
from tilewright.ops.core.arithmetic import Add, Mul
from tilewright.ops.core.contraction import Gemm, MatMul
from tilewright.ops.core.movement import Reshape, Transpose
from tilewright.ops.core.softmax import Softmax


def joined(graph: Graph) -> Graph:
    return eliminate_dead(check_pass(graph, join_contractions))


def layer(b: GraphBuilder, x: Value, name: str, columns: int = 4, bias: bool = True) -> Value:
    h = b.apply(MatMul(), x, b.constant(f"w.{name}", floats(x.shape[-1], columns)))
    return b.apply(Add(), b.constant(f"b.{name}", floats(columns)), h) if bias else h


def read(b: GraphBuilder, *values: Value) -> Graph:
    """A graph in which each value is read by a reduction."""
    return b.finish(*(b.apply(Softmax((len(v.shape) - 1,)), v) for v in values))


def attention(heads: bool = True) -> Graph:
    b = GraphBuilder()
    x = b.input("x", f32(1, 6, 8))
    q, k, v = (layer(b, x, n, 8) for n in "qkv")
    if heads:
        q, k, v = (b.apply(Reshape((1, 6, 2, 4)), t) for t in (q, k, v))
        q, v = (b.apply(Transpose((0, 2, 1, 3)), t) for t in (q, v))
        k = b.apply(Transpose((0, 2, 3, 1)), k)
    else:
        k = b.apply(Transpose((0, 2, 1)), k)
    scores = b.apply(MatMul(), q, k)
    return b.finish(b.apply(MatMul(), b.apply(Softmax((len(scores.shape) - 1,)), scores), v))


def test_queries_keys_and_values_are_one_contraction() -> None:
    after = joined(attention())
    assert names(after)[:4] == ["MatMul", "Add", "Reshape", "Transpose"]
    assert names(after).count("MatMul") == 3
    assert after.nodes[3].outputs[0].shape == (3, 1, 2, 6, 4)


def test_the_joint_contraction_stores_parts_and_heads_apart_and_all_are_read_in_place() -> None:
    after = joined(attention())
    assert groups(after)[0] == "MatMul Add Reshape Transpose"
    # What is left of the branches are views, which belong to those who read them.
    assert all("MatMul" in g or "Softmax" in g for g in groups(after))
    check_lowered(after)


def test_without_heads_the_parts_are_matrices() -> None:
    after = joined(attention(heads=False))
    assert after.nodes[3].outputs[0].shape == (3, 1, 6, 8)
    check_lowered(after)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [(), (5,), (1, 5), (1,)])
def test_dense_layers_are_joined(transposed: bool, bias: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x = b.input("x", f32(2, 3))
    outs: list[Value] = []
    for n in "pq":
        w = b.constant(f"w.{n}", floats(*((5, 3) if transposed else (3, 5))))
        c = [b.constant(f"b.{n}", floats(*bias))] if bias else []
        outs.append(b.apply(Gemm(trans_b=transposed), x, w, *c))
    after = joined(read(b, *outs))
    assert names(after).count("Gemm") == 1
    check_lowered(after)


def test_equal_activations_and_their_constants_are_joined() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(2, 3))
    outs = [
        b.apply(Mul(), b.apply(Swish(), layer(b, x, n)), b.constant(f"s.{n}", np.array(i, np.float32)))
        for i, n in enumerate("pq", 2)
    ]
    after = joined(read(b, *outs))
    assert names(after)[:4] == ["MatMul", "Add", "Swish", "Mul"]
    check_lowered(after)


def unlike_activations() -> Graph:
    """One branch is the gate of the other: each runs on its own register tile."""
    b = GraphBuilder()
    x = b.input("x", f32(2, 3))
    gate, value = b.apply(Swish(), layer(b, x, "g")), layer(b, x, "v")
    return read(b, b.apply(Mul(), gate, value))


def another_activation() -> Graph:
    b = GraphBuilder()
    x = b.input("x", f32(2, 3))
    return read(b, b.apply(Swish(), layer(b, x, "p")), b.apply(Relu(), layer(b, x, "q")))


def other_widths() -> Graph:
    b = GraphBuilder()
    x = b.input("x", f32(2, 3))
    return read(b, layer(b, x, "p", 4), layer(b, x, "q", 5))


def other_inputs() -> Graph:
    b = GraphBuilder()
    return read(b, layer(b, b.input("x", f32(2, 3)), "p"), layer(b, b.input("y", f32(2, 3)), "q"))


def weights_that_are_inputs() -> Graph:
    b = GraphBuilder()
    x = b.input("x", f32(2, 3))
    return read(b, *(b.apply(MatMul(), x, b.input(n, f32(3, 4))) for n in "pq"))


def results_of_the_graph() -> Graph:
    b = GraphBuilder()
    x = b.input("x", f32(2, 3))
    return b.finish(layer(b, x, "p"), layer(b, x, "q"))


def a_residual() -> Graph:
    b = GraphBuilder()
    x, y = b.input("x", f32(2, 3)), b.input("y", f32(2, 4))
    return read(b, b.apply(Add(), layer(b, x, "p"), y), layer(b, x, "q"))


STAYING = [
    unlike_activations,
    another_activation,
    other_widths,
    other_inputs,
    weights_that_are_inputs,
    results_of_the_graph,
    a_residual,
]


@pytest.mark.parametrize("make", STAYING, ids=lambda m: m.__name__)
def test_contractions_that_would_lose_by_it_stay(make: Callable[[], Graph]) -> None:
    graph = make()
    assert join_contractions(graph) is graph

"""Chains: a node and what follows it, as plugins over libraries see them."""

import pytest
from graph_cases import f32, floats

from tilewright.graph.build import GraphBuilder
from tilewright.graph.external import YES, Unit
from tilewright.graph.graph import Graph, Value
from tilewright.graph.surroundings import Surroundings
from tilewright.ops.core.activation import Gelu, Relu, Sigmoid, Swish
from tilewright.ops.core.arithmetic import Add, Mul, Sub
from tilewright.ops.core.contraction import MatMul
from tilewright.plugins.onednn.chains import chain_patterns, read_chain
from tilewright.support.errors import UserError


def gemm(b: GraphBuilder) -> Value:
    return b.apply(MatMul(), b.input("x", f32(4, 8)), b.constant("w", floats(8, 16)))


def whole(graph: Graph) -> Unit:
    around = Surroundings(graph)
    return Unit("chain", graph, graph.nodes, around.inputs(graph.nodes), around.outputs(graph.nodes))


def test_sums_products_and_functions_are_links_in_order() -> None:
    b = GraphBuilder()
    bias, gate = b.constant("bias", floats(16)), b.input("gate", f32(4, 16))
    y = b.apply(Relu(), b.apply(Mul(), gate, b.apply(Add(), gemm(b), bias)))
    chain = read_chain(whole(b.finish(y)))
    assert isinstance(chain.head.op, MatMul)
    assert [(link.op, link.other) for link in chain.links] == [(Add(), bias), (Mul(), gate), (Relu(), None)]


def test_an_activation_in_pieces_is_one_link() -> None:
    b = GraphBuilder()
    h = gemm(b)
    chain = read_chain(whole(b.finish(b.apply(Mul(), h, b.apply(Sigmoid(), h)))))
    assert [link.op for link in chain.links] == [Swish()]


def test_a_node_alone_is_a_chain_without_links() -> None:
    b = GraphBuilder()
    assert read_chain(whole(b.finish(gemm(b)))).links == ()


@pytest.mark.parametrize("op", [Add(), Sub()])
def test_what_is_no_chain(op: Add | Sub) -> None:
    """A sum with itself has no other operand, and in a difference the order counts."""
    b = GraphBuilder()
    h = gemm(b)
    other = h if isinstance(op, Add) else b.input("o", f32(4, 16))
    with pytest.raises(UserError, match=f"{type(op).__name__} does not continue"):
        read_chain(whole(b.finish(b.apply(op, h, other))))


def test_longer_chains_are_asked_for_first() -> None:
    patterns = chain_patterns(("MatMul", "Gemm"), ("Relu", *Gelu.onnx), lambda unit: YES)
    operands = [p.name.count("operand") for p in patterns]
    assert operands == sorted(operands, reverse=True)
    assert patterns[-1].root.operators == ("Relu", "Gelu")  # and the head by itself is none of them

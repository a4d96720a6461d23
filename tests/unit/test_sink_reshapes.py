"""Reshapes after contractions move behind the elementwise nodes that can then run on the register tile."""

import numpy as np
from graph_cases import check_lowered, check_pass, f32, floats, groups

from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.passes.simplify import simplify
from tilewright.graph.passes.sink_reshapes import sink_reshapes
from tilewright.ops.core.activation import Gelu, Relu
from tilewright.ops.core.arithmetic import Add, Mul
from tilewright.ops.core.contraction import Gemm
from tilewright.ops.core.movement import Reshape
from tilewright.ops.core.norm import LayerNormalization


def sunk(graph: Graph) -> Graph:
    return eliminate_dead(simplify(check_pass(graph, sink_reshapes)))


def test_a_flattened_layer_takes_its_activation_and_residual() -> None:
    b = GraphBuilder()
    x, residual = b.input("x", f32(6, 4)), b.input("r", f32(1, 6, 4))
    w, c = b.constant("w", floats(4, 4)), b.constant("c", floats(4))
    flat = b.apply(Gelu(), b.apply(Reshape((1, 6, 4)), b.apply(Gemm(), x, w, c)))
    total = b.apply(Add(), residual, b.apply(Mul(), flat, b.constant("s", np.array([[[2]]], np.float32))))
    graph = b.finish(b.apply(LayerNormalization(2), total, b.constant("g", floats(4))), total)
    after = sunk(graph)
    assert groups(after)[0] == "Gemm Gelu Mul Reshape Add Reshape"
    check_lowered(after)


def test_a_residual_between_two_flattened_layers_is_not_reshaped_at_all() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(6, 4))
    w = [b.constant(f"w{i}", floats(4, 4)) for i in range(2)]
    first = b.apply(Relu(), b.apply(Reshape((2, 3, 4)), b.apply(Gemm(), x, w[0])))
    second = b.apply(Reshape((2, 3, 4)), b.apply(Gemm(), b.apply(Reshape((6, 4)), first), w[1]))
    after = sunk(b.finish(b.apply(Add(), second, first)))
    assert groups(after)[0] == "Gemm Relu"
    assert groups(after)[-1] == "Gemm Add Reshape"
    check_lowered(after)


def test_operands_that_broadcast_along_whole_axes_follow() -> None:
    b = GraphBuilder()
    g = b.apply(Gemm(), b.input("x", f32(6, 4)), b.constant("w", floats(4, 8)))
    r = b.apply(Reshape((2, 3, 2, 4)), g)
    for name, shape in (("rows", (2, 3, 1, 1)), ("columns", (2, 4))):
        r = b.apply(Add(), r, b.constant(name, floats(*shape)))
    after = sunk(b.finish(r))
    assert groups(after) == ["Gemm Add Add Reshape"]
    assert {v.shape for v in after.constants} >= {(6, 1), (1, 8)}


def test_an_operand_that_broadcasts_along_part_of_an_axis_keeps_the_reshape() -> None:
    b = GraphBuilder()
    g = b.apply(Gemm(), b.input("x", f32(6, 4)), b.constant("w", floats(4, 8)))
    r = b.apply(Reshape((6, 2, 4)), g)
    graph = b.finish(b.apply(Add(), r, b.constant("c", floats(2, 1))))
    assert sink_reshapes(graph) is graph


def test_a_reshape_that_is_not_of_a_contraction_stays() -> None:
    b = GraphBuilder()
    graph = b.finish(b.apply(Relu(), b.apply(Reshape((8,)), b.input("x", f32(2, 4)))))
    assert sink_reshapes(graph) is graph


def test_a_value_that_broadcasts_up_stays() -> None:
    b = GraphBuilder()
    g = b.apply(Gemm(), b.input("x", f32(1, 4)), b.constant("w", floats(4, 4)))
    graph = b.finish(b.apply(Add(), b.apply(Reshape((4,)), g), b.input("y", f32(3, 4))))
    assert sink_reshapes(graph) is graph


def test_a_product_of_one_element_as_a_scalar_keeps_its_other_operands() -> None:
    b = GraphBuilder()
    g = b.apply(Gemm(), b.input("x", f32(1, 4)), b.constant("w", floats(4, 1)))
    s = b.apply(Reshape(()), g)
    after = sunk(b.finish(b.apply(Add(), b.apply(Mul(), s, b.input("y", f32())), s)))
    check_lowered(after)

"""Graphs: building, printing, verifying and interpreting them."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.graph.build import GraphBuilder
from tilewright.graph.external import make_external_region
from tilewright.graph.graph import Graph, Node, Value, producers, users
from tilewright.graph.interp import interpret_graph
from tilewright.graph.printer import print_graph
from tilewright.graph.verify import verify_graph
from tilewright.ir.dtype import DType
from tilewright.ops.core.activation import Relu
from tilewright.ops.core.arithmetic import Add
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.movement import Transpose
from tilewright.ops.core.pieces import Split
from tilewright.ops.core.softmax import Softmax
from tilewright.ops.opdef import TensorType
from tilewright.support.errors import InternalError, UserError

F32 = DType.F32


def small() -> Graph:
    b = GraphBuilder("small")
    x = b.input("x", TensorType(F32, (2, 3)))
    w = b.constant("layer.0/w", np.arange(12, dtype=np.float32).reshape(3, 4))
    h = b.apply(MatMul(), x, w, name="h")
    s = b.apply(Add(), h, b.constant("odd name", np.array(2, np.float32)), name="s")
    return b.finish(b.apply(Softmax((1,)), s, name="y"))


def test_prints_as_equations() -> None:
    assert (
        print_graph(small())
        == """\
graph small(x: f32[2, 3]):
    constant layer.0/w: f32[3, 4]
    constant 'odd name': f32[] = 2.0
    h: f32[2, 4] = MatMul(x, layer.0/w)
    s: f32[2, 4] = Add(h, 'odd name')
    y: f32[2, 4] = Softmax[axes=(1,), log=False](s)
    return y
"""
    )


def test_prints_an_output_under_the_name_the_user_knows() -> None:
    graph = small()
    renamed = replace(graph, outputs=graph.inputs, output_names=("probabilities",))
    assert print_graph(renamed).endswith("    return probabilities=x\n")


def test_interprets_through_the_references() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    h = x @ np.arange(12).reshape(3, 4) + 2.0
    e = np.exp(h - h.max(1, keepdims=True))
    np.testing.assert_allclose(
        interpret_graph(small(), {"x": x})["y"], e / e.sum(1, keepdims=True), rtol=1e-5
    )


def test_interpreting_keeps_values_that_are_used_again() -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType(F32, (2,)))
    r = b.apply(Relu(), x)
    out = b.apply(Add(), r, r)
    graph = b.finish(out, r, x, names=("sum", "relu", "input"))
    feed = np.array([-1, 2], np.float32)
    got = interpret_graph(graph, {"x": feed})
    assert {k: v.tolist() for k, v in got.items()} == {"sum": [0, 4], "relu": [0, 2], "input": [-1, 2]}


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "no value for the input x: f32[2, 3]"),
        ({"x": np.zeros((2, 4), np.float32)}, "input x: f32[2, 3] was given f32[2, 4]"),
        ({"x": np.zeros((2, 3), np.float32), "z": np.zeros(1)}, "no input is named 'z'"),
    ],
)
def test_feeds_that_do_not_fit_are_refused(feeds: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UserError) as e:
        interpret_graph(small(), feeds)
    assert e.value.message == message


def test_builder_makes_names_unique() -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType(F32, (2,)))
    names = [b.apply(Relu(), x, name="relu").name for _ in range(3)] + [b.constant("x", np.zeros(1)).name]
    assert names == ["relu", "relu.1", "relu.2", "x.1"]


def test_builder_keeps_scalars_scalar_and_constants_contiguous() -> None:
    b = GraphBuilder()
    assert b.constant("s", np.array(1.0)).shape == ()
    t = b.constant("t", np.zeros((2, 3)).T)
    assert b.finish(t).constants[t].flags.c_contiguous


def test_builder_names_all_outputs() -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType(F32, (4,)))
    assert [v.name for v in b.add(Split(0, (1, 3)), (x,), "split", ["left"]).outputs] == ["left", "split_1"]
    with pytest.raises(UserError, match="Relu has 1 outputs here, not 2"):
        b.add(Relu(), (x,), "r", ["a", "b"])


def test_producers_and_users() -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType(F32, (2,)))
    y = b.apply(Add(), x, x)
    graph = b.finish(y)
    (node,) = graph.nodes
    assert producers(graph) == {y: node}
    assert users(graph) == {x: [node], y: []}


# ----------------------------------------------------------------------------------------------- the verifier


def test_verifier_accepts_a_good_graph() -> None:
    verify_graph(small())


def test_verifier_finds_a_use_before_the_definition() -> None:
    graph = small()
    with pytest.raises(InternalError, match="input 'h' is used before it is defined"):
        verify_graph(replace(graph, nodes=tuple(reversed(graph.nodes[:2]))))


def test_verifier_finds_a_value_defined_twice() -> None:
    graph = small()
    with pytest.raises(InternalError, match="value 'h' is defined twice"):
        verify_graph(replace(graph, nodes=(graph.nodes[0], *graph.nodes)))


def test_verifier_finds_two_values_of_one_name() -> None:
    graph = small()
    with pytest.raises(InternalError, match="value 'x' is defined twice"):
        verify_graph(replace(graph, inputs=(*graph.inputs, Value("x", TensorType(F32, (1,))))))


def test_verifier_finds_a_wrong_type() -> None:
    graph = small()
    x = graph.inputs[0]
    wrong = Node(Relu(), (x,), (Value("r", TensorType(F32, (9,))),), "r")
    with pytest.raises(InternalError, match=r"the op infers f32\[2, 3\]"):
        verify_graph(replace(graph, nodes=(wrong,)))


def test_verifier_finds_inputs_that_do_not_fit_the_op() -> None:
    graph = small()
    wrong = Node(Transpose((0,)), graph.inputs, (Value("t", TensorType(F32, (2,))),), "t")
    with pytest.raises(InternalError, match="not a permutation"):
        verify_graph(replace(graph, nodes=(wrong,)))


def test_verifier_finds_a_constant_of_another_type() -> None:
    graph = small()
    constants = {v: a.astype(np.float64) for v, a in graph.constants.items()}
    with pytest.raises(InternalError, match=r"holds f64\[3, 4\]"):
        verify_graph(replace(graph, constants=constants))


def test_verifier_finds_an_undefined_output() -> None:
    with pytest.raises(InternalError, match="output 'y' is not defined"):
        verify_graph(replace(small(), nodes=()))


def test_region_knows_what_crosses_its_border() -> None:
    graph = small()
    matmul, add, _ = graph.nodes
    region = make_external_region(graph, "npu", (add, matmul))
    assert region.nodes == (matmul, add)
    assert [v.name for v in region.inputs] == ["x", "layer.0/w", "odd name"]
    assert [v.name for v in region.outputs] == ["s"]

"""Parts of an imported model as ONNX again."""

import numpy as np
import onnx
import pytest
from graph_cases import f32, floats
from onnx import TensorProto, helper, numpy_helper

from tests.toy_plugin import Numpy
from tilewright.frontend.onnx.export import region_model, to_model
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.build import GraphBuilder
from tilewright.graph.external import YES, Answer, No, Unit
from tilewright.graph.graph import Graph
from tilewright.graph.interp import interpret_graph
from tilewright.graph.passes.partition import offer
from tilewright.ops.core.pointwise import Exp
from tilewright.support.errors import UserError


def model(
    nodes: list[onnx.NodeProto], shapes: dict[str, tuple[int, ...]], opset: int = 18
) -> onnx.ModelProto:
    outputs = [o for n in nodes for o in n.output if not any(o in m.input for m in nodes)]
    weights = {n: floats(*s) for n, s in shapes.items() if n[0] == "w"}
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
            for n, s in shapes.items()
            if n not in weights
        ],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets)


def check_same(graph: Graph, again: Graph) -> None:
    feeds = {v.name: floats(*v.shape) for v in graph.inputs}
    for want, got in zip(
        interpret_graph(graph, feeds).values(), interpret_graph(again, feeds).values(), strict=True
    ):
        np.testing.assert_array_equal(want, got)


def test_a_graph_is_written_as_it_was_read() -> None:
    shape = numpy_helper.from_array(np.array([2, -1]), "shape")
    nodes = [
        helper.make_node("Constant", [], ["s"], value=shape),
        helper.make_node("Reshape", ["x", "s"], ["r"]),
        helper.make_node("Identity", ["r"], ["same"]),
        helper.make_node("Gemm", ["same", "w"], ["g"], transB=1, alpha=0.5),
        helper.make_node("Clip", ["g", "", "top"], ["y"]),
        helper.make_node("Constant", [], ["top"], value_float=0.5),
    ]
    graph = load_graph(model([nodes[-1], *nodes[:-1]], {"x": (3, 4), "w": (5, 6)}))
    written = to_model(graph)
    onnx.checker.check_model(written)  # pyright: ignore[reportUnknownMemberType]
    assert [n.op_type for n in written.graph.node] == ["Reshape", "Gemm", "Clip"]
    check_same(graph, load_graph(written))


def test_a_node_that_was_written_as_several_is_whole_again() -> None:
    nodes = [
        helper.make_node("QuickGelu", ["x"], ["h"], domain="com.microsoft", alpha=1.5),
        helper.make_node("Mish", ["h"], ["y"]),
    ]
    graph = load_graph(model(nodes, {"x": (3, 4)}))
    assert len(graph.nodes) > 2
    written = to_model(graph)
    assert [n.op_type for n in written.graph.node] == ["QuickGelu", "Mish"]
    assert [i.name for i in written.graph.initializer] == []
    check_same(graph, load_graph(written))


@pytest.mark.parametrize("takes_whole", [True, False])
def test_a_region_is_written_in_the_nodes_that_the_plugin_took(takes_whole: bool) -> None:
    class Picky(Numpy):
        def supports(self, unit: Unit) -> Answer:
            return No("not as a whole") if unit.name.endswith("QuickGelu") and not takes_whole else YES

    nodes = [helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft", alpha=1.5)]
    graph = load_graph(model(nodes, {"x": (3, 4)}))
    (region,) = offer(graph, Picky()).regions
    written = region_model(region)
    names = [n.op_type for n in written.graph.node]
    assert names == ["QuickGelu"] if takes_whole else ("QuickGelu" not in names and "Sigmoid" in names)
    check_same(graph, load_graph(written))


def test_weights_may_stay_outside() -> None:
    graph = load_graph(
        model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (2, 300), "w": (300, 400)})
    )
    written = to_model(graph, weights=False)
    (w,) = written.graph.initializer
    assert len(written.SerializeToString()) < 1000
    assert list(w.dims) == [300, 400] and w.external_data[0].value == "w"


def test_a_node_without_origin_cannot_be_written() -> None:
    b = GraphBuilder()
    graph = b.finish(b.apply(Exp(), b.input("x", f32(2))))
    with pytest.raises(UserError, match="not as it was imported"):
        to_model(graph)

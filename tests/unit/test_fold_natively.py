"""Constants that save more than their bytes cost are computed when a model is compiled, by native code."""

from collections.abc import Mapping

import numpy as np
from graph_cases import check_pass, f32, floats, names

from tilewright.compiler import compile_graph
from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph
from tilewright.graph.interp import interpret_graph
from tilewright.graph.passes.fold_natively import fold_natively
from tilewright.ops.core.arithmetic import Add
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.movement import Expand, Transpose
from tilewright.ops.core.pieces import Split
from tilewright.ops.core.pointwise import Exp, Neg
from tilewright.ops.core.pool import MaxPool
from tilewright.ops.core.reduce import ReduceSum
from tilewright.ops.core.window import Window
from tilewright.support.arrays import Array
from tilewright.target.target import native

N = 512  # a MatMul of this size is over the budget of `fold_constants`


class Folding:
    """The pass, and which nodes it has had computed."""

    def __init__(self) -> None:
        self.computed: list[list[str]] = []

    def __call__(self, graph: Graph) -> Graph:
        return fold_natively(graph, self._run)

    def _run(self, part: Graph, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        self.computed.append(names(part))
        return {name: np.asarray(a, order="C") for name, a in interpret_graph(part, feeds).items()}


def test_a_product_of_constants_is_computed_and_what_follows_reads_its_result() -> None:
    b = GraphBuilder()
    product = b.apply(MatMul(), b.constant("a", floats(N, N)), b.constant("w", floats(N, N)))
    turned = b.apply(Transpose((1, 0)), product, name="turned")
    graph = b.finish(b.apply(MatMul(), b.input("x", f32(2, N)), turned))
    folding = Folding()
    after = check_pass(graph, folding)
    assert names(after) == ["MatMul"]
    assert [v.name for v in after.constants] == ["turned"]
    assert folding.computed == [["MatMul", "Transpose"]]


def test_a_broadcast_of_such_a_product_is_left_to_run_time() -> None:
    b = GraphBuilder()
    product = b.apply(MatMul(), b.constant("a", floats(N, N)), b.constant("w", floats(N, N)), name="product")
    wide = b.apply(Expand((8, N, N)), product)
    after = check_pass(b.finish(b.apply(Add(), b.input("x", f32(8, N, 1)), wide)), Folding())
    assert names(after) == ["Expand", "Add"]
    assert [v.name for v in after.constants] == ["product"]


def test_what_only_grows_is_left_to_run_time() -> None:
    b = GraphBuilder()
    wide = b.apply(Neg(), b.apply(Expand((1 << 10, 1 << 12)), b.constant("c", floats(1, 1 << 12))))
    graph = b.finish(b.apply(Add(), b.input("x", f32(1)), wide))
    folding = Folding()
    assert names(folding(graph)) == ["Expand", "Neg", "Add"]
    assert not folding.computed


def test_what_grows_on_the_way_to_a_small_result_is_computed() -> None:
    b = GraphBuilder()
    wide = b.apply(Exp(), b.apply(Expand((1 << 9, 1 << 12)), b.constant("c", floats(1, 1 << 12))))
    total = b.apply(ReduceSum((0, 1), keep=False), wide)
    after = check_pass(b.finish(b.apply(Add(), b.input("x", f32(3)), total)), Folding())
    assert names(after) == ["Add"]


def test_a_short_model_that_asks_for_minutes_of_work_is_left_alone() -> None:
    b = GraphBuilder()
    wide = Window((99999, 99999), (1, 1), (1, 1), (99998, 99998), (0, 0))
    graph = b.finish(b.apply(MaxPool(wide), b.constant("c", floats(1, 9, 2, 2))), b.input("x", f32(1)))
    assert names(Folding()(graph)) == ["MaxPool"]


def test_pieces_that_are_needed_at_run_time_are_constants_and_the_others_are_not() -> None:
    b = GraphBuilder()
    product = b.apply(MatMul(), b.constant("a", floats(N, N)), b.constant("w", floats(N, N)))
    first, second = b.add(Split(0, (N // 2, N // 2)), [product]).outputs
    total = b.apply(ReduceSum((0, 1), keep=False), second, name="total")
    graph = b.finish(b.apply(Add(), b.input("x", f32(1, N)), first), b.apply(Add(), total, total))
    after = check_pass(graph, Folding())
    assert names(after) == ["Add"]
    assert sorted(v.shape for v in after.constants) == [(), (N // 2, N)]


def test_weights_that_others_read_stay() -> None:
    b = GraphBuilder()
    w = b.constant("w", floats(N, N))
    product = b.apply(MatMul(), b.constant("a", floats(N, N)), w, name="product")
    graph = b.finish(b.apply(Add(), b.apply(MatMul(), b.input("x", f32(N, N)), w), product))
    assert sorted(v.name for v in check_pass(graph, Folding()).constants) == ["product", "w"]


def test_a_compiled_program_has_the_result_and_not_the_work() -> None:
    b = GraphBuilder()
    a, w = floats(N, N), floats(N, N)
    product = b.apply(Exp(), b.apply(MatMul(), b.constant("a", a), b.constant("w", w / N)))
    graph = b.finish(b.apply(Add(), b.input("x", f32(1, N)), product))
    (kept,) = compile_graph(native(), graph).artifact.constants
    np.testing.assert_allclose(kept.view(np.float32), np.exp(a @ (w / N)), rtol=1e-5)

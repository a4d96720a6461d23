"""Boundaries between kernels by estimated time: what merges, what does not, and that programs keep their meaning."""

import numpy as np
import pytest
from graph_cases import check_module, f32, floats
from hypothesis import given, settings
from native import BEST
from test_group import graphs

from tilewright.driver.decisions import Kernel
from tilewright.driver.passes import PassContext, ProgramState, run_passes
from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph, Value
from tilewright.graph.passes.boundaries import search_boundaries
from tilewright.graph.passes.group import FusionGroup, Grouped
from tilewright.graph.passes.lower import lower_groups
from tilewright.ops.core.arithmetic import Add, Div, Mul, Pow, Sub
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.movement import Transpose
from tilewright.ops.core.norm import LayerNormalization
from tilewright.ops.core.pointwise import Exp, Log, Reciprocal, Sqrt
from tilewright.ops.core.reduce import ReduceMax, ReduceMean, ReduceSum
from tilewright.ops.core.softmax import Softmax
from tilewright.ops.opdef import Op


def one_each(part: FusionGroup) -> float:
    """An estimate by which every merge pays."""
    return 1.0


def texts(groups: Grouped) -> list[str]:
    return [" ".join(type(n.op).__name__ for n in g.nodes) for g in groups if isinstance(g, FusionGroup)]


def compiled(graph: Graph) -> ProgramState:
    return run_passes(ProgramState(graph), PassContext(BEST, lambda error: True))


def norm_in_pieces(b: GraphBuilder, x: Value, how: str = "quotient", centred: bool = True) -> Value:
    """The norm of rows, without weights."""
    d = b.apply(Sub(), x, b.apply(ReduceMean((1,)), x)) if centred else x
    variance = b.apply(ReduceMean((1,)), b.apply(Pow(2.0), d))
    total = b.apply(Add(), variance, b.constant("epsilon", np.array(1e-3, np.float32)))
    match how:
        case "quotient":
            return b.apply(Div(), d, b.apply(Sqrt(), total))
        case "reciprocal":
            return b.apply(Mul(), d, b.apply(Reciprocal(), b.apply(Sqrt(), total)))
        case _:
            return b.apply(Mul(), b.apply(Pow(-0.5), total), d)


def decided(graph: Graph) -> list[tuple[str, tuple[tuple[str, int], ...]]]:
    """The family and the knobs of each kernel."""
    kernels = compiled(graph).trace.sections["kernels"]
    return [(k.family, k.knobs) for k in kernels if isinstance(k, Kernel)]


# --------------------------------------------------------------------------------------------------- by an estimate


def chain() -> Graph:
    b = GraphBuilder()
    x = b.input("x", f32(4, 8))
    return b.finish(b.apply(Log(), b.apply(ReduceMax((1,), keep=True), b.apply(Softmax((1,)), x))))


def test_a_merge_that_costs_no_more_is_taken() -> None:
    assert texts(search_boundaries(chain(), (), one_each)) == ["Softmax ReduceMax Log"]


def test_a_merge_that_costs_more_is_not() -> None:
    rules = ["Softmax", "ReduceMax Log"]
    assert texts(search_boundaries(chain(), (), lambda part: float(len(part.nodes) ** 2))) == rules


def test_a_group_of_which_nothing_is_known_stays_as_it_is() -> None:
    assert texts(search_boundaries(chain(), (), lambda part: None)) == ["Softmax", "ReduceMax Log"]


def test_a_view_between_two_groups_goes_with_them() -> None:
    b = GraphBuilder()
    t = b.apply(Transpose((1, 0)), b.apply(Softmax((1,)), b.input("x", f32(4, 8))))
    graph = b.finish(b.apply(Softmax((1,)), t))
    (only,) = search_boundaries(graph, (), one_each)
    assert isinstance(only, FusionGroup)
    assert [v.name for v in only.outputs] == [graph.outputs[0].name] and len(only.own) == 3


def test_contractions_are_left_alone() -> None:
    b = GraphBuilder()
    x, w = b.input("x", f32(4, 4)), b.constant("w", floats(4, 4))
    graph = b.finish(b.apply(Softmax((1,)), b.apply(MatMul(), b.apply(Softmax((1,)), x), w)))
    assert texts(search_boundaries(graph, (), one_each)) == ["Softmax", "MatMul", "Softmax"]


def test_equal_layers_are_estimated_once() -> None:
    b = GraphBuilder()
    gain = b.constant("g", floats(8))

    def norm(x: Value) -> Value:
        return b.apply(LayerNormalization(1), x, gain)

    results = [norm(norm(b.input(f"x{i}", f32(4, 8)))) for i in range(12)]
    asked: list[FusionGroup] = []

    def estimate(part: FusionGroup) -> float:
        asked.append(part)
        return 1.0

    assert len(search_boundaries(b.finish(*results), (), estimate)) == 12
    assert len(asked) == 2  # one norm, and both


@settings(max_examples=100, deadline=None)
@given(graphs(40))
def test_merged_groups_never_wait_for_each_other(graph: Graph) -> None:
    ready = {*graph.inputs, *graph.constants}
    for part in search_boundaries(graph, (), one_each):
        assert set(part.inputs) <= ready
        ready.update(part.outputs)
    assert ready.issuperset(graph.outputs)


@settings(max_examples=40, deadline=None)
@given(graphs(10))
def test_merged_groups_mean_what_the_graph_means(graph: Graph) -> None:
    check_module(graph, lower_groups(graph, search_boundaries(graph, (), one_each))[0])


# ------------------------------------------------------------------------------------------ by the cost of families


@pytest.mark.parametrize("how", ["quotient", "reciprocal", "power"])
@pytest.mark.parametrize("centred", [True, False])
def test_a_norm_in_pieces_gets_the_kernel_of_the_op(how: str, centred: bool) -> None:
    def graph(is_op: bool) -> Graph:
        b = GraphBuilder()
        total = b.apply(Add(), b.input("x", f32(128, 768)), b.input("r", f32(128, 768)))
        scale, bias = b.constant("scale", floats(768)), b.constant("bias", floats(768))
        if is_op and centred:
            return b.finish(b.apply(LayerNormalization(1, 1e-3, centred), total, scale, bias))
        if is_op:
            return b.finish(b.apply(LayerNormalization(1, 1e-3, centred), total, scale))
        scaled = b.apply(Mul(), norm_in_pieces(b, total, how, centred), scale)
        return b.finish(b.apply(Add(), scaled, bias) if centred else scaled)

    assert decided(graph(is_op=False)) == decided(graph(is_op=True))


@pytest.mark.parametrize("shape", [(1024, 1024), (17, 33)])
def test_a_norm_in_pieces_of_any_size_is_one_kernel(shape: tuple[int, int]) -> None:
    b = GraphBuilder()
    assert len(decided(b.finish(norm_in_pieces(b, b.input("x", f32(*shape)))))) == 1


@pytest.mark.parametrize("shape", [(128, 768), (1024, 1024), (17, 33)])
def test_a_logarithm_of_a_sum_of_powers_is_one_kernel(shape: tuple[int, int]) -> None:
    """None of our patterns knows it."""
    b = GraphBuilder()
    x = b.input("x", f32(*shape))
    top = b.apply(ReduceMax((1,)), x)
    total = b.apply(ReduceSum((1,)), b.apply(Exp(), b.apply(Sub(), x, top)))
    assert len(decided(b.finish(b.apply(Add(), b.apply(Log(), total), top)))) == 1


def test_two_reductions_of_one_value_read_it_once() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(64, 1024))
    top, total = (b.apply(op((1,), keep=True), x) for op in (ReduceMax, ReduceSum))
    assert len(compiled(b.finish(b.apply(Mul(), top, total))).groups) == 1


def transposed_norm(perm: tuple[int, ...], first: Op | None) -> Graph:
    b = GraphBuilder()
    x = b.input("x", f32(2, 512, 500))
    t = b.apply(Transpose(perm), x if first is None else b.apply(first, x))
    return b.finish(b.apply(LayerNormalization(2), t, b.constant("g", floats(t.shape[2]))))


def test_what_is_folded_across_memory_is_transposed_first() -> None:
    assert texts(compiled(transposed_norm((0, 2, 1), None)).groups) == ["Transpose", "LayerNormalization"]


def test_what_keeps_its_rows_is_read_through_the_transpose() -> None:
    assert texts(compiled(transposed_norm((1, 0, 2), None)).groups) == ["Transpose LayerNormalization"]


def test_channels_that_a_layout_may_put_last_are_read_through_the_transpose() -> None:
    groups = texts(compiled(transposed_norm((0, 2, 1), Softmax((2,)))).groups)
    assert groups == ["Softmax", "Transpose LayerNormalization"]


def test_a_transpose_that_somebody_needs_is_not_stored_by_a_fold_along_it() -> None:
    b = GraphBuilder()
    t = b.apply(Transpose((1, 0)), b.input("x", f32(1000, 1000)))
    graph = b.finish(t, b.apply(ReduceSum((1,)), t))
    assert texts(compiled(graph).groups) == ["Transpose", "ReduceSum"]


def test_a_reduction_of_columns_does_not_join_one_of_rows() -> None:
    b = GraphBuilder()
    x = b.apply(Exp(), b.input("x", f32(512, 512)))
    graph = b.finish(*(b.apply(ReduceSum((axis,)), x) for axis in (0, 1)))
    assert len(compiled(graph).groups) == 2


def test_what_was_searched_is_replayed() -> None:
    b = GraphBuilder()
    normed = norm_in_pieces(b, b.input("x", f32(32, 64)))
    graph = b.finish(b.apply(LayerNormalization(1), normed, b.constant("g", floats(64))))
    state = compiled(graph)
    again = run_passes(ProgramState(graph), PassContext(BEST, lambda error: True), state.trace)
    assert str(again.trace) == str(state.trace)

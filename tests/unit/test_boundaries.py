"""Boundaries between kernels by estimated time: what merges, what does not, and that programs keep their meaning."""

import numpy as np
import pytest
from graph_cases import check_module, f32, floats
from hypothesis import given, settings
from native import BEST
from test_group import graphs

from tilewright.driver.decisions import Group, Kernel
from tilewright.driver.passes import PassContext, ProgramState, run_passes
from tilewright.driver.trace import ProgramTrace
from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph, Value
from tilewright.graph.passes.boundaries import search_boundaries
from tilewright.graph.passes.group import FusionGroup, Grouped
from tilewright.graph.passes.lower import lower_groups
from tilewright.ir.dtype import DType
from tilewright.ops.core.activation import Relu
from tilewright.ops.core.arithmetic import Add, Div, Mul, Pow, Sub
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.gather import Gather
from tilewright.ops.core.movement import Reshape, Transpose
from tilewright.ops.core.norm import LayerNormalization
from tilewright.ops.core.pieces import Concat
from tilewright.ops.core.pointwise import Exp, Log, Reciprocal, Sqrt
from tilewright.ops.core.reduce import ReduceMax, ReduceMean, ReduceSum
from tilewright.ops.core.softmax import Softmax
from tilewright.ops.opdef import Op, TensorType
from tilewright.search.fused_seconds import try_fused_seconds


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
    assert texts(search_boundaries(chain(), (), lambda part: 9.0 if len(part.nodes) > 2 else 1.0)) == rules


@pytest.mark.parametrize(("eagerness", "groups"), [(1.0, 2), (1.6, 1)])
def test_who_is_eager_merges_what_costs_a_little_more(eagerness: float, groups: int) -> None:
    def estimate(part: FusionGroup) -> float:
        return 3.0 if len(part.nodes) > 2 else 1.0

    assert len(search_boundaries(chain(), (), estimate, eagerness=eagerness)) == groups


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


# --------------------------------------------------------------------------------------------- computed by each reader


def fanned(size: int = 512) -> Graph:
    """A cheap value that is summed along both axes: no kernel can do both."""
    b = GraphBuilder()
    x = b.input("x", f32(size, size))
    t = b.apply(Relu(), b.apply(Add(), x, b.constant("one", np.array(1, np.float32))))
    return b.finish(*(b.apply(ReduceSum((axis,)), t) for axis in (0, 1)))


def test_a_cheap_value_is_computed_by_each_of_its_readers() -> None:
    state = compiled(fanned())
    assert texts(state.groups) == ["Add Relu ReduceSum", "Add Relu ReduceSum"]
    repeated = [d.repeated for d in state.trace.sections["groups"] if isinstance(d, Group)]
    assert len(repeated[0]) == 2 and repeated[0] == repeated[1]


def test_what_is_computed_by_each_reader_is_replayed() -> None:
    graph = fanned(64)
    groups = search_boundaries(graph, (), by_size)
    assert texts(groups) == ["Add Relu ReduceSum", "Add Relu ReduceSum"]
    check_module(graph, lower_groups(graph, groups)[0])
    state = compiled(fanned())
    again = run_passes(
        ProgramState(fanned()), PassContext(BEST, lambda error: True), ProgramTrace.parse(str(state.trace))
    )
    assert str(again.trace) == str(state.trace)


def by_size(part: FusionGroup) -> float | None:
    """What is stored counts; folds of several directions are no kernel."""
    if len({n.op for n in part.nodes if isinstance(n.op, ReduceSum)}) > 1:
        return None
    return float(sum(v.size for v in part.outputs))


def test_a_root_of_a_channel_is_not_computed_for_each_of_its_pixels() -> None:
    b = GraphBuilder()
    variance = b.input("variance", f32(1, 64, 1, 1))
    root = b.apply(Sqrt(), b.apply(Add(), variance, b.constant("e", np.array(1e-3, np.float32))))
    images = [b.apply(Exp(), b.input(f"x{i}", f32(1, 64, 28, 28))) for i in range(3)]
    groups = texts(compiled(b.finish(*(b.apply(Div(), x, root) for x in images))).groups)
    assert sum("Sqrt" in g for g in groups) == 1


def test_a_dear_value_is_not_computed_for_each_row() -> None:
    b = GraphBuilder()
    scale = b.apply(Pow(1.7), b.input("v", f32(1024)))
    sums = [b.apply(ReduceSum((1,)), b.apply(Mul(), b.input(n, f32(512, 1024)), scale)) for n in "xy"]
    groups = texts(compiled(b.finish(*sums)).groups)
    assert sum("Pow" in g for g in groups) == 1


def test_a_result_of_the_graph_is_stored() -> None:
    b = GraphBuilder()
    t = b.apply(Relu(), b.input("x", f32(512, 512)))
    graph = b.finish(t, *(b.apply(ReduceSum((axis,)), t) for axis in (0, 1)))
    assert not any(g.repeated for g in search_boundaries(graph, (), by_size) if isinstance(g, FusionGroup))


@settings(max_examples=60, deadline=None)
@given(graphs(14))
def test_groups_that_repeat_what_they_read_mean_what_the_graph_means(graph: Graph) -> None:
    groups = search_boundaries(graph, (), lambda part: float(sum(v.size for v in part.outputs)))
    check_module(graph, lower_groups(graph, groups)[0])


# ------------------------------------------------------------------------------------------------------------- cutting


def test_a_group_of_the_rules_is_cut_where_two_kernels_are_quicker() -> None:
    """A norm of rows that are gathered across memory: they are put together first."""
    b = GraphBuilder()
    pixels = b.apply(Reshape((1, 768, 196)), b.input("x", f32(1, 768, 14, 14)))
    t = b.apply(Transpose((0, 2, 1)), pixels)
    token = b.constant("token", floats(1, 1, 768))
    y = b.apply(Add(), b.apply(Concat(1), token, t), b.constant("p", floats(1, 197, 768)))
    graph = b.finish(y, b.apply(LayerNormalization(2), y, b.constant("g", floats(768))))
    assert texts(compiled(graph).groups) == ["Reshape Transpose Concat Add", "LayerNormalization"]


def test_rows_of_a_table_are_normed_where_they_are_chosen() -> None:
    b = GraphBuilder()
    rows = b.apply(Gather(0), b.constant("t", floats(30000, 128)), b.input("i", TensorType(DType.I64, (64,))))
    total = b.apply(Add(), rows, b.constant("p", floats(64, 128)))
    graph = b.finish(b.apply(LayerNormalization(1), total, b.constant("g", floats(128))))
    assert texts(compiled(graph).groups) == ["Gather Add LayerNormalization"]


def test_an_embedding_is_estimated_by_what_is_read_of_its_tables() -> None:
    """As BERT's. The tables have 30 times as many bytes as the rows that are chosen; and those who choose are few."""
    b = GraphBuilder()
    names = [b.input(n, TensorType(DType.I64, (1, 128))) for n in ("word", "kind")]
    words = b.apply(Gather(0), b.constant("w", floats(4000, 768)), names[0])
    total = b.apply(Add(), words, b.apply(Gather(0), b.constant("t", floats(2, 768)), names[1]))
    total = b.apply(Add(), total, b.constant("p", floats(1, 128, 768)))
    graph = b.finish(b.apply(LayerNormalization(2), total, b.constant("g", floats(768))))
    assert texts(compiled(graph).groups) == ["Gather Gather Add Add LayerNormalization"]
    (part,) = (g for g in compiled(graph).groups if isinstance(g, FusionGroup))
    whole = try_fused_seconds(lower_groups(graph, [part])[0].funcs[0], BEST, frozenset({"w", "t", "p", "g"}))
    assert whole is not None and whole < 1e-4  # 0.8 MB; some 20 us


def test_the_cut_that_saves_most_is_taken() -> None:
    def estimate(part: FusionGroup) -> float:
        return {1: 1.0, 2: 2.0}.get(len(part.nodes), 9.0)

    b = GraphBuilder()
    x = b.apply(Exp(), b.apply(Sqrt(), b.input("x", f32(4, 8))))
    graph = b.finish(b.apply(Softmax((1,)), x))
    assert texts(search_boundaries(graph, (), estimate)) == ["Sqrt Exp", "Softmax"]

"""Grouping and lowering: which nodes share a kernel, and Modules that mean what the graph means."""

import numpy as np
import pytest
from graph_cases import WINDOW, check_lowered, check_pass, f32, floats, groups
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.graph.build import GraphBuilder
from tilewright.graph.external import make_external_region
from tilewright.graph.graph import Graph, Value
from tilewright.graph.passes import prepare
from tilewright.graph.passes.group import group
from tilewright.graph.passes.lower import lower_graph
from tilewright.ir.dtype import DType
from tilewright.ops.core.activation import Relu, Sigmoid
from tilewright.ops.core.arithmetic import Add, Div, Max, Mul, Sub
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.conv import Conv
from tilewright.ops.core.gather import Gather
from tilewright.ops.core.movement import Reshape, Transpose
from tilewright.ops.core.norm import LayerNormalization
from tilewright.ops.core.pieces import Concat, Split
from tilewright.ops.core.pointwise import Erf, Exp, Neg
from tilewright.ops.core.pool import MaxPool
from tilewright.ops.core.reduce import ReduceMean, ReduceSum
from tilewright.ops.core.scan import CumSum
from tilewright.ops.core.softmax import Softmax
from tilewright.ops.core.window import Window
from tilewright.ops.opdef import TensorType
from tilewright.support.errors import UserError
from tilewright.tir.stmt import blocks

# ---------------------------------------------------------------------------------------------------- group


def test_convolution_takes_residual_and_activation() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(1, 3, 5, 5))
    w = b.constant("w", floats(3, 3, 3, 3))
    first = b.apply(Relu(), b.apply(Conv(WINDOW), x, w))
    second = b.apply(Conv(WINDOW), first, w)
    graph = b.finish(b.apply(Relu(), b.apply(Add(), second, x)))
    assert groups(graph) == ["Conv Relu", "Conv Add Relu"]
    check_lowered(graph)


def gelu(b: GraphBuilder, x: Value) -> Value:
    root, one, half = (
        b.constant(n, np.array(v, np.float32)) for n, v in (("root", 2**0.5), ("one", 1), ("half", 0.5))
    )
    bell = b.apply(Add(), b.apply(Erf(), b.apply(Div(), x, root)), one)
    return b.apply(Mul(), x, b.apply(Mul(), half, bell))


def test_matmul_takes_bias_and_a_whole_gelu() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(4, 8))
    h = b.apply(Add(), b.apply(MatMul(), x, b.constant("w", floats(8, 8))), b.constant("bias", floats(8)))
    graph = b.finish(gelu(b, h))
    assert groups(graph) == ["MatMul Add Div Erf Add Mul Mul"]
    module = check_lowered(graph)
    assert not {"root", "one", "half"} & {c.buffer.name for c in module.constants}


def test_a_value_that_others_need_ends_the_epilogue() -> None:
    b = GraphBuilder()
    x, w = b.input("x", f32(4, 4)), b.constant("w", floats(4, 4))
    h = b.apply(Relu(), b.apply(MatMul(), x, w))
    left, right = b.apply(MatMul(), b.apply(Exp(), h), w), b.apply(MatMul(), b.apply(Sigmoid(), h), w)
    graph = b.finish(b.apply(Add(), left, right))
    assert groups(graph) == ["MatMul Relu", "Exp", "Sigmoid", "MatMul", "MatMul Add"]
    check_lowered(graph)


def test_an_operand_that_depends_on_the_group_does_not_join_it() -> None:
    b = GraphBuilder()
    x, w = b.input("x", f32(4, 4)), b.constant("w", floats(4, 4))
    first = b.apply(MatMul(), x, w)
    around = b.apply(Softmax((1,)), first)
    graph = b.finish(b.apply(Add(), first, around))
    assert groups(graph) == ["MatMul", "Softmax Add"]
    check_lowered(graph)


def test_the_residual_before_a_norm_is_a_second_output() -> None:
    b = GraphBuilder()
    x, y = b.input("x", f32(2, 4)), b.input("y", f32(2, 4))
    total = b.apply(Add(), x, y)
    normed = b.apply(LayerNormalization(1), total, b.constant("scale", floats(4)))
    graph = b.finish(b.apply(Add(), b.apply(MatMul(), normed, b.constant("w", floats(4, 4))), total))
    assert groups(graph) == ["Add LayerNormalization", "MatMul Add"]
    (first, _) = group(graph)
    assert [v.name for v in first.outputs] == [total.name, normed.name]
    check_lowered(graph)


def test_a_prologue_that_is_needed_on_the_way_back_does_not_join() -> None:
    b = GraphBuilder()
    x, w = b.input("x", f32(2, 4)), b.constant("w", floats(4, 4))
    total = b.apply(Relu(), x)
    scale = b.apply(MatMul(), total, w)
    graph = b.finish(b.apply(LayerNormalization(1), total, scale))
    assert groups(graph) == ["Relu", "MatMul", "LayerNormalization"]
    check_lowered(graph)


def test_softmax_takes_its_scale() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(2, 4))
    scaled = b.apply(Mul(), x, b.constant("c", np.array(0.5, np.float32)))
    graph = b.finish(b.apply(Relu(), b.apply(Softmax((1,)), scaled)))
    assert groups(graph) == ["Mul Softmax Relu"]
    check_lowered(graph)


def test_elementwise_nodes_of_one_shape_share_a_group() -> None:
    b = GraphBuilder()
    x, y = b.input("x", f32(2, 3)), b.input("y", f32(2, 3))
    row = b.apply(Exp(), b.input("row", f32(3)))
    left, right = b.apply(Relu(), x), b.apply(Sigmoid(), y)
    graph = b.finish(b.apply(Add(), b.apply(Mul(), left, right), row), left)
    assert groups(graph) == ["Exp", "Relu Sigmoid Mul Add"]
    check_lowered(graph)


def test_elementwise_nodes_around_a_reduction_do_not_merge_in_a_circle() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(2, 3))
    r, e = b.apply(Relu(), x), b.apply(Exp(), x)
    mean = b.apply(ReduceMean((1,), keep=True), r)
    graph = b.finish(b.apply(Mul(), b.apply(Add(), r, mean), e))
    check_lowered(graph)
    assert all("Relu" not in g or "Add" not in g for g in groups(graph))


def attention() -> Graph:
    b = GraphBuilder("attention")
    x = b.input("x", f32(1, 6, 8))

    def heads(name: str) -> Value:
        h = b.apply(MatMul(), x, b.constant(f"w.{name}", floats(8, 8)))
        return b.apply(Reshape((1, 6, 2, 4)), b.apply(Add(), h, b.constant(f"b.{name}", floats(8))))

    q, v = (b.apply(Transpose((0, 2, 1, 3)), heads(n)) for n in ("q", "v"))
    k = b.apply(Transpose((0, 2, 3, 1)), heads("k"))
    scores = b.apply(Mul(), b.apply(MatMul(), q, k), b.constant("scale", np.array(0.5, np.float32)))
    mixed = b.apply(MatMul(), b.apply(Softmax((3,)), scores), v)
    flat = b.apply(Reshape((1, 6, 8)), b.apply(Transpose((0, 2, 1, 3)), mixed))
    return b.finish(b.apply(Add(), b.apply(MatMul(), flat, b.constant("w.o", floats(8, 8))), x))


def test_attention_is_five_kernels() -> None:
    """Transposes that keep rows are stored by the producer; the one that does not is read by the consumer."""
    graph = attention()
    assert groups(graph) == [
        "MatMul Add Reshape Transpose",
        "MatMul Add Reshape Transpose",
        "MatMul Add Reshape",
        "Transpose MatMul Mul Softmax MatMul Transpose Reshape",
        "MatMul Add",
    ]
    check_lowered(graph)


def windows(op: Transpose) -> Graph:
    """A layer over windows of an image, whose residual is added once they are put together again."""
    b = GraphBuilder()
    x, residual = b.input("x", f32(4, 6, 8)), b.input("r", f32(4, 6, 8))
    h = b.apply(Add(), b.apply(MatMul(), x, b.constant("w", floats(8, 8))), b.constant("c", floats(8)))
    image = b.apply(Reshape((4, 6, 8)), b.apply(op, b.apply(Reshape((2, 2, 2, 3, 8)), h)))
    total = b.apply(Add(), residual, image)
    return b.finish(b.apply(LayerNormalization(2), total, b.constant("g", floats(8))), b.apply(Exp(), total))


def test_a_residual_after_views_that_keep_rows_is_part_of_the_epilogue() -> None:
    graph = windows(Transpose((0, 2, 1, 3, 4)))
    assert groups(graph)[0] == "MatMul Add Reshape Transpose Reshape Add"
    check_lowered(graph)


def test_a_residual_after_views_that_turn_rows_is_not() -> None:
    graph = windows(Transpose((0, 2, 1, 4, 3)))
    assert groups(graph)[0] == "MatMul Add Reshape"
    check_lowered(graph)


def test_a_view_is_repeated_for_each_reader() -> None:
    b = GraphBuilder()
    x, w = b.input("x", f32(3, 2)), b.constant("w", floats(3, 3))
    t = b.apply(Transpose((1, 0)), x)
    graph = b.finish(b.apply(MatMul(), t, w), b.apply(Exp(), t))
    assert groups(graph) == ["Transpose MatMul", "Transpose Exp"]
    check_lowered(graph)


def test_a_repeated_split_computes_only_what_is_read() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(2, 6))
    left, middle, right = b.add(Split(1, (1, 2, 3)), (x,), "split").outputs
    graph = b.finish(b.apply(Exp(), left), b.apply(Relu(), middle), b.apply(Sigmoid(), right))
    module = check_lowered(graph)
    assert [len(list(blocks(f.body))) for f in module.funcs] == [2, 2, 2]
    assert all(len(f.locals) == 1 for f in module.funcs)


def test_a_gather_joins_the_sum_and_the_norm_after_it() -> None:
    b = GraphBuilder()
    ids, table = b.input("ids", TensorType(DType.I64, (5,))), b.constant("table", floats(3, 4))
    total = b.apply(Add(), b.apply(Gather(0), table, ids), b.constant("position", floats(5, 4)))
    graph = b.finish(b.apply(LayerNormalization(1), total, b.constant("scale", floats(4))))
    assert groups(graph) == ["Gather Add LayerNormalization"]
    check_lowered(graph)


def test_a_concatenation_does_not_join_a_contraction() -> None:
    b = GraphBuilder()
    x, y = b.input("x", f32(2, 2)), b.input("y", f32(2, 1))
    joined = b.apply(Concat(1), x, y)
    graph = b.finish(b.apply(MatMul(), joined, b.constant("w", floats(3, 3))))
    assert groups(graph) == ["Concat", "MatMul"]
    check_lowered(graph)


def test_an_output_that_is_a_view_is_stored() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(2, 3))
    t = b.apply(Transpose((1, 0)), b.apply(Reshape((3, 2)), x))
    graph = b.finish(t, b.apply(Relu(), t))
    assert groups(graph) == ["Reshape Transpose", "Relu"]
    check_lowered(graph)


def test_very_long_chains_are_cut() -> None:
    b = GraphBuilder()
    v = b.apply(MatMul(), b.input("x", f32(2, 2)), b.constant("w", floats(2, 2)))
    for _ in range(300):
        v = b.apply(Relu(), v)
    parts = group(b.finish(v))
    assert 5 <= len(parts) <= 7 and max(len(g.nodes) for g in parts) <= 64


# ---------------------------------------------------------------------------------------------------- lower


def test_outputs_that_are_inputs_or_constants_are_copied() -> None:
    b = GraphBuilder()
    x, c = b.input("x", f32(2)), b.constant("c", floats(3))
    r = b.apply(Relu(), x)
    module = check_lowered(b.finish(x, c, r, r, names=("a", "b", "c", "d")))
    assert [f.name for f in module.funcs] == ["relu", "x_copy", "c_copy", "relu_copy"]


def test_scalars_and_empty_tensors() -> None:
    b = GraphBuilder()
    x, s, empty = b.input("x", f32(3)), b.input("s", f32()), b.input("e", f32(0, 2))
    total = b.apply(Add(), b.apply(ReduceSum((0,), keep=False), x), s)
    module = check_lowered(b.finish(total, b.apply(Relu(), empty)))
    assert len(module.funcs) == 1 and [o.shape for o in module.outputs] == [(), (0, 2)]


def test_a_contraction_over_nothing_is_zero() -> None:
    b = GraphBuilder()
    x, y = b.input("x", f32(2, 0)), b.input("y", f32(0, 3))
    graph = b.finish(b.apply(MatMul(), x, y))
    check_lowered(graph)
    check_lowered(check_pass(graph, prepare))


def test_padding_that_would_fill_the_memory_is_refused() -> None:
    b = GraphBuilder()
    wide = Window((99999, 99999), (1, 1), (1, 1), (99998, 99998), (0, 0))
    with pytest.raises(UserError, match="the limit is"):
        lower_graph(b.finish(b.apply(MaxPool(wide), b.input("x", f32(1, 3, 2, 2)))))


def test_names_from_the_model_become_identifiers() -> None:
    b = GraphBuilder()
    odd = [b.input(n, f32(2)) for n in ("a.b", "a/b", "a_b", "0", "k0_relu0", "λ", "class")]
    v = odd[0]
    for o in odd[1:]:
        v = b.apply(Add(), v, o)
    check_lowered(b.finish(v))


def test_a_region_becomes_an_external_call() -> None:
    b = GraphBuilder()
    x, w = b.input("x", f32(2, 3)), b.constant("w", floats(2, 2))
    t = b.apply(Transpose((1, 0)), b.apply(Relu(), x))
    h = b.apply(Exp(), b.apply(MatMul(), t, w))
    graph = b.finish(b.apply(Relu(), b.apply(Sub(), h, b.constant("c", floats(2)))))
    region = make_external_region(
        graph, "npu", tuple(n for n in graph.nodes if isinstance(n.op, MatMul | Exp))
    )
    assert groups(graph, region) == ["Relu", "Transpose", "npu", "Sub Relu"]
    module = check_lowered(graph, region)
    assert len(module.funcs) == 3


def test_lowering_attention_keeps_the_order_of_inputs_and_outputs() -> None:
    graph = attention()
    module = lower_graph(graph)
    assert [b.name for b in module.inputs] == ["x"]
    assert len(module.funcs) == 5


# ------------------------------------------------------------------------------------------------ random graphs

_OPS = (
    Neg(),
    Max(),
    Add(),
    Mul(),
    Sub(),
    Transpose((1, 0)),
    Reshape((4, 4)),
    Concat(0),
    MatMul(),
    CumSum(1),
    ReduceSum((1,)),
)


@st.composite
def graphs(draw: st.DrawFn, most: int) -> Graph:
    """Graphs over 4×4 integers, so that results are exact, in which values are used again and again."""
    b = GraphBuilder()
    square = TensorType(DType.I32, (4, 4))
    values = [b.input("x", square), b.input("y", square)]
    for _ in range(draw(st.integers(1, most))):
        op = draw(st.sampled_from(_OPS))
        # Recent values more often: long paths are where groups could meet in a circle.
        left, right = (values[-1 - draw(st.integers(0, min(len(values) - 1, 5)))] for _ in range(2))
        match op:
            case Add() | Mul() | Sub() | MatMul() | Max():
                values.append(b.apply(op, left, right))
            case Concat():
                values.append(b.apply(op, *reversed(b.add(Split(0, (2, 2)), (left,)).outputs)))
            case ReduceSum():
                values.append(b.apply(Add(), b.apply(op, left), right))
            case _:
                values.append(b.apply(op, left))
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
    return b.finish(*dict.fromkeys([*outputs, values[-1]]))


@settings(max_examples=100, deadline=None)
@given(graphs(60))
def test_groups_never_wait_for_each_other(graph: Graph) -> None:
    ready = {*graph.inputs, *graph.constants}
    for part in group(graph):
        assert set(part.inputs) <= ready
        ready.update(part.outputs)
    assert ready.issuperset(graph.outputs)


@settings(max_examples=40, deadline=None)
@given(graphs(10))
def test_random_graphs_keep_their_meaning(graph: Graph) -> None:
    check_lowered(check_pass(graph, prepare))


def test_a_func_is_named_after_what_it_makes_whatever_comes_before_it() -> None:
    """A long name, or one that is no identifier, stands for itself."""
    long = "/encoder/layers.0/self_attn/out_proj/quite/a/long/way/down/Add_output_0"

    def names(wide: bool) -> list[str]:
        b = GraphBuilder()
        x = b.input("x", f32(2, 3))
        y = b.apply(Relu(), b.apply(Transpose((1, 0)), x) if wide else x, name=long)
        return [f.name for f in lower_graph(b.finish(y)).funcs]

    assert names(False) == names(True)
    (name,) = names(False)
    assert name.isidentifier() and "__" not in name and len(name) < 50

"""Graph passes: each keeps the meaning, and does what it says."""

import numpy as np
import pytest
from graph_cases import F32, RNG, WINDOW, check_lowered, check_pass, f32, floats, groups, names

from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph, Value
from tilewright.graph.interp import interpret_graph
from tilewright.graph.known import Budget
from tilewright.graph.passes import PIPELINE, prepare
from tilewright.graph.passes.drop_unread_columns import drop_unread_columns
from tilewright.graph.passes.eliminate_common import eliminate_common
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.fuse_batch_norm import fuse_batch_norm
from tilewright.graph.passes.fuse_padding import fuse_padding
from tilewright.graph.passes.multiply_by_inverse_roots import multiply_by_inverse_roots
from tilewright.graph.passes.simplify import simplify
from tilewright.graph.passes.trim_windows import trim_windows
from tilewright.graph.verify import verify_graph
from tilewright.ir.dtype import DType
from tilewright.ops.core.activation import Clip, Relu
from tilewright.ops.core.arithmetic import Add, Div, Mul, Sub
from tilewright.ops.core.cast import Cast
from tilewright.ops.core.contraction import Gemm, MatMul
from tilewright.ops.core.conv import Conv, ConvTranspose
from tilewright.ops.core.einsum import Einsum
from tilewright.ops.core.gather import GatherElements
from tilewright.ops.core.movement import Expand, Identity, Reshape, Transpose
from tilewright.ops.core.norm import BatchNormalization
from tilewright.ops.core.pieces import Concat, Pad, Slice, Split, Tile
from tilewright.ops.core.pointwise import Exp, Sqrt
from tilewright.ops.core.pool import MaxPool
from tilewright.ops.core.reduce import ReduceSum
from tilewright.ops.core.window import Window
from tilewright.ops.opdef import Op, TensorType
from tilewright.support.arrays import Array

# ------------------------------------------------------------------------------------------- fold_constants


def test_folds_a_transposed_weight_into_the_constant() -> None:
    b = GraphBuilder()
    x, w = b.input("x", f32(2, 3)), b.constant("w", floats(4, 3))
    graph = b.finish(b.apply(MatMul(), x, b.apply(Transpose((1, 0)), w, name="t")))
    after = eliminate_dead(check_pass(graph, fold_constants))
    assert names(after) == ["MatMul"]
    assert [(v.name, v.shape) for v in after.constants] == [("t", (3, 4))]


def test_folds_a_long_chain() -> None:
    b = GraphBuilder()
    x, v = b.input("x", f32(2)), b.constant("c", floats(2))
    for _ in range(2000):
        v = b.apply(Relu(), v, name="r")
    assert names(fold_constants(b.finish(b.apply(Add(), x, v)))) == ["Add"]


def test_does_not_fold_what_grows() -> None:
    b = GraphBuilder()
    big = b.apply(Expand((1024, 1024)), b.constant("c", floats(1, 1)))
    graph = b.finish(b.apply(Add(), b.input("x", f32(1024, 1)), big))
    assert names(fold_constants(graph)) == ["Expand", "Add"]


def test_does_not_fold_over_budget() -> None:
    b = GraphBuilder()
    small = b.apply(Exp(), b.constant("s", floats(4)), name="small")
    large = b.apply(Exp(), b.constant("l", floats(4000)), name="large")
    graph = b.finish(small, large)
    folded = fold_constants(graph, Budget(node=4096, total=4096, growth=0))
    assert [n.name for n in folded.nodes] == ["large"]
    assert not fold_constants(graph, Budget(node=1 << 20, total=1 << 20, growth=0)).nodes


def test_does_not_fold_a_small_node_with_much_work() -> None:
    b = GraphBuilder()
    c = b.constant("c", floats(1, 1, 2, 2))
    wide = Window((9999, 9999), (1, 1), (1, 1), (9998, 9998), (0, 0))
    graph = b.finish(b.apply(MaxPool(wide), c), b.input("x", f32(1)))
    assert names(fold_constants(graph)) == ["MaxPool"]
    vectors = [b.constant(n, floats(4096)) for n in "pqrs"]
    graph = b.finish(b.apply(Einsum(("a", "b", "c", "d"), ""), *vectors))
    assert names(fold_constants(graph)) == ["MaxPool", "Einsum"]


def test_folds_small_matrix_products_but_not_large_ones() -> None:
    b = GraphBuilder()
    for n in (8, 512):
        b.apply(MatMul(), b.constant("a", floats(n, n)), b.constant("b", floats(n, n)), name=f"of {n}")
    assert [n.name for n in fold_constants(b.finish(b.input("x", f32(1)))).nodes] == ["of 512"]


def test_what_cannot_be_computed_is_left_to_run_time() -> None:
    b = GraphBuilder()
    one, zero = (b.constant(n, np.array([i], np.int32)) for n, i in (("one", 1), ("zero", 0)))
    graph = b.finish(b.apply(Div(), one, zero), b.input("x", f32(1)))
    verify_graph(fold_constants(graph))


def test_an_empty_reduction_is_a_constant() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(3, 0))
    graph = b.finish(b.apply(ReduceSum((1,), keep=False), x))
    after = check_pass(graph, prepare)
    assert names(after) == []
    assert after.constants[after.outputs[0]].tolist() == [0, 0, 0]
    check_lowered(after)


# ------------------------------------------------------------------------------------------------- simplify


@pytest.mark.parametrize("op", [Slice((1,), (-1,), (2,)), Pad((1,), (-1,)), Transpose((1, 0))], ids=type)
def test_nodes_that_keep_the_type_but_move_elements_stay(op: Op) -> None:
    b = GraphBuilder()
    graph = b.finish(b.apply(op, b.input("x", f32(2, 2) if isinstance(op, Transpose) else f32(2))))
    assert simplify(graph) is graph


def test_nodes_that_do_nothing_go() -> None:
    b = GraphBuilder()
    v = x = b.input("x", f32(2, 3))
    one, zero = b.constant("one", np.array(1, np.float32)), b.constant("zero", np.zeros((1, 3), np.float32))
    for op in (
        Identity(),
        Cast(F32),
        Expand((2, 3)),
        Reshape((2, 3)),
        Transpose((0, 1)),
        Clip(),
        Concat(1),
        Tile((1, 1)),
    ):
        v = b.apply(op, v)
    v = b.apply(Pad((0, 0), (0, 0)), b.apply(Slice((0, 0), (1, 1), (2, 3)), v))
    v = b.apply(Sub(), b.apply(Mul(), one, b.apply(Div(), b.apply(Mul(), v, one), one)), zero)
    after = check_pass(b.finish(v, names=["y"]), simplify)
    assert names(after) == [] and after.outputs == (x,) and after.output_names == ("y",)


def test_multiplication_by_one_that_broadcasts_stays() -> None:
    b = GraphBuilder()
    x, ones = b.input("x", f32(1, 3)), b.constant("ones", np.ones((2, 3), np.float32))
    assert names(check_pass(b.finish(b.apply(Mul(), ones, x)), simplify)) == ["Mul"]


def test_subtraction_of_minus_zero_stays() -> None:
    b = GraphBuilder()
    x, zero = b.input("x", f32(3)), b.constant("zero", np.array(-0.0, np.float32))
    assert names(simplify(b.finish(b.apply(Sub(), x, zero)))) == ["Sub"]


def test_reshapes_merge() -> None:
    b = GraphBuilder()
    v = b.input("x", f32(2, 6))
    for shape in ((3, 4), (12,), (4, 3)):
        v = b.apply(Reshape(shape), v)
    after = eliminate_dead(check_pass(b.finish(v), simplify))
    assert [n.op for n in after.nodes] == [Reshape((4, 3))]


def test_transposes_merge_and_cancel() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(2, 3, 4))
    once = b.apply(Transpose((1, 2, 0)), x)
    twice = b.apply(Transpose((1, 2, 0)), once)
    thrice = b.apply(Transpose((1, 2, 0)), twice)
    after = eliminate_dead(check_pass(b.finish(twice, thrice), simplify))
    assert [n.op for n in after.nodes] == [Transpose((2, 0, 1))]
    assert after.outputs[1] is after.inputs[0]


def test_a_transpose_of_unit_axes_is_a_reshape() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(2, 1, 3))
    moved = b.apply(Transpose((1, 0, 2)), x)
    after = eliminate_dead(check_pass(b.finish(b.apply(Reshape((6,)), moved)), simplify))
    assert [n.op for n in after.nodes] == [Reshape((6,))]


def test_empty_parts_of_a_concatenation_go() -> None:
    b = GraphBuilder()
    x, empty = b.input("x", f32(2, 3)), b.constant("empty", floats(0, 3))
    after = eliminate_dead(check_pass(b.finish(b.apply(Concat(0), empty, x)), simplify))
    assert names(after) == []


@pytest.mark.parametrize("sliced", [False, True])
def test_pieces_that_are_put_together_again_are_what_was_cut(sliced: bool) -> None:
    b = GraphBuilder()
    x, y = b.input("x", f32(2, 5)), b.input("y", f32(2, 1))
    if sliced:
        left, right = (b.apply(Slice((0, at), (1, 1), (2, n)), x) for at, n in ((0, 2), (2, 3)))
    else:
        left, right = b.add(Split(1, (2, 3)), (x,)).outputs
    after = eliminate_dead(check_pass(b.finish(b.apply(Concat(1), y, left, right, y)), simplify))
    assert [(n.op, [v.name for v in n.inputs]) for n in after.nodes] == [(Concat(1), ["y", "x", "y"])]
    after = eliminate_dead(check_pass(b.finish(b.apply(Concat(1), left, right)), simplify))
    assert not after.nodes


def test_pieces_in_another_order_or_not_all_of_them_stay() -> None:
    b = GraphBuilder()
    a, c, d = b.add(Split(1, (1, 1, 1)), (b.input("x", f32(2, 3)),)).outputs
    backwards = b.apply(Slice((0, 2), (1, -1), (2, 3)), b.input("y", f32(2, 3)))
    for parts in ((c, a, d), (a, c), (c, d), (a, d), (backwards, a)):
        graph = b.finish(b.apply(Concat(1), *parts))
        assert simplify(graph) is graph


def test_a_concatenation_of_very_many_parts_is_nested() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(2, 1))
    graph = b.finish(b.apply(Concat(1), *[x] * 1100))
    after = check_pass(graph, prepare)
    assert all(len(n.inputs) <= 32 for n in after.nodes) and after.outputs[0].name == graph.outputs[0].name
    check_lowered(after)


# --------------------------------------------------------------------------- eliminate_common, eliminate_dead


def test_equal_nodes_are_computed_once() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(2))
    c, d = b.constant("c", np.array(2, np.float32)), b.constant("d", np.array(2, np.float32))
    left, right = b.apply(Mul(), x, c), b.apply(Mul(), x, d)
    after = eliminate_dead(
        check_pass(b.finish(b.apply(Add(), b.apply(Exp(), left), b.apply(Exp(), right))), eliminate_common)
    )
    assert names(after) == ["Mul", "Exp", "Add"] and len(after.constants) == 1


def test_nodes_that_differ_in_the_sign_of_zero_are_different() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(2))
    graph = b.finish(b.apply(Clip(0.0), x), b.apply(Clip(-0.0), x))
    assert len(eliminate_common(graph).nodes) == 2


def test_equal_constants_of_different_types_stay() -> None:
    b = GraphBuilder()
    c, d = b.constant("c", np.zeros(2, np.int32)), b.constant("d", np.zeros(1, np.int64))
    after = eliminate_common(b.finish(c, d))
    assert after.outputs == (c, d)


def test_dead_nodes_and_constants_go_but_inputs_stay() -> None:
    b = GraphBuilder()
    x, unused = b.input("x", f32(2)), b.input("unused", f32(2))
    c = b.constant("c", floats(2))
    b.apply(Add(), unused, c)
    after = check_pass(b.finish(b.apply(Relu(), x)), eliminate_dead)
    assert names(after) == ["Relu"] and not after.constants and len(after.inputs) == 2


def test_a_pass_that_changes_nothing_returns_the_graph_itself() -> None:
    b = GraphBuilder()
    graph = b.finish(b.apply(Relu(), b.input("x", f32(2))))
    assert all(step(graph) is graph for step in PIPELINE)


def test_prepare_shows_the_graph_after_each_pass() -> None:
    b = GraphBuilder()
    graph = b.finish(b.apply(Identity(), b.input("x", f32(2))))
    seen: list[tuple[str, int]] = []
    prepare(graph, lambda name, g: seen.append((name, len(g.nodes))))
    assert [name for name, _ in seen] == [step.__name__ for step in PIPELINE]
    assert ("simplify", 0) in seen


# ------------------------------------------------------------------------------------------------------ fuse


def batch_norm(b: GraphBuilder, x: Value, channels: int) -> Value:
    weights = [floats(channels), floats(channels), floats(channels), np.abs(floats(channels)) + 0.1]
    constants = [b.constant(n, a) for n, a in zip(("gain", "bias", "mean", "var"), weights, strict=True)]
    return b.apply(BatchNormalization(1e-3), x, *constants)


@pytest.mark.parametrize("bias", [False, True])
def test_a_batch_norm_disappears_into_the_convolution(bias: bool) -> None:
    b = GraphBuilder()
    x, w = b.input("x", f32(1, 2, 4, 4)), b.constant("w", floats(3, 2, 3, 3))
    rest = [b.constant("b", floats(3))] if bias else []
    graph = b.finish(batch_norm(b, b.apply(Conv(WINDOW), x, w, *rest), 3))
    after = eliminate_dead(check_pass(graph, fuse_batch_norm))
    assert names(after) == ["Conv"] and len(after.nodes[0].inputs) == 3


@pytest.mark.parametrize("groups", [1, 2])
def test_a_batch_norm_disappears_into_the_transposed_convolution(groups: int) -> None:
    b = GraphBuilder()
    x, w = b.input("x", f32(1, 4, 3, 3)), b.constant("w", floats(4, 3, 2, 2))
    window = Window((2, 2), (2, 2), (1, 1), (0, 0), (0, 0))
    graph = b.finish(batch_norm(b, b.apply(ConvTranspose(window, groups), x, w), 3 * groups))
    after = eliminate_dead(check_pass(graph, fuse_batch_norm))
    assert names(after) == ["ConvTranspose"] and len(after.nodes[0].inputs) == 3


@pytest.mark.parametrize("transposed", [False, True])
def test_a_batch_norm_disappears_into_the_dense_layer(transposed: bool) -> None:
    b = GraphBuilder()
    x, w = b.input("x", f32(2, 3)), b.constant("w", floats(*((4, 3) if transposed else (3, 4))))
    graph = b.finish(batch_norm(b, b.apply(Gemm(trans_b=transposed), x, w, b.constant("c", floats(1, 4))), 4))
    assert names(eliminate_dead(check_pass(graph, fuse_batch_norm))) == ["Gemm"]


def test_a_batch_norm_stays_if_others_need_the_convolution() -> None:
    b = GraphBuilder()
    x, w = b.input("x", f32(1, 2, 4, 4)), b.constant("w", floats(2, 2, 3, 3))
    c = b.apply(Conv(WINDOW), x, w)
    normed = batch_norm(b, c, 2)
    assert fuse_batch_norm(b.finish(normed, c)).nodes == b.finish(normed, c).nodes
    graph = b.finish(b.apply(Add(), normed, b.apply(Relu(), c)))
    assert "BatchNormalization" in names(fuse_batch_norm(graph))


def test_a_batch_norm_stays_if_weights_are_inputs() -> None:
    b = GraphBuilder()
    c = b.apply(Conv(WINDOW), b.input("x", f32(1, 2, 4, 4)), b.input("w", f32(2, 2, 3, 3)))
    graph = b.finish(batch_norm(b, c, 2))
    assert fuse_batch_norm(graph) is graph
    assert groups(graph) == ["Conv BatchNormalization"]


def test_padding_joins_the_window() -> None:
    b = GraphBuilder()
    x, w = b.input("x", f32(1, 2, 4, 4)), b.constant("w", floats(3, 2, 3, 3))
    padded = b.apply(Pad((0, 0, 1, 0), (0, 0, 0, 2)), x)
    after = eliminate_dead(check_pass(b.finish(b.apply(Conv(WINDOW), padded, w)), fuse_padding))
    assert [n.op for n in after.nodes] == [Conv(Window((3, 3), (1, 1), (1, 1), (2, 1), (1, 3)))]


@pytest.mark.parametrize(
    "pad",
    [
        Pad((0, 0, 1, 1), (0, 0, 1, 1), value=1.0),
        Pad((0, 0, 1, 1), (0, 0, 1, 1), mode="edge"),
        Pad((0, 0, -1, 1), (0, 0, 1, 1)),
        Pad((1, 0, 0, 0), (0, 0, 0, 0)),
    ],
    ids=["one", "edge", "cut", "batch"],
)
def test_padding_that_a_window_cannot_have_stays(pad: Pad) -> None:
    b = GraphBuilder()
    padded = b.apply(pad, b.input("x", f32(1, 2, 4, 4)))
    graph = b.finish(b.apply(Conv(WINDOW), padded, b.constant("w", floats(3, 2, 3, 3))))
    assert fuse_padding(graph) is graph


def over_root(x: Value, b: GraphBuilder, kept: tuple[int, ...] = (2, 3, 1)) -> Graph:
    return b.finish(b.apply(Div(), x, b.apply(Sqrt(), b.input("s", TensorType(x.type.dtype, kept)))))


def test_many_elements_over_one_root_are_multiplied() -> None:
    b = GraphBuilder()
    graph = over_root(b.input("x", f32(2, 3, 4)), b)
    assert names(check_pass(graph, multiply_by_inverse_roots)) == ["Sqrt", "Reciprocal", "Mul"]


@pytest.mark.parametrize(
    ("dtype", "kept"), [(F32, (2, 3, 4)), (DType.F16, (2, 3, 1))], ids=["each its own", "half"]
)
def test_other_divisions_by_roots_stay(dtype: DType, kept: tuple[int, ...]) -> None:
    b = GraphBuilder()
    graph = over_root(b.input("x", TensorType(dtype, (2, 3, 4))), b, kept)
    assert multiply_by_inverse_roots(graph) is graph


def test_inverse_roots_keep_zeros_infinities_and_nans() -> None:
    ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1e-45, 3e38], np.float32)
    roots = np.array([0.0, -0.0, np.inf, -1.0, np.nan, 1e-45, 3e38], np.float32)[:, None]
    b = GraphBuilder()
    graph = over_root(b.input("x", f32(7, 8)), b, (7, 1))
    feeds = {"x": np.tile(ends, (7, 1)), "s": roots}
    (want,), (got,) = (interpret_graph(g, feeds).values() for g in (graph, multiply_by_inverse_roots(graph)))
    np.testing.assert_allclose(got, want, rtol=3e-7)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


# ------------------------------------------------------------------------------------- drop_unread_columns


def scores(b: GraphBuilder, at: Value) -> Value:
    """Elements of the rows of a MatMul of 96 columns, at these places."""
    product = b.apply(MatMul(), b.input("x", f32(2, 4, 8)), b.constant("w", floats(2, 8, 96)), name="product")
    return b.apply(GatherElements(2), product, at)


def places(low: int, high: int) -> Array:
    return RNG.integers(low, high, (1, 4, 4))


@pytest.mark.parametrize(
    ("low", "high", "columns"), [(33, 40, 16), (-60, -41, 32), (40, 96, 64), (0, 96, 96)]
)
def test_columns_that_are_not_read_are_not_computed(low: int, high: int, columns: int) -> None:
    b = GraphBuilder()
    at = np.concatenate([places(low, high), np.full((1, 4, 2), [low, high - 1])], 2)
    wide = b.apply(Expand((2, 4, 6)), b.constant("at", at))
    after = eliminate_dead(check_pass(b.finish(scores(b, wide)), drop_unread_columns))
    assert names(after) in (["Expand", "MatMul", "GatherElements"], ["MatMul", "Expand", "GatherElements"])
    assert sum(v.shape[-1] for v in after.constants if v.type.dtype is F32) == columns


def test_columns_stay_where_somebody_else_reads_them() -> None:
    b = GraphBuilder()
    picked = scores(b, b.constant("at", np.zeros((2, 4, 1), np.int64)))
    (product,) = (n.outputs[0] for n in b.finish(picked).nodes if n.name == "product")
    graph = b.finish(picked, b.apply(Exp(), product))
    assert drop_unread_columns(graph) is graph


def test_columns_stay_where_the_places_are_not_known_or_wrong() -> None:
    for known in (False, True):
        b = GraphBuilder()
        wrong = np.full((2, 4, 1), 96)
        at = b.constant("at", wrong) if known else b.input("at", TensorType.of(wrong))
        graph = b.finish(scores(b, at))
        assert drop_unread_columns(graph) is graph


# -------------------------------------------------------------------------------------------- trim_windows


def trimmed(extent: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]) -> tuple[int, ...]:
    """Kernel and padding of a convolution over `extent` samples, after the pass."""
    b = GraphBuilder()
    window = Window((kernel,), (stride,), (dilation,), pads[:1], pads[1:])
    conv = b.apply(Conv(window), b.input("x", f32(1, 2, extent)), b.constant("w", floats(3, 2, kernel)))
    (node,) = eliminate_dead(check_pass(b.finish(conv), trim_windows)).nodes
    assert isinstance(node.op, Conv)
    after = node.op.window
    return *after.kernel, *after.before, *after.after


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ((1, 3, 1, 1, (1, 1)), (1, 0, 0)),  # one sample: only the tap in the middle
        ((2, 3, 2, 1, (1, 1)), (2, 0, 1)),
        ((2, 5, 1, 1, (2, 2)), (3, 1, 1)),
        ((3, 5, 1, 1, (2, 2)), (5, 2, 2)),  # the first meets the last sample
        ((2, 5, 1, 1, (0, 4)), (2, 0, 1)),
        ((2, 3, 1, 2, (2, 2)), (1, 0, 0)),
        ((3, 2, 1, 2, (1, 1)), (2, 1, 1)),
        ((2, 2, 1, 3, (1, 2)), (2, 1, 2)),  # two results, which read one sample each
    ],
)
def test_taps_that_read_only_padding_are_cut_off(
    given: tuple[int, int, int, int, tuple[int, int]], left: tuple[int, ...]
) -> None:
    assert trimmed(*given) == left


def test_taps_that_are_not_finite_stay() -> None:
    b = GraphBuilder()
    w = np.array([[[np.inf, 1, 1]]], np.float32)
    conv = Conv(Window((3,), (1,), (1,), (1,), (1,)))
    graph = b.finish(b.apply(conv, b.input("x", f32(1, 1, 1)), b.constant("w", w)))
    assert trim_windows(graph) is graph

"""Graph passes: each keeps the meaning, and does what it says. Lowered Modules mean what the graph means."""

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.graph.build import GraphBuilder
from tilewright.graph.external import ExternalRegion, make_region
from tilewright.graph.graph import Graph, Value
from tilewright.graph.interp import interpret
from tilewright.graph.known import Budget
from tilewright.graph.passes import PIPELINE, prepare
from tilewright.graph.passes.eliminate_common import eliminate_common
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.group import Group, group
from tilewright.graph.passes.lower import lower
from tilewright.graph.passes.simplify import simplify
from tilewright.graph.verify import verify_graph
from tilewright.ir.dtype import DType
from tilewright.ops import (
    Add,
    Cast,
    Clip,
    Concat,
    Conv,
    Div,
    Erf,
    Exp,
    Expand,
    Gather,
    Identity,
    LayerNormalization,
    MatMul,
    Mul,
    ReduceMean,
    ReduceSum,
    Relu,
    Reshape,
    Sigmoid,
    Softmax,
    Split,
    Sub,
    Transpose,
)
from tilewright.ops.opdef import Array, TensorType
from tilewright.ops.window import Window
from tilewright.support.errors import UserError
from tilewright.tir.func import Module, calls
from tilewright.tir.interp import interpret_module
from tilewright.tir.stmt import blocks, loops

F32 = DType.F32
RNG = np.random.default_rng(5)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def f32(*shape: int) -> TensorType:
    return TensorType(F32, shape)


def names(graph: Graph) -> list[str]:
    return [type(n.op).__name__ for n in graph.nodes]


def groups(graph: Graph, *regions: ExternalRegion) -> list[str]:
    return [
        " ".join(type(n.op).__name__ for n in g.nodes) if isinstance(g, Group) else g.key
        for g in group(graph, regions)
    ]


def feeds_of(graph: Graph) -> dict[str, Array]:
    def feed(v: Value) -> Array:
        if v.type.dtype.is_int:
            return RNG.integers(0, 3, v.shape).astype(v.type.dtype.numpy)
        return RNG.standard_normal(v.shape).astype(v.type.dtype.numpy)

    return {v.name: feed(v) for v in graph.inputs}


def check_pass(graph: Graph, step: Callable[[Graph], Graph]) -> Graph:
    """Apply a pass and hold the result to what it was made from."""
    after = step(graph)
    verify_graph(after)
    assert after.output_names == graph.output_names
    assert [v.type for v in after.outputs] == [v.type for v in graph.outputs]
    feeds = feeds_of(graph)
    want, got = interpret(graph, feeds), interpret(after, feeds)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)
    return after


def check_lowered(graph: Graph, *regions: ExternalRegion) -> Module:
    """Lower and hold the Module to the graph; names must be unique identifiers."""
    module = lower(graph, regions)
    feeds = feeds_of(graph)

    def external(region: ExternalRegion) -> Callable[[list[Array]], list[Array]]:
        inner = Graph(region.key, region.inputs, region.outputs, region.nodes)

        def run(arrays: list[Array]) -> list[Array]:
            given = dict(zip((v.name for v in region.inputs), arrays, strict=True))
            return list(interpret(inner, given).values())

        return run

    given = {b.name: feeds[v.name] for b, v in zip(module.inputs, graph.inputs, strict=True)}
    results = interpret_module(module, given, {r.key: external(r) for r in regions})
    got = [results[b.name] for b in module.outputs]
    for (name, want), array in zip(interpret(graph, feeds).items(), got, strict=True):
        np.testing.assert_allclose(array, want, rtol=1e-4, atol=1e-5, err_msg=name)

    bodies = [f.body for f in module.funcs]
    spelled = [b.name for f in bodies for b in blocks(f)] + [n.var.name for f in bodies for n in loops(f)]
    spelled += [it.var.name for f in bodies for b in blocks(f) for it in b.iters]
    assert len(spelled) == len(set(spelled))
    buffers = {*module.inputs, *module.outputs, *module.temps, *(c.buffer for c in module.constants)}
    buffers.update(b for f in module.funcs for b in f.locals)
    assert len({b.name for b in buffers}) == len(buffers)
    assert all(name.isidentifier() for name in [*spelled, *(b.name for b in buffers)])
    assert all(set(c.args) <= buffers for c in calls(module.program) if hasattr(c, "args"))
    return module


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


def test_nodes_that_do_nothing_go() -> None:
    b = GraphBuilder()
    v = x = b.input("x", f32(2, 3))
    one, zero = b.constant("one", np.array(1, np.float32)), b.constant("zero", np.zeros((1, 3), np.float32))
    for op in (Identity(), Cast(F32), Expand((2, 3)), Reshape((2, 3)), Transpose((0, 1)), Clip(), Concat(1)):
        v = b.apply(op, v)
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


# ---------------------------------------------------------------------------------------------------- group


def test_convolution_takes_residual_and_activation() -> None:
    b = GraphBuilder()
    x = b.input("x", f32(1, 3, 5, 5))
    w = b.constant("w", floats(3, 3, 3, 3))
    window = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    first = b.apply(Relu(), b.apply(Conv(window), x, w))
    second = b.apply(Conv(window), first, w)
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


def test_attention_is_seven_kernels() -> None:
    """Transposes that keep rows are stored by the producer; the one that does not is read by the consumer."""
    graph = attention()
    assert groups(graph) == [
        "MatMul Add Reshape Transpose",
        "MatMul Add Reshape Transpose",
        "MatMul Add Reshape",
        "Transpose MatMul Mul",
        "Softmax",
        "MatMul Transpose Reshape",
        "MatMul Add",
    ]
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
    assert [f.name for f in module.funcs] == ["k0_relu", "k1_copy", "k2_copy", "k3_copy"]


def test_scalars_and_empty_tensors() -> None:
    b = GraphBuilder()
    x, s, empty = b.input("x", f32(3)), b.input("s", f32()), b.input("e", f32(0, 2))
    total = b.apply(Add(), b.apply(ReduceSum((0,), keep=False), x), s)
    module = check_lowered(b.finish(total, b.apply(Relu(), empty)))
    assert len(module.funcs) == 1 and [o.shape for o in module.outputs] == [(), (0, 2)]


def test_a_contraction_over_nothing_is_refused_unless_it_folds() -> None:
    b = GraphBuilder()
    x, y = b.input("x", f32(2, 0)), b.input("y", f32(0, 3))
    graph = b.finish(b.apply(MatMul(), x, y))
    with pytest.raises(UserError, match="reduces an axis without elements"):
        lower(graph)
    check_lowered(check_pass(graph, prepare))


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
    region = make_region(graph, "npu", tuple(n for n in graph.nodes if isinstance(n.op, MatMul | Exp)))
    assert groups(graph, region) == ["Relu", "Transpose", "npu", "Sub Relu"]
    module = check_lowered(graph, region)
    assert len(module.funcs) == 3


def test_lowering_attention_keeps_the_order_of_inputs_and_outputs() -> None:
    graph = attention()
    module = lower(graph)
    assert [b.name for b in module.inputs] == ["x"]
    assert [f.name.split("_")[0] for f in module.funcs] == [f"k{i}" for i in range(7)]

"""Attention: chains of two MatMuls and a softmax are found, become one Func, and are computed block of rows by block
of rows, or apart.
"""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
from graph_cases import check_lowered, check_pass, f32, groups, names
from native import BEST, every_target, run_native
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tilewright.families.chain.space import ChainSpace
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph, Value
from tilewright.graph.passes import prepare
from tilewright.graph.passes.attention import contraction_chains, prepare_attention
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.passes.lower import lower_graph
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Scope
from tilewright.ops.core.activation import Relu
from tilewright.ops.core.arithmetic import Add, Div, Mul
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.logic import Equal, Where
from tilewright.ops.core.movement import Reshape, Transpose
from tilewright.ops.core.norm import LayerNormalization
from tilewright.ops.core.reduce import ReduceMax
from tilewright.ops.core.softmax import Softmax
from tilewright.ops.core.softmax_parts import SoftmaxParts
from tilewright.ops.opdef import Op, TensorType
from tilewright.schedule.trace import replay
from tilewright.search.default import schedule_func, spaces
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.target.target import AVX2, Target
from tilewright.tir.compare import same_func
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func
from tilewright.tir.pipeline import lower_func as pipeline
from tilewright.tir.stmt import Alloc, For, LoopKind, walk_stmts
from tilewright.tir.verify import verify_func

Mask = Callable[[GraphBuilder, Value], Value]


def number(b: GraphBuilder, value: float, dtype: DType = DType.F32) -> Value:
    return b.constant("number", np.array(value, dtype.numpy))


def scaled(b: GraphBuilder, scores: Value) -> Value:
    return b.apply(Mul(), scores, number(b, 0.25, scores.type.dtype))


def attention(
    q: Sequence[int], k: Sequence[int], v: Sequence[int], mask: Mask = scaled, dtype: DType = DType.F32
) -> Graph:
    """softmax(mask(q · kᵀ)) · v, where the last axes of q and k have the same extent."""
    b = GraphBuilder()
    query, key, value = (
        b.input(n, TensorType(dtype, tuple(s))) for n, s in zip("qkv", (q, k, v), strict=True)
    )
    rank = len(k)
    turned = b.apply(Transpose((*range(rank - 2), rank - 1, rank - 2)), key)
    scores = mask(b, b.apply(MatMul(), query, turned))
    weights = b.apply(Softmax((len(scores.shape) - 1,)), scores)
    return b.finish(b.apply(MatMul(), weights, value))


def func_of(graph: Graph) -> Func:
    (func,) = lower_graph(prepare(graph)).funcs
    return func


def space_of(func: Func, target: Target = AVX2) -> ChainSpace:
    found = spaces(func, target)[0]
    assert isinstance(found, ChainSpace)
    return found


def feeds(graph: Graph, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {v.name: rng.standard_normal(v.shape).astype(v.type.dtype.numpy) for v in graph.inputs}


def exactly(graph: Graph, given: dict[str, Array]) -> Array:
    """In float64 throughout: every op's reference takes what it is given."""
    wide = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in given.items()}
    constants = {v: a.astype(np.float64) if a.dtype.kind == "f" else a for v, a in graph.constants.items()}
    known: dict[Value, Array] = {v: wide[v.name] for v in graph.inputs} | constants
    for n in graph.nodes:
        known.update(zip(n.outputs, n.op.reference([known[v] for v in n.inputs]), strict=True))
    return known[graph.outputs[0]]


def given(func: Func, graph: Graph, arrays: dict[str, Array]) -> list[Array]:
    """What the Func takes, in its order: inputs of the graph, and constants."""
    known = {v.name: a for v, a in graph.constants.items()} | arrays
    return [known[p.name] for p in func.params if p not in func.outputs]


def check(graph: Graph, target: Target = BEST, **special: Array) -> Func:
    """The schedule of the only Func, which native code holds to 1e-5 of the largest element."""
    func = func_of(graph)
    s = schedule_func(func, target)
    verify_func(s.func)
    arrays = feeds(graph) | special
    with np.errstate(all="ignore"):
        want = exactly(graph, arrays)
    (got,) = run_native(s.func, given(func, graph, arrays), target)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    most = np.abs(want[np.isfinite(want)]).max(initial=1e-30)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * most)
    return s.func


# -------------------------------------------------------------------------------------------------------- what is found


def test_one_group_from_the_first_product_to_the_last() -> None:
    graph = prepare(attention((2, 3, 8, 4), (2, 3, 8, 4), (2, 3, 8, 6)))
    assert groups(graph) == ["Transpose MatMul Mul SoftmaxParts MatMul Mul"]
    check_lowered(graph)


def test_the_product_is_scaled_instead_of_the_weights() -> None:
    graph = attention((2, 8, 4), (2, 8, 4), (2, 8, 6))
    after = eliminate_dead(check_pass(graph, prepare_attention))
    assert names(after) == ["Transpose", "MatMul", "Mul", "SoftmaxParts", "MatMul", "Mul"]


def test_factors_of_queries_and_keys_become_one_of_the_scores() -> None:
    b = GraphBuilder()
    q, k, v = (b.input(n, f32(2, 8, 4)) for n in "qkv")
    turned = b.apply(Transpose((0, 2, 1)), b.apply(Div(), k, number(b, 4.0)))
    scores = b.apply(MatMul(), b.apply(Mul(), number(b, 0.5), q), turned)
    graph = b.finish(b.apply(MatMul(), b.apply(Softmax((2,)), scores), v))
    after = eliminate_dead(check_pass(graph, prepare_attention))
    assert names(after) == ["Transpose", "MatMul", "Mul", "SoftmaxParts", "MatMul", "Mul"]
    factors = [a for c, a in after.constants.items() if any(c in n.inputs for n in after.nodes)]
    np.testing.assert_array_equal(factors, [0.125])


def test_weights_that_others_need_are_computed_apart() -> None:
    b = GraphBuilder()
    q, k, v = b.input("q", f32(8, 4)), b.input("k", f32(4, 8)), b.input("v", f32(8, 4))
    weights = b.apply(Softmax((1,)), b.apply(MatMul(), q, k))
    graph = b.finish(b.apply(MatMul(), weights, v), weights)
    assert not contraction_chains(graph)
    assert prepare_attention(graph) is graph
    assert groups(graph) == ["MatMul", "Softmax", "MatMul"]


@pytest.mark.parametrize(
    ("op", "rows"),
    [(Softmax((0,)), 8), (Softmax((1,)), 1), (Relu(), 8)],
    ids=["columns", "one row", "nothing reduced"],
)
def test_what_is_no_chain(op: Op, rows: int) -> None:
    b = GraphBuilder()
    q, k, v = b.input("q", f32(rows, 4)), b.input("k", f32(4, 8)), b.input("v", f32(8, 4))
    weights = b.apply(op, b.apply(MatMul(), q, k))
    assert not contraction_chains(b.finish(b.apply(MatMul(), weights, v)))


def divided(b: GraphBuilder, x: Value) -> Value:
    return b.apply(Div(), x, b.apply(ReduceMax((1,)), x))


def normed(b: GraphBuilder, x: Value) -> Value:
    return b.apply(
        LayerNormalization(1, 1e-5, True, 1, DType.F32), x, b.input("gain", f32(40)), b.input("bias", f32(40))
    )


def log_weights(b: GraphBuilder, x: Value) -> Value:
    return b.apply(Softmax((1,), log=True), x)


@pytest.mark.parametrize("between", [divided, normed, log_weights])
def test_rows_of_any_reduction_are_between_contractions(between: Mask) -> None:
    b = GraphBuilder()
    q, k, v = b.input("q", f32(24, 4)), b.input("k", f32(4, 40)), b.input("v", f32(40, 12))
    graph = b.finish(b.apply(MatMul(), between(b, b.apply(MatMul(), q, k)), v))
    assert len(contraction_chains(graph)) == len(groups(graph)) == 1
    check(graph)


def test_values_made_from_the_scores_are_no_values() -> None:
    b = GraphBuilder()
    q, k = b.input("q", f32(8, 4)), b.input("k", f32(4, 8))
    scores = b.apply(MatMul(), q, k)
    graph = b.finish(b.apply(MatMul(), b.apply(Softmax((1,)), scores), b.apply(Relu(), scores)))
    assert not contraction_chains(graph)


def test_half_precision_stays_as_it_is() -> None:
    graph = attention((2, 8, 4), (2, 8, 4), (2, 8, 6), dtype=DType.F16)
    assert prepare_attention(graph) is graph
    assert groups(graph) == ["Transpose MatMul Mul", "Softmax", "MatMul"]


def test_what_is_known_of_empty_rows_belongs_to_it() -> None:
    """Rows without any key give zeros: their largest score is looked at, and the weights are replaced."""
    b = GraphBuilder()
    q, k, v = b.input("q", f32(9, 4)), b.input("k", f32(4, 8)), b.input("v", f32(8, 5))
    mask = np.where(np.arange(9)[:, None] * np.ones(8) % 3 == 0, -np.inf, 0).astype(np.float32)
    logits = b.apply(Add(), b.apply(MatMul(), q, k), b.constant("mask", mask))
    is_empty = b.apply(Equal(), b.apply(ReduceMax((1,)), logits), number(b, -np.inf))
    weights = b.apply(Where(), is_empty, number(b, 0.0), b.apply(Softmax((1,)), logits))
    graph = b.finish(b.apply(MatMul(), weights, v))
    assert len(groups(prepare(graph))) == 1
    check(graph)


@pytest.mark.parametrize(
    ("op", "domain", "shape", "attributes"),
    [
        ("Attention", "", (1, 4, 12, 8), {"is_causal": 1}),
        ("MultiHeadAttention", "com.microsoft", (1, 12, 32), {"num_heads": 4}),
    ],
)
def test_operators_of_models(op: str, domain: str, shape: Sequence[int], attributes: dict[str, int]) -> None:
    """They are imported as the nodes that compute them, and these are found."""
    node = helper.make_node(op, ["q", "k", "v"], ["y"], domain=domain, **attributes)
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "qkv"]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", given, [result]), opset_imports=opsets)
    assert len(lower_graph(prepare(load_graph(model))).funcs) == 1


# ------------------------------------------------------------------------------------------------------- what it means

SHAPES: dict[str, tuple[Sequence[int], Sequence[int], Sequence[int]]] = {
    "plain": ((16, 8), (24, 8), (24, 16)),
    "heads": ((2, 3, 32, 16), (2, 3, 32, 16), (2, 3, 32, 16)),
    "odd": ((3, 37, 5), (3, 29, 5), (3, 29, 11)),
    "prime": ((1, 2, 31, 9), (1, 2, 29, 9), (1, 2, 29, 13)),
    "few rows": ((2, 3, 40), (2, 50, 40), (2, 50, 24)),
    "two": ((2, 2), (2, 2), (2, 2)),
    "shared keys": ((4, 30, 8), (1, 20, 8), (1, 20, 8)),
    "shared queries": ((1, 30, 8), (4, 20, 8), (4, 20, 8)),
    "shared values": ((3, 30, 8), (3, 20, 8), (20, 8)),
    "many rows": ((150, 8), (33, 8), (33, 8)),
    "a page": ((2, 9, 8), (2, 1024, 8), (2, 1024, 8)),
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_numbers(shapes: tuple[Sequence[int], Sequence[int], Sequence[int]]) -> None:
    check(attention(*shapes))


@every_target
def test_numbers_on_every_target(target: Target) -> None:
    check(attention((2, 20, 8), (2, 21, 8), (2, 21, 10)), target)


def test_numbers_in_double_precision() -> None:
    check(attention((2, 30, 8), (2, 20, 8), (2, 20, 12), dtype=DType.F64))


def causal(b: GraphBuilder, scores: Value) -> Value:
    rows, keys = scores.shape[-2:]
    seen = b.constant("seen", np.tril(np.ones((rows, keys), np.bool_)))
    return b.apply(Where(), seen, scaled(b, scores), number(b, -np.inf))


def padded(b: GraphBuilder, scores: Value) -> Value:
    """The last keys are left out."""
    penalty = np.where(np.arange(scores.shape[-1]) < scores.shape[-1] - 3, 0, -np.inf)
    return b.apply(Add(), scaled(b, scores), b.constant("penalty", penalty.astype(np.float32)[None]))


def hidden(b: GraphBuilder, scores: Value) -> Value:
    """Some rows see no key at all: softmax of nothing but -inf is NaN."""
    penalty = np.where(np.arange(scores.shape[-2]) % 4 == 1, -np.inf, 0).astype(np.float32)
    return b.apply(Add(), scores, b.constant("penalty", penalty[:, None]))


def unmasked(b: GraphBuilder, scores: Value) -> Value:
    return scores


@pytest.mark.parametrize("mask", [causal, padded, hidden, unmasked])
def test_masks(mask: Mask) -> None:
    check(attention((2, 2, 30, 8), (2, 2, 30, 8), (2, 2, 30, 8), mask))


def test_large_scores_do_not_overflow() -> None:
    shape = (2, 24, 8)
    rng = np.random.default_rng(1)
    check(attention(shape, shape, shape, unmasked), q=(rng.standard_normal(shape) * 1e3).astype(np.float32))


def test_heads_that_come_and_go_side_by_side() -> None:
    """[tokens, heads · size] in and out: transposes are folded into reading and storing."""
    b = GraphBuilder()
    q, k, v = (b.input(n, f32(40, 3 * 16)) for n in "qkv")

    def heads(x: Value, *perm: int) -> Value:
        return b.apply(Transpose(perm), b.apply(Reshape((40, 3, 16)), x))

    scores = scaled(b, b.apply(MatMul(), heads(q, 1, 0, 2), heads(k, 1, 2, 0)))
    out = b.apply(MatMul(), b.apply(Softmax((2,)), scores), heads(v, 1, 0, 2))
    graph = b.finish(b.apply(Relu(), b.apply(Reshape((40, 48)), b.apply(Transpose((1, 0, 2)), out))))
    first, *_ = lower_graph(prepare(graph)).funcs
    assert next(n for n in groups(prepare(graph)) if "SoftmaxParts" in n).endswith("Transpose Reshape")
    assert isinstance(spaces(first, AVX2)[0], ChainSpace)


def test_a_block_without_tiles_takes_for_ever() -> None:
    """Evolution mixes the knobs of points: of both MatMuls apart, which have no tiles, and of blocks."""
    space = space_of(func_of(attention((2, 40, 16), (2, 40, 16), (2, 40, 16))))
    points, _ = space.ranked()
    block = points[points[:, 0] > 0][:1]
    assert np.isfinite(space.cost(block)).all()
    for knob in ("first_rows", "first_vectors", "second_rows", "second_vectors"):
        mixed = block.copy()
        mixed[0, [k.name for k in space.knobs].index(knob)] = 0
        assert np.isinf(space.cost(mixed)).all()


# ------------------------------------------------------------------------------------------------------- how it is made


def test_points_of_other_figures_can_be_built() -> None:
    """Which tiles are the best depends on the machine; a trace that has others is not refused."""
    space = space_of(func_of(attention((2, 64, 16), (2, 64, 16), (2, 64, 16))))
    best = space.ranked()[0][0]
    others = [p for p in _all_tiles(best) if not (space.points() == p).all(axis=1).any()]
    assert sum(space.has_point(p) for p in others) > 3
    assert all(space.has_point(p) for p in space.points())
    for knob, value in (
        ("block", 7),
        ("keys", 3),
        ("first_rows", 99),
        ("second_pack", 2),
        ("first_vectors", 0),
    ):
        wrong = best.copy()
        wrong[[k.name for k in space.knobs].index(knob)] = value
        assert not space.has_point(wrong), knob


def _all_tiles(point: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The point with other tiles of its first MatMul."""
    found: list[NDArray[np.int64]] = []
    for rows, vectors in product(range(1, 7), range(1, 4)):
        other = point.copy()
        other[2:4] = rows, vectors
        found.append(other)
    return found


def test_scores_are_never_there_as_a_whole(sound: Callable[[Func], Func]) -> None:
    func = func_of(attention((4, 96, 16), (4, 96, 16), (4, 96, 16)))
    space = space_of(func)
    point = next(p for p in space.ranked()[0] if 0 < p[0] < 96)
    s = space.build(space.decisions(point))
    scheduled = sound(s.module.funcs[0])
    assert same_func(replay(single(func), s.trace).funcs[0], scheduled)
    kernel = pipeline(scheduled)[0][-1].func
    kept = [
        n.buffer
        for n in walk_stmts(kernel.body)
        if isinstance(n, Alloc) and n.buffer.scope is not Scope.REGISTER
    ]
    assert kept and max(b.size for b in kept) <= int(point[0]) * 96
    assert isinstance(kernel.body, For) and kernel.body.kind is LoopKind.PARALLEL


def test_every_size_of_blocks_means_the_same() -> None:
    graph = attention((2, 23, 4), (2, 20, 4), (2, 20, 9))
    func = func_of(graph)
    space = space_of(func)
    arrays = given(func, graph, feeds(graph))
    (want,) = run_func(func, *arrays)
    chosen = {int(p[0]): p for p in space.points()}
    assert set(chosen) == {0, 12, 23}
    for point in chosen.values():
        s = space.build(space.decisions(point))
        verify_func(s.module.funcs[0])
        (got,) = run_func(s.module.funcs[0], *arrays)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_few_rows_sum_up_values_in_chunks_of_keys() -> None:
    """Eight heads that share keys: what they mix of them comes from memory once."""
    graph = attention((1, 8, 128), (1, 8192, 128), (1, 8192, 128))
    space = space_of(func_of(graph), BEST)
    block, keys = space.ranked()[0][0][:2]
    assert not block and 0 < keys < 8192
    check(graph)


def test_costs_are_of_all_points() -> None:
    space = space_of(func_of(attention((12, 128, 64), (12, 128, 64), (12, 128, 64))))
    points, costs = space.ranked()
    assert np.isfinite(costs).all() and len(points) == len(space.points())
    np.testing.assert_allclose(space.cost(points[::-1]), costs[::-1])
    assert points[0][0] > 0  # blocks of rows are the cheapest


def test_parts_of_a_softmax() -> None:
    for sample in SoftmaxParts.samples(np.random.default_rng(0)):
        b = GraphBuilder()
        node = b.add(sample.op, [b.input("x", TensorType.of(np.asarray(sample.inputs[0])))])
        (func,) = lower_graph(b.finish(*node.outputs)).funcs
        with np.errstate(all="ignore"):
            got, want = run_func(func, *sample.inputs), sample.op.reference(sample.inputs)
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, np.asarray(w, np.float64), rtol=1e-6)


def test_parts_of_a_softmax_of_halves() -> None:
    with pytest.raises(UserError, match="only f32 and f64"):
        SoftmaxParts(0).infer([TensorType(DType.F16, (4,))])

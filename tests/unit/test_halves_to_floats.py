"""Graphs of halves in float32: the same numbers, rounded at the same places."""

import numpy as np
import pytest
from graph_cases import names

from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph, Value
from tilewright.graph.interp import interpret_graph
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.passes.halves_to_floats import halves_to_floats
from tilewright.graph.verify import verify_graph
from tilewright.ir.dtype import DType
from tilewright.ops.core.activation import Clip, Relu
from tilewright.ops.core.arithmetic import Add, Mul
from tilewright.ops.core.bitcast import BitCast
from tilewright.ops.core.cast import Cast
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.conv import Conv
from tilewright.ops.core.gather import Gather
from tilewright.ops.core.movement import Transpose
from tilewright.ops.core.softmax import Softmax
from tilewright.ops.core.window import Window
from tilewright.ops.opdef import TensorType

RNG = np.random.default_rng(7)
BOTH = pytest.mark.parametrize("half", [DType.F16, DType.BF16])


def array(half: DType, *shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(half.numpy)


def widened(graph: Graph) -> Graph:
    after = eliminate_dead(halves_to_floats(graph))
    verify_graph(after)
    return after


def check_same(graph: Graph, after: Graph) -> None:
    """Up to sums that are a tie in one precision and none in the other."""
    feeds = {v.name: array(v.type.dtype, *v.shape) for v in graph.inputs}
    want, found = (interpret_graph(g, feeds) for g in (graph, after))
    assert want.keys() == found.keys()
    for name, a in want.items():
        b = found[name]
        assert a.dtype == b.dtype
        np.testing.assert_allclose(b.astype(np.float32), a.astype(np.float32), rtol=1e-2, atol=1e-3)
        assert (a == b).mean() > 0.98


def layer(b: GraphBuilder, x: Value, half: DType, k: int, n: int) -> Value:
    total = b.apply(MatMul(), x, b.constant(f"w{n}", array(half, k, n)))
    return b.apply(Relu(), b.apply(Add(), total, b.constant(f"b{n}", array(half, n))))


@BOTH
@pytest.mark.parametrize(("rows", "is_kept"), [(4, True), (64, False)])
def test_a_network_computes_in_floats(half: DType, rows: int, is_kept: bool) -> None:
    b = GraphBuilder()
    h = layer(b, b.input("x", TensorType(half, (rows, 12))), half, 12, 16)
    graph = b.finish(b.apply(Softmax((1,)), layer(b, h, half, 16, 8), name="y"))
    after = widened(graph)
    check_same(graph, after)
    computing = [n for n in after.nodes if not isinstance(n.op, Cast)]
    assert all(v.type.dtype is DType.F32 for n in computing for v in (*n.inputs, *n.outputs))
    # Two sums, what is added to them, and nothing after what only chooses; the result is cast.
    assert names(after).count("RoundTo") == 4
    kept = [c for v, c in after.constants.items() if v.type.dtype is half]
    assert len(kept) == (2 if is_kept else 0)


@BOTH
def test_convolutions_and_bounds(half: DType) -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType(half, (1, 4, 7, 7)))
    window = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    y = b.apply(Conv(window), x, b.constant("w", array(half, 5, 4, 3, 3)))
    inside = b.apply(Clip(0.0, 6.0), y)
    other = b.apply(Clip(0.0, 0.1), y)  # no half: the bound is rounded too
    graph = b.finish(b.apply(Mul(), inside, other, name="y"))
    after = widened(graph)
    check_same(graph, after)
    assert names(after).count("RoundTo") == 2


@BOTH
def test_tables_and_what_has_no_form_in_floats_stay(half: DType) -> None:
    b = GraphBuilder()
    at = b.constant("at", np.array([2, 0]))
    row = b.apply(Gather(0), b.constant("table", array(half, 3, 6)), at)
    x = b.apply(Add(), row, b.input("x", TensorType(half, (2, 6))))
    bits = b.apply(BitCast(DType.I16), b.apply(Transpose((1, 0)), x), name="bits")
    graph = b.finish(bits, b.apply(Cast(DType.F32), x, name="y"))
    after = widened(graph)
    assert after.constants[next(v for v in after.constants if v.name == "table")].dtype == half.numpy
    check_same(graph, after)


@pytest.mark.parametrize("to", [DType.F16, DType.BF16, DType.I32, DType.F32], ids=lambda d: d.value)
@BOTH
def test_casts(half: DType, to: DType) -> None:
    b = GraphBuilder()
    x = b.apply(Cast(half), b.input("x", TensorType(DType.F32, (3, 5))))
    y = b.apply(Cast(to), b.apply(Add(), x, x))
    graph = b.finish(b.apply(Add(), y, y, name="y"), b.apply(Cast(to), x, name="z"))
    check_same(graph, widened(graph))


def test_floats_stay_as_they_are() -> None:
    b = GraphBuilder()
    graph = b.finish(b.apply(Relu(), b.input("x", TensorType(DType.F32, (3,))), name="y"))
    assert halves_to_floats(graph) is graph

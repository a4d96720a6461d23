"""Contractions that become one Func with what follows them: where the estimate says that it pays, and only there."""

import numpy as np
import pytest
from graph_cases import check_lowered, f32
from native import AVX512

from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph
from tilewright.graph.passes.lower import lower_graph
from tilewright.ops.core.activation import Relu
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.softmax import Softmax
from tilewright.schedule.steps.join_funcs import JoinFuncs
from tilewright.search.default import choose_schedule
from tilewright.search.join import join_funcs


def layers(rows: int, size: int, wide: int, *, both_read: bool = False) -> Graph:
    rng = np.random.default_rng(0)
    b = GraphBuilder("layers")
    x = b.input("x", f32(rows, size))
    one = b.constant("one", rng.standard_normal((size, wide), np.float32))
    two = b.constant("two", rng.standard_normal((wide, size), np.float32))
    h = b.apply(Relu(), b.apply(MatMul(), x, one))
    y = b.apply(MatMul(), h, two)
    return b.finish(y, h) if both_read else b.finish(y)


def joins(graph: Graph) -> tuple[JoinFuncs, ...]:
    return join_funcs(lower_graph(graph), AVX512)[1]


def test_layers_whose_columns_stay_near_are_joined() -> None:
    module, steps = join_funcs(lower_graph(layers(65536, 16, 64)), AVX512)
    assert len(steps) == 1
    (func,) = module.funcs
    chosen = choose_schedule(func, AVX512, frozenset(c.buffer.name for c in module.constants))
    assert chosen.family == "chain" and chosen.decisions["block"]


@pytest.mark.parametrize(
    "graph",
    [layers(128, 768, 3072), layers(65536, 16, 64, both_read=True)],
    ids=["wide", "read by others"],
)
def test_others_are_not(graph: Graph) -> None:
    assert joins(graph) == ()


def test_a_softmax_behind_a_contraction_is_right_joined_or_not() -> None:
    b = GraphBuilder("head")
    x = b.input("x", f32(40, 16))
    w = b.constant("w", np.random.default_rng(0).standard_normal((16, 70)).astype(np.float32))
    graph = b.finish(b.apply(Softmax((1,)), b.apply(MatMul(), x, w)))
    check_lowered(graph)
    assert joins(graph) == ()

"""pool_first: an average pool moves before a convolution of one tap, if that is the same and less work."""

import pytest
from graph_cases import check_pass, f32, floats, names

from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.passes.pool_first import pool_first
from tilewright.ops.core.activation import Relu
from tilewright.ops.core.conv import Conv
from tilewright.ops.core.pool import AveragePool
from tilewright.ops.core.window import Window

ONE = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
HALF = Window((2, 2), (2, 2), (1, 1), (0, 0), (0, 0))
PADDED = Window((3, 3), (2, 2), (1, 1), (1, 1), (1, 1))


def network(pool: AveragePool, conv: Window = ONE, *, bias: bool = True, group: int = 1) -> Graph:
    b = GraphBuilder()
    x, w = b.input("x", f32(2, 6, 7, 9)), b.constant("w", floats(4, 6 // group, *conv.kernel))
    rest = [b.constant("b", floats(4))] if bias else []
    return b.finish(b.apply(pool, b.apply(Conv(conv, group), x, w, *rest)))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(
    "pool",
    [
        AveragePool(HALF),
        AveragePool(PADDED),
        AveragePool(Window((2, 2), (2, 2), (1, 1), (0, 0), (0, 0), ceil=True)),
    ],
    ids=["half", "padded", "ceil"],
)
def test_the_pool_comes_first(pool: AveragePool, group: int, bias: bool) -> None:
    graph = network(pool, bias=bias, group=group)
    assert names(eliminate_dead(check_pass(graph, pool_first))) == ["AveragePool", "Conv"]


def test_zeros_that_count_change_a_bias_and_nothing_else() -> None:
    pool = AveragePool(PADDED, include_pad=True)
    assert pool_first(graph := network(pool)) is graph
    assert names(eliminate_dead(check_pass(network(pool, bias=False), pool_first))) == ["AveragePool", "Conv"]


@pytest.mark.parametrize(
    ("pool", "conv"),
    [
        (HALF, Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))),
        (HALF, Window((1, 1), (2, 2), (1, 1), (0, 0), (0, 0))),
        (HALF, Window((1, 1), (1, 1), (1, 1), (1, 1), (1, 1))),
        (Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1)), ONE),
    ],
    ids=["3x3", "strides", "padding", "as many pixels"],
)
def test_what_is_another_sum_or_more_work_stays(pool: Window, conv: Window) -> None:
    assert pool_first(graph := network(AveragePool(pool), conv)) is graph


def test_a_convolution_that_others_read_stays() -> None:
    b = GraphBuilder()
    x, w = b.input("x", f32(1, 6, 8, 8)), b.constant("w", floats(4, 6, 1, 1))
    c = b.apply(Conv(ONE), x, w)
    assert pool_first(graph := b.finish(b.apply(AveragePool(HALF), c), b.apply(Relu(), c))) is graph
    assert pool_first(graph := b.finish(b.apply(AveragePool(HALF), c), c)) is graph

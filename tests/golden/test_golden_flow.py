"""What flow graphs and their plans look like. Run with `--bless` to write the texts anew, and read the difference."""

from collections.abc import Callable

import pytest

from tests.unit.test_gir import arg_max, layer_norm, softmax
from tilewright.gir.compare import same_flow_graph
from tilewright.gir.from_func import flow_graph_of
from tilewright.gir.parser import parse_flow
from tilewright.gir.plan import Plan, find_lanes
from tilewright.gir.printer import print_flow_graph
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, UnaryOp, as_index, unary
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func


def group_norm_gelu(channels: int, n: int) -> Func:
    """Of groups of four channels."""
    f = FuncBuilder("group_norm_gelu")
    x, scale = f.param("x", (channels, n), DType.F32), f.param("scale", (channels,), DType.F32)
    groups, count = channels // 4, float(4 * n)
    total = f.reduce("total", (groups,), (4, n), lambda g, c, k: x[g * 4 + c, k])
    mean = f.compute("mean", (groups,), lambda g: total[g] / count)
    squares = f.reduce(
        "squares",
        (groups,),
        (4, n),
        lambda g, c, k: (x[g * 4 + c, k] - mean[g]) * (x[g * 4 + c, k] - mean[g]),
    )
    factor = f.compute("factor", (groups,), lambda g: unary(UnaryOp.RSQRT, squares[g] / count + 1e-5))
    four = as_index(4)

    def normal(i: Expr, j: Expr) -> Expr:
        return (x[i, j] - mean[i // four]) * factor[i // four] * scale[i]

    return f.finish(f.compute("y", (channels, n), lambda i, j: unary(UnaryOp.GELU, normal(i, j))))


@pytest.mark.parametrize("make", [softmax, layer_norm, group_norm_gelu, arg_max], ids=lambda f: f.__name__)
def test_graph_and_plan(make: Callable[[int, int], Func], golden: Callable[[str, str], None]) -> None:
    graph = flow_graph_of(make(8, 100))
    plan = Plan(find_lanes(graph), 32, 2, frozenset(n.name for n in graph.read_later))
    text = print_flow_graph(graph, plan)
    read, read_plan = parse_flow(text)
    assert same_flow_graph(read, graph) and read_plan == plan
    golden(f"{make.__name__}.flow", text)

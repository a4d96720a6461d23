"""Windows and predicates in flow graphs: which rewrites there are, what runs natively, and what is refused."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.gir.flow_graph import FlowGraph
from tilewright.gir.from_windows import window_graph_of
from tilewright.gir.interp import run_flow_graph
from tilewright.gir.lower import lower_flow_graph
from tilewright.gir.parser import parse_flow_graph
from tilewright.gir.plan import Plan
from tilewright.gir.stages import WindowPlan, lower_stages
from tilewright.gir.windows import find_window, rewritten
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr
from tilewright.ops.core.pool import AveragePool, MaxPool
from tilewright.ops.core.window import Window
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps.stream_windows import StreamWindows
from tilewright.search.default import choose_schedule
from tilewright.search.layouts import lay_out
from tilewright.support.arrays import Array
from tilewright.support.errors import ScheduleError, UserError
from tilewright.target.names import resolve_target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func

F32 = DType.F32
POOL = """\
@flow
def pool(x: f32[3, 6, 7], y: out(f32[3, 6, 7])):
    c, h, w, k, l = axes(3, 6, 7, 3, 3)
    rows(c, h, w)
    y[c, h, w] = max[k, l](x[c, h + k - 1, w + l - 1], where=0 < h + k and h + k < 7 and 0 < w + l and w + l < 8)
"""


def pooled(
    op: type[MaxPool | AveragePool], size: int, window: int, stride: int = 1, dtype: DType = F32
) -> Func:
    b = FuncBuilder("pooled")
    x = b.param("x", (1, 4, size, size), dtype)
    side = (window // 2,) * 2
    (y,) = op(Window((window, window), (stride, stride), (1, 1), side, side)).compute(b, [x], "y")
    return b.finish(y)


def image(size: int, dtype: DType = F32) -> Array:
    x = np.random.default_rng(0).standard_normal((1, 4, size, size)) * 20
    return x.astype(dtype.numpy)


def reads(graph: FlowGraph) -> int:
    """Values that folds take up for all results."""
    return sum(graph.size((*n.axes, *n.over)) for n in graph.nodes)


def test_a_predicate_is_read_and_written() -> None:
    graph = parse_flow_graph(POOL)
    assert str(graph) == POOL
    x = np.arange(3 * 6 * 7, dtype=np.float32).reshape(3, 6, 7)
    (y,) = run_flow_graph(graph, x)
    assert y[0, 0, 0] == x[0, 1, 1]
    assert y[2, 5, 6] == x[2, 5, 6]


def test_another_word_than_where_is_refused() -> None:
    with pytest.raises(UserError, match="a fold takes a value and `where`"):
        parse_flow_graph(POOL.replace("where=", "when="))


def test_a_window_is_found_by_what_it_reads() -> None:
    graph = parse_flow_graph(POOL.replace("w + l", "w * 2 + l"))
    (fold,) = graph.nodes
    found = find_window(graph, fold, fold.over[1])
    assert found is not None
    assert (found.position.name, found.stride, found.dilation) == ("w", 2, 1)


def test_what_depends_on_more_than_the_place_is_no_window() -> None:
    """A filter has another factor for each element of the window."""
    text = POOL.replace("x: f32[3, 6, 7]", "x: f32[3, 6, 7], f: f32[3]").replace(
        "- 1], where", "- 1] * f[l], where"
    )
    graph = parse_flow_graph(text)
    (fold,) = graph.nodes
    assert find_window(graph, fold, fold.over[0]) is not None
    assert find_window(graph, fold, fold.over[1]) is None


def test_rewrites_take_up_fewer_values() -> None:
    graph = window_graph_of(pooled(MaxPool, 40, 13))
    apart = rewritten(graph, separate=True, halve=0)
    pairs = rewritten(graph, separate=True, halve=2)
    assert reads(apart) * 5 < reads(graph)
    assert reads(pairs) * 4 < reads(apart) * 3


def test_only_maxima_are_halved() -> None:
    """A sum would take up what two windows share twice."""
    graph = rewritten(window_graph_of(pooled(AveragePool, 20, 7)), separate=True, halve=0)
    assert rewritten(graph, separate=False, halve=2).nodes == graph.nodes


@pytest.mark.parametrize("op", [MaxPool, AveragePool])
@pytest.mark.parametrize(("window", "stride"), [(3, 1), (3, 2), (5, 1), (2, 2), (13, 3)])
@pytest.mark.parametrize("halve", [0, 1, 2])
def test_native_code_agrees(op: type[MaxPool | AveragePool], window: int, stride: int, halve: int) -> None:
    func = pooled(op, 21, window, stride)
    made = lower_stages(rewritten(window_graph_of(func), separate=True, halve=halve), WindowPlan(8, 2))
    x = image(21)
    (want,) = run_func(func, x)
    np.testing.assert_allclose(run_func(made, x)[0], want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(tw.build(made)(x), run_func(made, x)[0])


@pytest.mark.parametrize("dtype", [DType.I8, DType.U8, DType.F64])
def test_elements_of_any_type(dtype: DType) -> None:
    func = pooled(MaxPool, 20, 5, dtype=dtype)
    made = lower_stages(rewritten(window_graph_of(func), separate=True, halve=0), WindowPlan(16, 2))
    x = image(20, dtype)
    np.testing.assert_array_equal(tw.build(made)(x), run_func(func, x)[0])


@pytest.mark.parametrize("halve", [0, 1, 2])
def test_nan_wins_wherever_it_is(halve: int) -> None:
    func = pooled(MaxPool, 20, 5)
    made = lower_stages(rewritten(window_graph_of(func), separate=True, halve=halve), WindowPlan(16, 2))
    x = image(20)
    x[0, 0, 7, 9], x[0, 1, 0, 0], x[0, 2, 19, 19] = np.nan, -np.nan, np.nan
    x[0, 3] = -np.inf
    np.testing.assert_array_equal(tw.build(made)(x), run_func(func, x)[0])


def test_the_step_takes_a_padding_up_with_the_windows() -> None:
    func = pooled(MaxPool, 20, 5)
    s = Schedule(func, debug=True)
    s.apply(StreamWindows(("y_pad", "y"), 16, 2, 20, 1, separate=True))
    assert "y_pad" not in str(s.func)
    x = image(20)
    np.testing.assert_array_equal(tw.build(s)(x), run_func(func, x)[0])


@pytest.mark.parametrize(("window", "halve"), [(3, 0), (5, 0), (13, 2)])
def test_windows_are_separated_by_cost_and_long_ones_halved(window: int, halve: int) -> None:
    chosen = choose_schedule(pooled(MaxPool, 20, window), resolve_target("x86-64-v3"))
    assert chosen.family == "stream"
    assert chosen.decisions["separate"] == 1
    assert chosen.decisions["halve"] == halve


def test_strides_of_windows_need_no_layout_of_their_own() -> None:
    """What a convolution has: every other pixel side by side, in a copy with a padding."""
    func = pooled(MaxPool, 20, 3, 2)
    assert lay_out(single(func), {})[1] == ()
    assert choose_schedule(func, resolve_target("x86-64-v3")).family == "stream"


def test_rows_that_do_not_divide_are_refused() -> None:
    graph = rewritten(window_graph_of(pooled(MaxPool, 20, 5)), separate=True, halve=0)
    with pytest.raises(ScheduleError, match="20 rows are not taken 3 at a time"):
        lower_stages(graph, WindowPlan(8, rows=3))


def test_sums_of_whole_rows_have_nothing_in_lanes() -> None:
    """As in a normalisation, where each row has one number."""
    f = FuncBuilder("scaled")
    x = f.param("x", (8, 4, 16), F32)
    total = f.reduce("total", (8, 4), (16,), lambda i, j, k: x[i, j, k] * x[i, j, k])
    func = f.finish(f.compute("y", (8, 4, 16), lambda i, j, k: x[i, j, k] * total[i, j]))
    with pytest.raises(ScheduleError, match="total has one value for each row"):
        lower_stages(window_graph_of(func), WindowPlan(8))


def test_sweeps_refuse_windows() -> None:
    graph = parse_flow_graph(POOL)
    with pytest.raises(ScheduleError, match="has windows or predicates"):
        lower_flow_graph(graph, Plan((graph.nodes[0].axes[2],), 8, 1))


def test_what_computes_before_a_window_is_no_padding() -> None:
    f = FuncBuilder("roots")
    x = f.param("x", (9,), F32)

    def square(i: Expr) -> Expr:
        return x[i] * x[i]

    def pair(i: Expr, k: Expr) -> Expr:
        return t[i + k]

    t = f.compute("t", (9,), square)
    func = f.finish(f.reduce("y", (7,), (3,), pair, "max"))
    with pytest.raises(ScheduleError, match="y reads t at other elements than its own"):
        window_graph_of(func)

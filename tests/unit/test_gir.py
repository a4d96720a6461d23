"""Flow graphs: whatever plan runs them, they compute what the blocks say."""

from collections.abc import Callable

import numpy as np
import pytest
from native import run_native

from tilewright.gir.from_func import flow_graph_of
from tilewright.gir.lower import lower_flow_graph
from tilewright.gir.movement import added_movement
from tilewright.gir.plan import Plan, find_lanes, result_place
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Scope, UnaryOp, as_index, cast, const, equal, maximum, minimum, select, unary
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import interpret_func, poisoned_array
from tilewright.tir.stmt import PREFETCH, PREFETCH_ROW, LoopKind, loops

F32 = DType.F32


def softmax(rows: int, n: int) -> Func:
    f = FuncBuilder("softmax")
    x = f.param("x", (rows, n), F32)
    m = f.reduce("m", (rows,), (n,), lambda i, k: x[i, k], "max")
    e = f.compute("e", (rows, n), lambda i, j: unary(UnaryOp.EXP, x[i, j] - m[i]))
    s = f.reduce("s", (rows,), (n,), lambda i, k: e[i, k], "sum")
    return f.finish(f.compute("y", (rows, n), lambda i, j: e[i, j] / s[i]))


def log_sum_exp(rows: int, n: int) -> Func:
    f = FuncBuilder("log_sum_exp")
    x = f.param("x", (rows, n), F32)
    m = f.reduce("m", (rows,), (n,), lambda i, k: x[i, k], "max")
    s = f.reduce("s", (rows,), (n,), lambda i, k: unary(UnaryOp.EXP, x[i, k] - m[i]), "sum")
    return f.finish(f.compute("y", (rows,), lambda i: m[i] + unary(UnaryOp.LOG, s[i])))


def layer_norm(rows: int, n: int) -> Func:
    f = FuncBuilder("layer_norm")
    x, g = f.param("x", (rows, n), F32), f.param("g", (n,), F32)
    total = f.reduce("total", (rows,), (n,), lambda i, k: x[i, k], "sum")
    mean = f.compute("mean", (rows,), lambda i: total[i] / float(n))
    squares = f.reduce(
        "squares", (rows,), (n,), lambda i, k: (x[i, k] - mean[i]) * (x[i, k] - mean[i]), "sum"
    )
    scale = f.compute("scale", (rows,), lambda i: unary(UnaryOp.RSQRT, squares[i] / float(n) + 1e-5))
    return f.finish(f.compute("y", (rows, n), lambda i, j: (x[i, j] - mean[i]) * scale[i] * g[j]))


def arg_max(rows: int, n: int) -> Func:
    f = FuncBuilder("arg_max")
    x = f.param("x", (rows, n), F32)
    m = f.reduce("m", (rows,), (n,), lambda i, k: x[i, k], "max")
    far = const((1 << 63) - 1, DType.I64)
    at = f.reduce(
        "at", (rows,), (n,), lambda i, k: select(equal(x[i, k], m[i]), cast(DType.I64, k), far), "min"
    )
    return f.finish(at)


def sum_columns(rows: int, n: int) -> Func:
    f = FuncBuilder("sum_columns")
    x = f.param("x", (rows, n), F32)
    return f.finish(f.reduce("y", (n,), (rows,), lambda j, k: x[k, j]))


def softmax_columns(rows: int, n: int) -> Func:
    f = FuncBuilder("softmax_columns")
    x = f.param("x", (rows, n), F32)
    m = f.reduce("m", (n,), (rows,), lambda j, k: x[k, j], "max")
    e = f.compute("e", (rows, n), lambda i, j: unary(UnaryOp.EXP, x[i, j] - m[j]))
    s = f.reduce("s", (n,), (rows,), lambda j, k: e[k, j], "sum")
    return f.finish(f.compute("y", (rows, n), lambda i, j: e[i, j] / s[j]))


def group_norm(rows: int, n: int) -> Func:
    """Of groups of four channels: rows // 4 of them, whose means are read at a quotient."""
    f = FuncBuilder("group_norm")
    x = f.param("x", (rows, n), F32)
    total = f.reduce("total", (rows // 4,), (4, n), lambda g, c, k: x[g * 4 + c, k], "sum")
    return f.finish(f.compute("y", (rows, n), lambda i, j: x[i, j] - total[i // as_index(4)] / float(4 * n)))


def windows(rows: int, n: int) -> Func:
    """Rows less their sums, in windows of half of each: a window's rows are read at combinations of its iterators."""
    f = FuncBuilder("windows")
    x = f.param("x", (2 * rows, 2, n), F32)
    total = f.reduce("total", (2 * rows, 2), (n,), lambda i, j, k: x[i, j, k])
    return f.finish(
        f.compute(
            "y",
            (2, 2 * rows, n),
            lambda w, p, c: x[w * rows + p // 2, p % 2, c] - total[w * rows + p // 2, p % 2],
        )
    )


PROGRAMS = (softmax, log_sum_exp, layer_norm, arg_max, sum_columns, softmax_columns, group_norm, windows)
ONLINE = (softmax, log_sum_exp, layer_norm, arg_max, softmax_columns)


def inputs(func: Func, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(b.shape).astype(np.float32) * 3 + 5 for b in func.params if b not in func.outputs
    ]


def run(func: Func, args: list[np.ndarray]) -> np.ndarray:
    given = iter(args)
    arrays = {b: poisoned_array(b) if b in func.outputs else next(given) for b in func.params}
    with np.errstate(all="ignore"):
        interpret_func(func, arrays)
    return arrays[func.outputs[0]]


def streamed(
    func: Func, width: int, grain: int, *, keep: bool = False, chunk: int = 0, split: int = 1, panel: int = 1
) -> Func:
    graph = flow_graph_of(func)
    kept = frozenset(n.name for n in graph.read_later) if keep else frozenset[str]()
    return lower_flow_graph(graph, Plan(find_lanes(graph), width, grain, kept, chunk, split, panel))


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("width", [2, 8])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("shape", [(8, 16), (4, 13), (12, 3)])
def test_any_plan_computes_the_same(
    make: Callable[[int, int], Func], width: int, keep: bool, shape: tuple[int, int]
) -> None:
    func = make(*shape)
    args = inputs(func)
    np.testing.assert_allclose(
        run(streamed(func, width, 2, keep=keep), args), run(func, args), rtol=1e-5, atol=3e-6
    )


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("shape", [(8, 16), (4, 13), (12, 3)])
def test_values_may_wait_in_the_place_of_the_result(
    make: Callable[[int, int], Func], shape: tuple[int, int]
) -> None:
    func = make(*shape)
    graph, args = flow_graph_of(func), inputs(func)
    kept = frozenset(n.name for n in graph.read_later)
    plan = Plan(find_lanes(graph), 4, 2, kept, in_place=True, ahead=1, streams=True)
    np.testing.assert_allclose(
        run(lower_flow_graph(graph, plan), args), run(func, args), rtol=1e-5, atol=3e-6
    )


def test_what_waits_in_the_place_of_the_result_needs_no_scratch() -> None:
    graph = flow_graph_of(softmax(8, 16))
    plans = [Plan(find_lanes(graph), 8, 2, frozenset({"e"}), in_place=p) for p in (False, True)]
    scratch = [[b.name for b in lower_flow_graph(graph, p).locals if b.scope is Scope.LOCAL] for p in plans]
    assert scratch == [["e_kept"], []]


def test_nothing_waits_where_a_result_is_not_the_last() -> None:
    f = FuncBuilder("moments")
    x = f.param("x", (4, 8), F32)
    m = f.reduce("m", (4,), (8,), lambda i, k: x[i, k], "max")
    e = f.compute("e", (4, 8), lambda i, j: unary(UnaryOp.EXP, x[i, j] - m[i]))
    s = f.reduce("s", (4,), (8,), lambda i, k: e[i, k], "sum")
    y = f.compute("y", (4, 8), lambda i, j: e[i, j] / s[i])
    t = f.reduce("t", (4,), (8,), lambda i, k: y[i, k] * y[i, k], "sum")
    z = f.reduce("z", (4,), (8,), lambda i, k: e[i, k] * t[i], "sum")
    graph = flow_graph_of(f.finish(y, z))
    assert result_place(graph) is None


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_the_next_row_is_asked_for_in_one_sweep(ahead: int) -> None:
    graph = flow_graph_of(softmax(8, 16))
    lowered = lower_flow_graph(graph, Plan(find_lanes(graph), 8, 2, ahead=ahead))
    noted = [n for n in loops(lowered.body) if PREFETCH_ROW in dict(n.annotations)]
    outer = [n for n in loops(lowered.body) if PREFETCH in dict(n.annotations)]
    assert len(noted) == len(outer) == (ahead > 0)


@pytest.mark.parametrize("make", [sum_columns, softmax_columns], ids=lambda m: m.__name__)
@pytest.mark.parametrize("panel", [2, 3, 8])
@pytest.mark.parametrize("chunk", [0, 5])
def test_rows_are_taken_together(make: Callable[[int, int], Func], panel: int, chunk: int) -> None:
    func = make(9, 27)
    args = inputs(func)
    made = streamed(func, 4, 1, keep=not chunk, chunk=chunk, panel=panel)
    np.testing.assert_allclose(run(made, args), run(func, args), rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("make", ONLINE, ids=lambda m: m.__name__)
@pytest.mark.parametrize("chunk", [4, 7, 100])
def test_folds_so_far_are_repaired(make: Callable[[int, int], Func], chunk: int) -> None:
    func = make(6, 19)
    args = inputs(func)
    np.testing.assert_allclose(
        run(streamed(func, 4, 3, chunk=chunk), args), run(func, args), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "make", [p for p in PROGRAMS if p not in (layer_norm, windows)], ids=lambda m: m.__name__
)
@pytest.mark.parametrize("panel", [1, 2])
def test_parts_of_rows_are_put_together(make: Callable[[int, int], Func], panel: int) -> None:
    func = make(12, 24)
    args = inputs(func)
    made = streamed(func, 4, 1, split=4, panel=panel)
    np.testing.assert_allclose(run(made, args), run(func, args), rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("first", [-np.inf, 1e4, -1e4])
@pytest.mark.parametrize("make", [softmax, layer_norm, arg_max], ids=lambda m: m.__name__)
def test_a_row_that_begins_unlike_the_rest(make: Callable[[int, int], Func], first: float) -> None:
    """Chunks that are hidden, and a mean that moves far."""
    if make is layer_norm and np.isinf(first):
        pytest.skip("the mean of an infinity is none")
    func = make(2, 24)
    args = inputs(func)
    args[0][:, :9] = first
    np.testing.assert_allclose(
        run(streamed(func, 4, 1, chunk=4), args), run(func, args), rtol=2e-4, atol=1e-5
    )


def test_lanes_are_along_the_rows_that_data_chooses() -> None:
    """Not along what chooses them, of which one is read for each row."""
    f = FuncBuilder("chosen")
    x, at = f.param("x", (100, 48), F32), f.param("at", (32,), DType.I64)
    rows = f.compute("rows", (32, 48), lambda i, j: x[minimum(maximum(at[i], 0), 99), j])
    total = f.reduce("total", (32,), (48,), lambda i, k: rows[i, k])
    graph = flow_graph_of(f.finish(f.compute("y", (32, 48), lambda i, j: rows[i, j] - total[i])))
    assert [a in graph.inner for a in find_lanes(graph)] == [True]


@pytest.mark.parametrize("make", [sum_columns, softmax_columns])
@pytest.mark.parametrize(("n", "lanes"), [(96, 32), (100, 32), (24, 32), (5, 8), (64, 64)])
def test_rows_side_by_side_are_vectors_of_a_power_of_two(
    make: Callable[[int, int], Func], n: int, lanes: int
) -> None:
    """Others would be passed from one iteration to the next element by element."""
    func = make(7, n)
    graph = flow_graph_of(func)
    made = lower_flow_graph(graph, Plan(find_lanes(graph), 128, 1))
    assert {loop.extent for loop in loops(made.body) if loop.kind is LoopKind.VECTORIZED} == {lanes}
    assert added_movement(func, made) is None
    args = inputs(func)
    want = run(func, args)
    np.testing.assert_allclose(run(made, args), want, rtol=2e-6, atol=1e-6)
    (got,) = run_native(made, args)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


def test_what_is_no_flow_graph_is_refused() -> None:
    f = FuncBuilder("shifted")
    x = f.param("x", (8,), F32)
    t = f.compute("t", (8,), lambda i: x[i] * 2.0)
    func = f.finish(f.compute("y", (7,), lambda i: t[i] + t[i + 1]))
    with pytest.raises(ScheduleError, match="y reads a part of t"):
        flow_graph_of(func)


def test_what_a_growing_maximum_moves_was_computed_with_a_number() -> None:
    f = FuncBuilder("spread")
    x = f.param("x", (3, 19), F32)
    m = f.reduce("m", (3,), (19,), lambda i, k: x[i, k], "max")
    func = f.finish(f.reduce("y", (3,), (19,), lambda i, k: m[i] - x[i, k], "max"))
    args = inputs(func)
    np.testing.assert_allclose(run(streamed(func, 4, 1, chunk=4), args), run(func, args), rtol=1e-5)


def test_a_fold_that_cannot_be_repaired_is_refused() -> None:
    f = FuncBuilder("above_mean")
    x = f.param("x", (4, 8), F32)
    total = f.reduce("total", (4,), (8,), lambda i, k: x[i, k], "sum")
    cube = f.reduce("cube", (4,), (8,), lambda i, k: unary(UnaryOp.TANH, x[i, k] - total[i]), "sum")
    with pytest.raises(ScheduleError, match="cube cannot be repaired"):
        streamed(f.finish(cube), 4, 1, chunk=4)

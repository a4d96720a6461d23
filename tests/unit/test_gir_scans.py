"""Scans as nodes of flow graphs: what blocks mean, text, and every plan agree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.gir.compare import same_flow_graph
from tilewright.gir.flow_graph import FlowGraph
from tilewright.gir.from_func import flow_graph_of
from tilewright.gir.interp import run_flow_graph
from tilewright.gir.lower import lower_flow_graph
from tilewright.gir.movement import added_movement
from tilewright.gir.parser import parse_flow, parse_flow_graph
from tilewright.gir.plan import Plan, find_lanes, result_place
from tilewright.gir.printer import print_flow_graph
from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, Expr, as_index, binary, equal, maximum, select
from tilewright.support.arrays import Array
from tilewright.support.errors import ScheduleError, UserError
from tilewright.tir.build import FuncBuilder, identity
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import Store
from tilewright.tir.verify import verify_func

OPERATIONS = {"sum": BinaryOp.ADD, "prod": BinaryOp.MUL, "max": BinaryOp.MAX, "min": BinaryOp.MIN}
NUMPY = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def scanned(
    shape: tuple[int, int], axis: int, word: str, *, exclusive: bool, reverse: bool, around: bool
) -> Func:
    """A scan of x; `around`: of twice x, which is added to the scan again, with the maximum of a row."""
    b = FuncBuilder("f")
    x = b.param("x", shape, DType.F32)

    def twice(i: Expr, j: Expr) -> Expr:
        return x[i, j] + x[i, j]

    taken = b.compute("twice", shape, twice) if around else x
    made = b.ahead("c", shape, DType.F32)

    def step(*i: Expr) -> Store:
        def at(place: Expr) -> tuple[Expr, ...]:
            turned = as_index(shape[axis] - 1) - place if reverse else place
            return (*i[:axis], turned, *i[axis + 1 :])

        here, before = at(i[axis]), at(maximum(i[axis] - 1, 0))
        new = taken[before if exclusive else here]
        first = identity(word, DType.F32) if exclusive else new
        return Store(
            made, here, select(equal(i[axis], 0), first, binary(OPERATIONS[word], made[before], new))
        )

    b.update("c", shape, (), step)
    if not around:
        return b.finish(made)

    def of_row(r: Expr, k: Expr) -> Expr:
        return made[(k, r) if axis == 0 else (r, k)]

    def whole(i: Expr, j: Expr) -> Expr:
        return made[i, j] + taken[i, j] + top[j if axis == 0 else i]

    top = b.reduce("top", (shape[1 - axis],), (shape[axis],), of_row, "max")
    return b.finish(b.compute("y", shape, whole))


def expected(x: Array, axis: int, word: str, *, exclusive: bool, reverse: bool, around: bool) -> Array:
    taken = x + x if around else x
    turned = np.flip(taken, axis) if reverse else taken
    found = NUMPY[word].accumulate(turned, axis)
    if exclusive:
        start = {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}[word]
        found = np.insert(np.delete(found, -1, axis), 0, start, axis)
    found = np.flip(found, axis) if reverse else found
    return found + taken + found.max(axis, keepdims=True) if around else found


@st.composite
def programs(draw: st.DrawFn) -> tuple[Func, FlowGraph, Array, Array]:
    shape = draw(st.tuples(st.integers(2, 9), st.integers(2, 21)))
    axis, word = draw(st.integers(0, 1)), draw(st.sampled_from([*OPERATIONS]))
    ways = {w: draw(st.booleans()) for w in ("exclusive", "reverse", "around")}
    func = scanned(shape, axis, word, **ways)
    x = np.random.default_rng(draw(st.integers(0, 99))).integers(-2, 3, shape).astype(np.float32)
    return func, flow_graph_of(func), x, expected(x, axis, word, **ways)


@given(programs())
@settings(max_examples=60, deadline=None)
def test_block_graph_and_text_mean_what_numpy_does(made: tuple[Func, FlowGraph, Array, Array]) -> None:
    func, graph, x, want = made
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run_func(func, x)[0], want)
        np.testing.assert_array_equal(run_flow_graph(graph, x)[0], want)
    assert same_flow_graph(parse_flow_graph(str(graph)), graph)


@given(programs(), st.data())
@settings(max_examples=120, deadline=None)
def test_any_plan_scans_the_same(made: tuple[Func, FlowGraph, Array, Array], data: st.DataObject) -> None:
    func, graph, x, want = made
    lanes, later = find_lanes(graph), [n.name for n in graph.read_later]
    can_meet = lanes[0] in graph.rows and not any(n.is_fold for n in graph.nodes)
    plan = Plan(
        lanes,
        width=data.draw(st.sampled_from([2, 4, 8])),
        grain=data.draw(st.integers(1, 4)),
        kept=frozenset(data.draw(st.sets(st.sampled_from(later)))) if later else frozenset(),
        panel=data.draw(st.integers(1, 3)),
        in_place=data.draw(st.booleans()),
        ahead=data.draw(st.integers(0, 2)),
        streams=data.draw(st.booleans()),
        depth=data.draw(st.sampled_from([0, 2, 3])) if can_meet else 0,
    )
    assert parse_flow(print_flow_graph(graph, plan))[1] == plan
    lowered = lower_flow_graph(graph, plan)
    verify_func(lowered)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(run_func(lowered, x)[0], want, rtol=1e-5, atol=1e-5)
    if not plan.depth:
        assert added_movement(func, lowered) is None


def test_a_scan_that_is_read_by_a_later_sweep_may_be_kept() -> None:
    func = scanned((6, 20), 1, "sum", exclusive=False, reverse=False, around=True)
    assert {n.name for n in flow_graph_of(func).read_later} >= {"c"}


@pytest.mark.parametrize("way", ["exclusive", "inclusive"])
@pytest.mark.parametrize("axes", ["r, k", "k, r"], ids=["along lanes", "across them"])
def test_what_a_scan_takes_up_waits_in_its_place_unless_that_is_written_first(axes: str, way: str) -> None:
    text = f"""
@flow
def shares(X: f32[6, 10], Y: out(f32[6, 10])):
    {axes} = axes(6, 10)
    e[r, k]: f32[{"6, 10" if axes == "r, k" else "10, 6"}] = X[{axes}] * X[{axes}]
    s[r]: f32[{6 if axes == "r, k" else 10}] = sum[k](e[r, k])
    Y[{axes}] = cumsum[k](e[r, k] * s[r]{", exclusive=True" if way == "exclusive" else ""})
"""
    graph = parse_flow_graph(text)
    assert (result_place(graph) is None) == (way == "exclusive")
    x = np.random.default_rng(0).integers(-3, 4, (6, 10)).astype(np.float32)
    plan = Plan(find_lanes(graph), 4, 2, frozenset({"e"}), in_place=True, ahead=1, streams=True)
    (want,) = run_flow_graph(graph, x)
    np.testing.assert_array_equal(run_func(lower_flow_graph(graph, plan), x)[0], want)


@pytest.mark.parametrize("depth", [0, 4])
def test_workers_meet_only_where_rows_lie_side_by_side(depth: int) -> None:
    graph = flow_graph_of(scanned((6, 20), 1, "sum", exclusive=False, reverse=False, around=False))
    plan = Plan(find_lanes(graph), 4, 1, depth=depth)
    if not depth:
        lower_flow_graph(graph, plan)
        return
    with pytest.raises(ScheduleError, match="does not only scan rows"):
        lower_flow_graph(graph, plan)


@pytest.mark.parametrize(("back", "first"), [(2, "value"), (1, "zero")])
def test_what_goes_on_from_elsewhere_is_no_scan(back: int, first: str) -> None:
    """From two places before; or from zero, with sums that leave out the first value instead of the last."""
    b = FuncBuilder("f")
    x, made = b.param("x", (9,), DType.F32), b.ahead("c", (9,), DType.F32)
    start = x[0] if first == "value" else identity("sum", DType.F32)

    def step(k: Expr) -> Store:
        return Store(made, (k,), select(equal(k, 0), start, made[maximum(k - back, 0)] + x[k]))

    b.update("c", (9,), (), step)
    with pytest.raises(ScheduleError, match="is no scan"):
        flow_graph_of(b.finish(made))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("y[r, j] = cumsum[r, j](x[r, j])", "a scan is along one axis"),
        ("y[r, j] = cumsum[j](x[r, j], exclusive=2)", "a scan is exclusive or reverse"),
        ("y[r, j] = sum[j](x[r, j], reverse=True)", "a fold takes a value and `where`"),
        ("y[r, 0] = cumsum[j](x[r, j])", "along an axis that it does not have"),
    ],
)
def test_mistakes_in_the_text_of_scans(line: str, message: str) -> None:
    text = f"@flow\ndef f(x: f32[4, 6], y: out(f32[4, 6])):\n    r, j = axes(4, 6)\n    {line}\n"
    with pytest.raises(UserError, match=message):
        parse_flow_graph(text)

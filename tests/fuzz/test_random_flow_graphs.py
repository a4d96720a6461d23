"""Random flow graphs: their text, their interpreter, and whatever plan runs them.

Funcs are those of `random_funcs`, as far as they are flow graphs, with values so small that sums are exact: then the
interpreters of graphs and of Funcs agree to the bit.
"""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.fuzz.random_funcs import random_func
from tilewright.gir.compare import same_flow_graph
from tilewright.gir.flow_graph import FlowGraph
from tilewright.gir.from_func import flow_graph_of
from tilewright.gir.interp import run_flow_graph
from tilewright.gir.lower import lower_flow_graph
from tilewright.gir.movement import added_movement
from tilewright.gir.parser import parse_flow
from tilewright.gir.plan import Plan, find_lanes
from tilewright.gir.printer import print_flow_graph
from tilewright.support.arrays import Array
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.verify import verify_func

EXAMPLES = 150


@st.composite
def flow_graphs(draw: st.DrawFn) -> tuple[Func, FlowGraph]:
    func = random_func(draw(st.integers(0, 1 << 20)))
    try:
        return func, flow_graph_of(func)
    except ScheduleError:
        assume(False)
        raise


@st.composite
def plans(draw: st.DrawFn, graph: FlowGraph) -> Plan:
    later = [n.name for n in graph.read_later]
    return Plan(
        find_lanes(graph),
        width=draw(st.sampled_from([2, 4, 8])),
        grain=draw(st.integers(1, 4)),
        kept=frozenset(draw(st.sets(st.sampled_from(later)))) if later else frozenset(),
        chunk=draw(st.sampled_from([0, 0, 3])),
        split=draw(st.sampled_from([1, 1, 2])),
        panel=draw(st.integers(1, 3)),
        in_place=draw(st.booleans()),
        ahead=draw(st.integers(0, 2)),
        streams=draw(st.booleans()),
    )


def feeds(func: Func) -> list[Array]:
    rng = np.random.default_rng(0)
    given = [p for p in func.params if p not in func.outputs]
    return [rng.integers(-2, 3, p.shape).astype(p.dtype.numpy) for p in given]


def results(func: Func, args: list[Array]) -> list[Array]:
    made = dict(zip(func.outputs, run_func(func, *args), strict=True))
    return [made[p] for p in func.params if p in made]


@given(st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_graph_and_its_plan_are_read_back(data: st.DataObject) -> None:
    _, graph = data.draw(flow_graphs())
    plan = data.draw(plans(graph))
    read, read_plan = parse_flow(print_flow_graph(graph, plan))
    assert same_flow_graph(read, graph)
    assert read_plan == plan


@given(flow_graphs())
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_graph_means_what_its_func_does(both: tuple[Func, FlowGraph]) -> None:
    func, graph = both
    args = feeds(func)
    for got, want in zip(run_flow_graph(graph, *args), results(func, args), strict=True):
        np.testing.assert_array_equal(got, want)


@given(st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_plan_means_what_the_graph_does(data: st.DataObject) -> None:
    func, graph = data.draw(flow_graphs())
    assume(find_lanes(graph))
    try:
        made = lower_flow_graph(graph, data.draw(plans(graph)))
    except ScheduleError:
        assume(False)
        raise
    verify_func(made)
    args = feeds(func)
    for got, want in zip(results(made, args), run_flow_graph(graph, *args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@given(st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_no_plan_moves_more_than_the_blocks_did(data: st.DataObject) -> None:
    func, graph = data.draw(flow_graphs())
    assume(find_lanes(graph))
    plan = data.draw(plans(graph))
    try:
        made = lower_flow_graph(graph, plan)
    except ScheduleError:
        assume(False)
        raise
    assert added_movement(func, made, is_divided=plan.split > 1) is None

"""Random windows over random images: their text, their interpreter, their rewrites, and whatever plan runs them.

Values are so small that sums are exact, so all of them agree to the bit with the Func that the graph is made of.
"""

from dataclasses import dataclass

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tilewright.gir.compare import same_flow_graph
from tilewright.gir.flow_graph import FlowGraph
from tilewright.gir.from_windows import window_graph_of
from tilewright.gir.interp import run_flow_graph
from tilewright.gir.parser import parse_flow_graph
from tilewright.gir.stages import WindowPlan, lower_stages, shared_axes
from tilewright.gir.windows import rewritten
from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, Expr, const, select
from tilewright.support.arrays import Array
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import FuncBuilder, identity
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.verify import verify_func

EXAMPLES = 150


@dataclass(frozen=True)
class Side:
    """A window along one axis of an image."""

    count: int  # of results
    window: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def reach(self) -> int:
        return (self.count - 1) * self.stride + (self.window - 1) * self.dilation + 1

    @property
    def extent(self) -> int:
        return max(self.reach - self.before - self.after, 1)


@st.composite
def sides(draw: st.DrawFn, results: int, window: int) -> Side:
    stride, dilation = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (2, 3)]))
    return Side(
        draw(st.integers(1, results)),
        draw(st.integers(1, window)),
        stride,
        dilation,
        draw(st.integers(0, 3)),
        draw(st.integers(0, 3)),
    )


@st.composite
def funcs(draw: st.DrawFn) -> Func:
    """A fold over windows of an image, which may have a padding, channels on either side, and something made of it."""
    rank = draw(st.integers(1, 3))
    results, window = ((7, 6), (5, 4), (3, 3))[rank - 1]  # the interpreter's time grows with their power
    along = [draw(sides(results, window)) for _ in range(rank)]
    combine = draw(st.sampled_from(["max", "max", "min", "sum", "prod"]))
    dtype = draw(st.sampled_from([DType.F32, DType.F32, DType.I32]))
    first, last = draw(st.sampled_from([(3, 0), (0, 5), (2, 3), (0, 0)]))
    lead, tail = ((first,) if first else ()), ((last,) if last else ())
    f = FuncBuilder("windows")
    x = f.param("x", (*lead, *(s.extent for s in along), *tail), dtype)
    neutral = identity(combine, dtype)
    assert isinstance(neutral, Const)

    def padded(*at: Expr) -> Expr:
        places = at[len(lead) : len(lead) + len(along)]
        moved = [p - s.before for p, s in zip(places, along, strict=True)]
        inside = [t for p, s in zip(moved, along, strict=True) for t in (const(0) <= p, p < s.extent)]
        source = x[(*at[: len(lead)], *moved, *at[len(lead) + len(along) :])]
        return select(logical_and(*inside), source, neutral)

    pad = f.compute("pad", (*lead, *(s.reach for s in along), *tail), padded)

    def tap(*at: Expr) -> Expr:
        rank = len(lead) + len(along) + len(tail)
        own, window = at[:rank], at[rank:]
        positions = own[len(lead) : len(lead) + len(along)]
        places = [p * s.stride + k * s.dilation for p, k, s in zip(positions, window, along, strict=True)]
        return pad[(*own[: len(lead)], *places, *own[len(lead) + len(along) :])]

    shape = (*lead, *(s.count for s in along), *tail)
    y = f.reduce("y", shape, tuple(s.window for s in along), tap, combine)
    if draw(st.booleans()):
        return f.finish(f.compute("z", shape, lambda *i: y[i] + y[i]))
    return f.finish(y)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Func, FlowGraph]:
    func = draw(funcs())
    try:
        return func, window_graph_of(func)
    except ScheduleError:  # windows of one element, which fold nothing
        assume(False)
        raise


def feed(func: Func) -> Array:
    x = func.params[0]
    return np.random.default_rng(0).integers(-2, 3, x.shape).astype(x.dtype.numpy)


@st.composite
def rewrites(draw: st.DrawFn, graph: FlowGraph) -> FlowGraph:
    return rewritten(graph, separate=draw(st.booleans()), halve=draw(st.integers(0, 2)))


@given(st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_rewrite_means_what_the_func_does_and_is_read_back(data: st.DataObject) -> None:
    func, graph = data.draw(graphs())
    graph = data.draw(rewrites(graph))
    (want,), (got,) = run_func(func, feed(func)), run_flow_graph(graph, feed(func))
    np.testing.assert_array_equal(got, want)
    assert same_flow_graph(parse_flow_graph(str(graph)), graph)


@given(st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_plan_means_what_the_func_does(data: st.DataObject) -> None:
    func, graph = data.draw(graphs())
    graph = data.draw(rewrites(graph))
    shared = shared_axes(graph)
    rows = [n for n in range(1, 8) if not shared or graph.extents[shared[-1]] % n == 0]
    plan = WindowPlan(
        lanes=data.draw(st.sampled_from([2, 4])),
        vectors=data.draw(st.integers(1, 3)),
        rows=data.draw(st.sampled_from(rows)),
        grain=data.draw(st.integers(1, 4)),
    )
    made = lower_stages(graph, plan)
    verify_func(made)
    (want,), (got,) = run_func(func, feed(func)), run_func(made, feed(func))
    np.testing.assert_array_equal(got, want)

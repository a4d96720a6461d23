"""The text of flow graphs: what does not follow from a line is said, and mistakes are shown where they are."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.gir.compare import same_flow_graph
from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.interp import interpret_flow_graph, run_flow_graph
from tilewright.gir.parser import parse_flow, parse_flow_graph
from tilewright.gir.plan import Plan
from tilewright.gir.printer import print_flow_graph
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Scope, Var, as_index
from tilewright.support.errors import InternalError, UserError

TEXT = """\
@flow
def shares(x: f32[4, 6], y: out(f32[4, 6])):
    r, j = axes(4, 6)
    rows(r)
    s[r]: f32[4] @ "register" = sum[j](x[r, j])
    t0 = x[r, j] / s[r]
    y[r, j] = t0 * t0
    plan(lanes=[j], width=2, grain=1, kept=["a", "b"], split=2)
"""


def shares() -> FlowGraph:
    return parse_flow_graph(TEXT)


def test_text_by_hand_is_printed_as_it_was_written() -> None:
    assert print_flow_graph(*parse_flow(TEXT)) == TEXT


def test_a_graph_computes() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    (y,) = run_flow_graph(shares(), x)
    np.testing.assert_allclose(y, (x / x.sum(axis=1, keepdims=True)) ** 2, rtol=1e-6)


@pytest.mark.parametrize("change", [{"name": "other"}, {"axes": (Var("j"), Var("r"))}], ids=str)
def test_what_a_line_does_not_say_is_around_it(change: dict[str, object]) -> None:
    graph = shares()
    changed = replace(graph, nodes=(graph.nodes[0], replace(graph.nodes[1], **change)))
    assert "with node(" in str(changed)
    assert not same_flow_graph(changed, graph)
    assert same_flow_graph(parse_flow_graph(str(changed)), changed)


def test_names_that_are_no_identifiers_are_declared() -> None:
    x, y = Buffer("x.1", (3,), DType.F32), Buffer("sum", (3,), DType.F32, Scope.LOCAL)
    i = Var("for")
    node = FlowNode("sum", y, (i,), (i,), x[i] + 1.0)
    graph = FlowGraph("a name", (x, y), {i: 3}, (node,), swept=(i,))
    plan = Plan((i,), 2, 1)
    read, read_plan = parse_flow(print_flow_graph(graph, plan))
    assert same_flow_graph(read, graph)
    assert read_plan == plan


def test_a_graph_without_axes_is_read_back() -> None:
    x, y = Buffer("x", (1,), DType.I32), Buffer("y", (), DType.I32)
    graph = FlowGraph("one", (x, y), {}, (FlowNode("y", y, (), (), x[0] * 2),))
    assert same_flow_graph(parse_flow_graph(str(graph)), graph)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("s[r]: f32[4] = mean[j](x[r, j])", "there is no fold or scan 'mean'"),
        ("s[r]: f32[4] = sum[q](x[r, j])", "nothing is called 'q' here"),
        ('s[r]: f32[4] @ "disk" = sum[j](x[r, j])', "a scope is expected"),
        ("a, b = axes(4)", "1 extents are given for 2 axes"),
        ("plan(lanes=[j], width=2)", "a plan needs grain"),
        ("plan(lanes=[x], width=2, grain=1)", "an axis is expected"),
        ("plan(lanes=[j], width=2, grain=1, breadth=3)", "Plan has no field 'breadth'"),
        (
            "with node('s', out=[r]):\n        s[r]: f32[4] = sum[j](x[r, j])",
            "a field is given that its line says",
        ),
    ],
)
def test_a_mistake_is_shown_where_it_is(line: str, message: str) -> None:
    text = f"@flow\ndef f(x: f32[4, 6]):\n    r, j = axes(4, 6)\n    {line}\n"
    with pytest.raises(UserError, match=message):
        parse_flow(text)


def test_a_read_outside_of_memory_is_caught() -> None:
    graph = shares()
    bad = replace(graph.nodes[0], value=graph.params[0][Var("r") + as_index(1), Var("j")])
    x, y = np.ones((4, 6), np.float32), np.ones((4, 6), np.float32)
    with pytest.raises(InternalError, match="s is outside x"):
        interpret_flow_graph(replace(graph, nodes=(bad,)), dict(zip(graph.params, (x, y), strict=True)))

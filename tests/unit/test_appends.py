"""Outputs that append to an input are the input's buffer: which are found, and that the Module means the same."""

from typing import Any

import numpy as np
import pytest

from tilewright.graph.appends import find_appends
from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph
from tilewright.graph.passes.lower import lower_graph
from tilewright.ir.dtype import DType
from tilewright.ops.core.arithmetic import Mul
from tilewright.ops.core.pieces import Concat
from tilewright.ops.opdef import TensorType
from tilewright.support.sizes import Dim, SizeError, sym_int
from tilewright.tir.interp import interpret_module
from tilewright.tir.verify import verify_module

F32 = DType.F32


def appending(least: int = 1, first: str = "past", uses: int = 1) -> Graph:
    """present = Concat(past, new · new), and 2 · present; `uses` of them."""
    past, new = sym_int(Dim("past", least, 6)), sym_int(Dim("new", 1, 3))
    b = GraphBuilder()
    a = b.input("past", TensorType(F32, (2, past, 4)))
    x = b.input("x", TensorType(F32, (2, new, 4)))
    square = b.apply(Mul(), x, x)
    joined = [b.apply(Concat(1), *((a, square) if first == "past" else (square, a))) for _ in range(uses)]
    return b.finish(b.apply(Mul(), joined[0], joined[0]), *joined)


def test_what_is_appended_is_stored_behind_what_is_there() -> None:
    module = lower_graph(appending())
    verify_module(module)
    assert module.inputs[0] is module.outputs[1]
    assert module.inputs[0].shape == (2, 9, 4)
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    memory: Any = np.full((2, 9, 4), np.nan, np.float32)
    memory[:, :5] = 2
    feeds = {b.name: np.array([{"size__past": 5, "size__new": 2}.get(b.name, 0)]) for b in module.inputs}
    found = interpret_module(module, {**feeds, module.inputs[0].name: memory, "x": x})
    wanted = np.concatenate([np.full((2, 5, 4), 2, np.float32), x[:, :2] * x[:, :2]], 1)
    np.testing.assert_array_equal(found[module.outputs[1].name][:, :7], wanted)
    np.testing.assert_array_equal(found[module.outputs[0].name][:, :7], wanted * wanted)


@pytest.mark.parametrize("other", [{"first": "new"}, {"uses": 2}])
def test_what_does_not_begin_with_an_input_alone_is_not_found(other: dict[str, Any]) -> None:
    graph = appending(**other)
    assert not find_appends(graph)
    module = lower_graph(graph)
    assert not set(module.inputs) & set(module.outputs)


def test_what_is_appended_to_may_be_empty() -> None:
    lower_graph(appending(least=0))
    with pytest.raises(SizeError, match="may be 0"):
        lower_graph(appending(least=0, first="new"))

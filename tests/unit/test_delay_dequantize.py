"""Bytes are pooled as bytes, and not quantised twice."""

import numpy as np
import pytest
from graph_cases import RNG, check_lowered, names

from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph
from tilewright.graph.interp import interpret_graph
from tilewright.graph.passes.delay_dequantize import delay_dequantize, fake_quantize
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.verify import verify_graph
from tilewright.ir.dtype import DType
from tilewright.ops.core.pool import MaxPool
from tilewright.ops.core.quantize import DequantizeLinear, QuantizeLinear
from tilewright.ops.core.window import Window
from tilewright.ops.opdef import TensorType

WINDOW = Window((3, 3), (2, 2), (1, 1), (1, 1), (1, 1))


def pooled(
    dtype: DType = DType.U8, scale: float = 0.05, other: float = 0.05, zero: int = 7, last: int = 7
) -> Graph:
    b = GraphBuilder()
    given = [b.constant("s", np.array(scale, np.float32)), b.constant("z", np.array(zero, dtype.numpy))]
    x = b.apply(DequantizeLinear(DType.F32), b.input("q", TensorType(dtype, (1, 2, 7, 6))), *given)
    after = [b.constant("t", np.array(other, np.float32)), b.constant("l", np.array(last, dtype.numpy))]
    return b.finish(b.apply(QuantizeLinear(dtype), b.apply(MaxPool(WINDOW), x), *after, name="y"))


@pytest.mark.parametrize("dtype", [DType.U8, DType.I8])
@pytest.mark.parametrize(
    ("change", "expected"), [({}, ["MaxPool"]), ({"other": 0.1}, None), ({"last": 9}, None)]
)
def test_pools_choose_among_bytes(dtype: DType, change: dict[str, float], expected: list[str] | None) -> None:
    graph = pooled(dtype, **change)  # pyright: ignore[reportArgumentType]
    after = eliminate_dead(delay_dequantize(graph))
    verify_graph(after)
    assert names(after) == (expected or ["MaxPool", "DequantizeLinear", "QuantizeLinear"])
    feeds = {"q": RNG.integers(-128, 256, (1, 2, 7, 6)).astype(dtype.numpy)}
    np.testing.assert_array_equal(interpret_graph(after, feeds)["y"], interpret_graph(graph, feeds)["y"])
    check_lowered(after)


def test_scales_below_zero_stay() -> None:
    graph = pooled(scale=-0.05)
    assert names(delay_dequantize(graph)) == names(graph)


def restored(dtype: DType, *, zero: int, last: int, is_read: bool) -> Graph:
    b = GraphBuilder()
    scale = b.constant("s", np.array(0.05, np.float32))
    zeros = [b.constant(f"z{n}", np.array(v, dtype.numpy)) for n, v in enumerate((zero, last))]
    q = b.apply(QuantizeLinear(dtype), b.input("x", TensorType(DType.F32, (3, 9))), scale, zeros[0], name="q")
    y = b.apply(DequantizeLinear(DType.F32), q, scale, zeros[1], name="y")
    return b.finish(y, q) if is_read else b.finish(y)


@pytest.mark.parametrize("dtype", [DType.U8, DType.I8])
@pytest.mark.parametrize("zero", [0, 7])
def test_bytes_that_nobody_else_reads_are_no_bytes(dtype: DType, zero: int) -> None:
    graph = restored(dtype, zero=zero, last=zero, is_read=False)
    after = eliminate_dead(fake_quantize(graph))
    verify_graph(after)
    assert names(after) == ["FakeQuantize"]
    x = (RNG.standard_normal((3, 9)) * 9).astype(np.float32)
    x[0, :5] = [np.inf, -np.inf, np.nan, -0.01, 0.0]
    want, found = (interpret_graph(g, {"x": x})["y"] for g in (graph, after))
    np.testing.assert_array_equal(found.view(np.int32), want.view(np.int32))  # zeros have no sign
    check_lowered(after)


def test_bytes_that_are_read_stay() -> None:
    for last, is_read in ((7, True), (8, False)):
        graph = restored(DType.U8, zero=7, last=last, is_read=is_read)
        assert names(fake_quantize(graph)) == ["QuantizeLinear", "DequantizeLinear"]

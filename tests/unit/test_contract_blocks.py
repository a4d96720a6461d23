"""Products with weights of 4 bits become sums of integers where the model allows bytes, and mean the same."""

from functools import partial

import numpy as np
import pytest
from graph_cases import check_lowered, names

from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph
from tilewright.graph.interp import interpret_graph
from tilewright.graph.passes.contract_blocks import contract_blocks
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.verify import verify_graph
from tilewright.ir.dtype import DType
from tilewright.ops.contrib.quant_matmul import MatMulNBits
from tilewright.ops.opdef import TensorType
from tilewright.support.arrays import Array

RNG = np.random.default_rng(6)
contract = partial(contract_blocks, has_products=True)


def product(
    shape: tuple[int, ...] = (3, 64),
    count: int = 16,
    block: int = 32,
    *,
    bits: int = 4,
    accuracy: int = 4,
    zero: str = "",
    has_bias: bool = False,
) -> Graph:
    b, columns = GraphBuilder(), shape[-1]
    blocks = columns // block
    inputs = [
        b.input("x", TensorType(DType.F32, shape)),
        b.constant("w", RNG.integers(0, 256, (count, blocks, block * bits // 8)).astype(np.uint8)),
        b.constant("scale", RNG.uniform(0.5, 2, (count, blocks)).astype(np.float32)),
    ]
    if zero == "packed":
        zeros = RNG.integers(0, 256, (count, -(-blocks * bits // 8))).astype(np.uint8)
        inputs.append(b.constant("zero", zeros))
    elif zero == "floats":
        inputs.append(b.constant("zero", RNG.uniform(5, 9, (count, blocks)).astype(np.float32)))
    if has_bias:
        inputs.append(b.constant("bias", RNG.standard_normal(count).astype(np.float32)))
    op = MatMulNBits(count, columns, bits, block, (bool(zero), False, has_bias), accuracy)
    return b.finish(b.apply(op, *inputs, name="y"))


def whole_rows(graph: Graph, block: int) -> Array:
    """Rows whose blocks are bytes exactly."""
    (x,) = graph.inputs
    values = RNG.integers(-127, 128, x.shape).astype(np.float32)
    values[..., ::block] = 127
    return values


@pytest.mark.parametrize("zero", ["", "packed", "floats"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(3, 64), (1, 2, 64)])
def test_rows_of_bytes_are_multiplied_exactly(shape: tuple[int, ...], has_bias: bool, zero: str) -> None:
    graph = product(shape, zero=zero, has_bias=has_bias)
    after = eliminate_dead(contract(graph))
    verify_graph(after)
    assert {"QuantizeBlocks", "BlockMatMul"} <= set(names(after)) and "MatMulNBits" not in names(after)
    feeds = {"x": whole_rows(graph, 32)}
    want, found = (interpret_graph(g, feeds)["y"] for g in (graph, after))
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    check_lowered(after)


def test_other_rows_are_near() -> None:
    graph = product((4, 128), count=32)
    feeds = {"x": RNG.standard_normal((4, 128)).astype(np.float32)}
    want, found = (interpret_graph(g, feeds)["y"] for g in (graph, contract(graph)))
    assert np.abs(found - want).max() < 0.02 * np.abs(want).max()


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(product(accuracy=0), id="full accuracy"),
        pytest.param(product(bits=8), id="8 bits"),
    ],
)
def test_what_stays_as_it_is(graph: Graph) -> None:
    assert contract(graph) is graph


def test_a_target_without_such_products_unpacks() -> None:
    graph = product()
    assert contract_blocks(graph, has_products=False) is graph

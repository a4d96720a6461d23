"""Products with weights of 4 and 8 bits keep these, as sums of integers where the model allows bytes, and mean the
same.
"""

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
from tilewright.ops.contrib.quant_gather import GatherBlockQuantized
from tilewright.ops.contrib.quant_matmul import MatMulNBits
from tilewright.ops.core.contraction import Gemm, MatMul
from tilewright.ops.core.quantize import DequantizeLinear, Granularity
from tilewright.ops.opdef import TensorType
from tilewright.support.arrays import Array
from tilewright.target.intrinsics import block_products
from tilewright.target.target import AARCH64, AVX2, Target

RNG = np.random.default_rng(6)
contract = partial(contract_blocks, products=block_products(AVX2), lanes=8)


def product(
    shape: tuple[int, ...] = (3, 64),
    count: int = 19,
    block: int = 32,
    *,
    bits: int = 4,
    accuracy: int = 4,
    zero: str = "",
    has_bias: bool = False,
    dtype: DType = DType.F32,
) -> Graph:
    b, columns = GraphBuilder(), shape[-1]
    blocks = -(-columns // block)
    inputs = [
        b.input("x", TensorType(dtype, shape)),
        b.constant("w", RNG.integers(0, 256, (count, blocks, block * bits // 8)).astype(np.uint8)),
        b.constant("scale", RNG.uniform(0.5, 2, (count, blocks)).astype(dtype.numpy)),
    ]
    if zero == "packed":
        zeros = RNG.integers(0, 256, (count, -(-blocks * bits // 8))).astype(np.uint8)
        inputs.append(b.constant("zero", zeros))
    elif zero == "floats":
        inputs.append(b.constant("zero", RNG.uniform(5, 9, (count, blocks)).astype(dtype.numpy)))
    if has_bias:
        inputs.append(b.constant("bias", RNG.standard_normal(count).astype(dtype.numpy)))
    op = MatMulNBits(count, columns, bits, block, (bool(zero), False, has_bias), accuracy)
    return b.finish(b.apply(op, *inputs, name="y"))


def whole_rows(graph: Graph, block: int) -> Array:
    """Rows whose blocks are bytes exactly."""
    (x,) = graph.inputs
    values = RNG.integers(-127, 128, x.shape).astype(np.float32)
    values[..., ::block] = 127
    return values


@pytest.mark.parametrize("zero", ["", "packed", "floats"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("shape", "has_bias"), [((3, 64), False), ((1, 2, 72), True)])
def test_rows_of_bytes_are_multiplied_exactly(
    shape: tuple[int, ...], has_bias: bool, bits: int, zero: str
) -> None:
    graph = product(shape, bits=bits, zero=zero, has_bias=has_bias)
    after = eliminate_dead(contract(graph))
    verify_graph(after)
    assert {"QuantizeBlocks", "BlockMatMul"} <= set(names(after)) and "MatMulNBits" not in names(after)
    feeds = {"x": whole_rows(graph, 32)}
    want, found = (interpret_graph(g, feeds)["y"] for g in (graph, after))
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    check_lowered(after)


def test_signed_bytes_mean_the_same() -> None:
    graph = product(bits=8, zero="packed")
    after = eliminate_dead(contract_blocks(graph, block_products(AARCH64), AARCH64.lanes(4)))
    assert any(c.dtype == np.int8 for c in after.constants.values())
    feeds = {"x": whole_rows(graph, 32)}
    want, found = (interpret_graph(g, feeds)["y"] for g in (graph, after))
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    check_lowered(after)


def test_other_rows_are_near() -> None:
    graph = product((4, 128), count=32)
    feeds = {"x": RNG.standard_normal((4, 128)).astype(np.float32)}
    want, found = (interpret_graph(g, feeds)["y"] for g in (graph, contract(graph)))
    assert np.abs(found - want).max() < 0.02 * np.abs(want).max()


@pytest.mark.parametrize("zero", ["", "packed", "floats"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_full_accuracy_is_that_of_floats(dtype: DType, bits: int, zero: str) -> None:
    graph = product((3, 72), bits=bits, accuracy=0, zero=zero, has_bias=True, dtype=dtype)
    after = eliminate_dead(contract(graph))
    verify_graph(after)
    assert "BlockMatMul" in names(after) and not {"QuantizeBlocks", "MatMulNBits"} & set(names(after))
    feeds = {"x": RNG.standard_normal((3, 72)).astype(dtype.numpy)}
    want, found = (interpret_graph(g, feeds)["y"].astype(np.float32) for g in (graph, after))
    error = 2e-6 if dtype is DType.F32 else 2e-3
    np.testing.assert_allclose(found, want, rtol=error, atol=error * np.abs(want).max())
    check_lowered(after)


def test_weights_are_stored_in_their_bits() -> None:
    for accuracy in (0, 4):
        after = eliminate_dead(contract(product((3, 64), 16, accuracy=accuracy)))
        assert sum(c.nbytes for c in after.constants.values() if c.dtype == np.uint8) == 16 * 64 // 2


def test_two_bits_stay_as_they_are() -> None:
    graph = product(bits=2)
    assert contract(graph) is graph


def test_a_target_without_such_instructions_has_floats() -> None:
    after = contract_blocks(product(), {}, 4)
    assert "BlockMatMul" in names(after) and "QuantizeBlocks" not in names(after)


def tied(*, bits: int = 4, zero: str = "", dtype: DType = DType.F32, is_same: bool = True) -> Graph:
    """A table that is looked up, and a product with the same weights."""
    b, blocks, count = GraphBuilder(), 2, 19
    codes = RNG.integers(0, 256, (count, blocks, 32 * bits // 8)).astype(np.uint8)
    scales = RNG.uniform(0.5, 2, (count, blocks)).astype(dtype.numpy)
    table = codes if is_same else codes[::-1].copy()
    shared = [b.constant("s", scales)]
    own = [b.constant("table_s", scales)]
    if zero:
        zeros = RNG.integers(0, 256, (count, blocks * bits // 8)).astype(np.uint8)
        shared, own = [*shared, b.constant("z", zeros)], [*own, b.constant("table_z", zeros)]
    at = b.input("at", TensorType(DType.I64, (1, 3)))
    x = b.apply(GatherBlockQuantized(bits, 32), b.constant("t", table.reshape(count, -1)), at, *own, name="x")
    op = MatMulNBits(count, 64, bits, 32, (bool(zero), False, False), 4)
    return b.finish(x, b.apply(op, x, b.constant("w", codes), *shared, name="y"))


@pytest.mark.parametrize("target", [AVX2, AARCH64], ids=["avx2", "arm"])
@pytest.mark.parametrize(("bits", "zero"), [(4, ""), (4, "packed"), (8, "")])
def test_a_table_that_is_a_matrix_too_is_there_once(bits: int, zero: str, target: Target) -> None:
    graph = tied(bits=bits, zero=zero)
    after = eliminate_dead(contract_blocks(graph, block_products(target), target.lanes(4)))
    verify_graph(after)
    assert "PanelGather" in names(after) and "GatherBlockQuantized" not in names(after)
    assert len(after.constants) == (3 if zero else 2)
    feeds = {"at": np.array([[0, 18, -1]])}
    want, found = (interpret_graph(g, feeds) for g in (graph, after))
    np.testing.assert_array_equal(found["x"], want["x"])
    check_lowered(after)


def test_tables_of_halves_are_rounded_as_the_model_says() -> None:
    graph = tied(dtype=DType.F16)
    after = eliminate_dead(contract(graph))
    feeds = {"at": np.array([[0, 18, -1]])}
    want, found = (interpret_graph(g, feeds)["x"] for g in (graph, after))
    assert found.dtype == np.float16 and "PanelGather" in names(after)
    np.testing.assert_array_equal(found, want)


def test_another_table_stays() -> None:
    assert "GatherBlockQuantized" in names(contract(tied(is_same=False)))


@pytest.mark.parametrize("zero", ["", "one", "each"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("is_gemm", [False, True])
def test_weights_that_are_dequantized_by_blocks(is_gemm: bool, dtype: type, bits: int, zero: str) -> None:
    """They keep their bits, and sums are those of floats."""
    low = -(1 << bits - 1) if dtype is np.int8 else 0
    b, (columns, count, blocks) = GraphBuilder(), (64, 19, 2)
    codes = RNG.integers(low, low + (1 << bits), (columns, count)).astype(dtype)
    codes[0, :2] = low, low + (1 << bits) - 1
    scales = (RNG.uniform(0.5, 2, (blocks, count)) / 2 ** (bits + 4)).astype(np.float32)  # sums of about 1
    given = [codes, scales]
    if zero:
        each = RNG.integers(low, low + (1 << bits), scales.shape)
        given.append((each if zero == "each" else np.full_like(each, low + 5)).astype(dtype))
    x = b.input("x", TensorType(DType.F32, (3, columns)))
    constants = [b.constant(f"c{n}", a.T.copy() if is_gemm else a) for n, a in enumerate(given)]
    w = b.apply(DequantizeLinear(DType.F32, Granularity(1 if is_gemm else 0, 32)), *constants)
    if is_gemm:
        bias = b.constant("bias", RNG.standard_normal(count).astype(np.float32))
        graph = b.finish(b.apply(Gemm(trans_b=True), x, w, bias, name="y"))
    else:
        graph = b.finish(b.apply(MatMul(), x, w, name="y"))
    after = eliminate_dead(contract(graph))
    verify_graph(after)
    assert "BlockMatMul" in names(after) and "DequantizeLinear" not in names(after)
    stored = sum(c.nbytes for v, c in after.constants.items() if v.name.endswith(".codes"))
    assert stored == 24 * columns * bits // 8
    feeds = {"x": RNG.standard_normal((3, columns)).astype(np.float32)}
    want, found = (interpret_graph(g, feeds)["y"] for g in (graph, after))
    np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-5 * np.abs(want).max())
    check_lowered(after)


def test_dequantized_weights_of_many_rows_are_floats() -> None:
    b = GraphBuilder()
    codes = b.constant("w", RNG.integers(-8, 8, (64, 16)).astype(np.int8))
    scales = b.constant("s", RNG.uniform(0.5, 2, (2, 16)).astype(np.float32))
    x = b.input("x", TensorType(DType.F32, (64, 64)))
    w = b.apply(DequantizeLinear(DType.F32, Granularity(0, 32)), codes, scales)
    graph = b.finish(b.apply(MatMul(), x, w, name="y"))
    assert contract(graph) is graph

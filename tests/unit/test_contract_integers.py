"""Quantised layers become contractions of bytes that mean the same, where the target multiplies such bytes."""

from functools import partial

import numpy as np
import pytest
from graph_cases import RNG, WINDOW, check_lowered, check_pass, names

from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph, Value
from tilewright.graph.interp import interpret_graph
from tilewright.graph.passes.contract_integers import BYTE_PAIRS, Products, contract_integers
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.verify import verify_graph
from tilewright.ir.dtype import DType
from tilewright.ops.core.contraction import Gemm, MatMul
from tilewright.ops.core.conv import Conv
from tilewright.ops.core.integer import Channels, ConvInteger, MatMulInteger
from tilewright.ops.core.qlinear import QLinearConv, QLinearMatMul
from tilewright.ops.core.quantize import DequantizeLinear, DynamicQuantizeLinear, Granularity
from tilewright.ops.core.window import Window
from tilewright.ops.opdef import Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.target.intrinsics import BoundedBytes

VNNI = frozenset({(DType.U8, DType.I8)})
contract = partial(contract_integers, types=VNNI)


def weights(*shape: int) -> Array:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def dequantized(b: GraphBuilder, x: Value, scale: Array, zero: int = 0, axis: int | None = None) -> Value:
    dtype = x.type.dtype.numpy
    zeros = [b.constant(f"{x.name}_zero", np.array(zero, dtype))] if zero else []
    op = DequantizeLinear(DType.F32, Granularity(axis))
    return b.apply(op, x, b.constant(f"{x.name}_scale", scale), *zeros, name=f"{x.name}_real")


def layer(
    op: Op,
    x: tuple[int, ...],
    w: Array,
    *,
    dtype: DType = DType.U8,
    zero: int = 3,
    axis: int | None = None,
    bias: Array | None = None,
) -> Graph:
    b = GraphBuilder()
    scales = np.float32(0.02) if axis is None else RNG.uniform(0.01, 0.1, w.shape[axis]).astype(np.float32)
    left = dequantized(b, b.input("x", TensorType(dtype, x)), np.array(0.1, np.float32), zero)
    right = dequantized(b, b.constant("w", w), np.asarray(scales), axis=axis)
    added: list[Value] = []
    if bias is not None:
        added = [dequantized(b, b.constant("bias", bias), np.array(0.002, np.float32))]
    return b.finish(b.apply(op, left, right, *added, name="y"))


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("axis", [None, 0])
def test_a_convolution_with_padding_and_bias(zero: int, axis: int | None) -> None:
    bias = RNG.integers(-999, 999, 5).astype(np.int32)
    graph = layer(Conv(WINDOW), (1, 8, 6, 7), weights(5, 8, 3, 3), zero=zero, axis=axis, bias=bias)
    after = eliminate_dead(check_pass(graph, contract))
    padded = ["Pad"] * bool(zero)
    assert names(after) == [*padded, "ConvInteger", *["Sub"] * bool(zero), "Cast", "Mul", "Add"]
    check_lowered(after)


def test_a_matmul_with_a_scale_for_each_column() -> None:
    after = eliminate_dead(check_pass(layer(MatMul(), (2, 4, 8), weights(8, 5), axis=1), contract))
    assert names(after) == ["MatMulInteger", "Sub", "Cast", "Mul"]


def test_a_gemm_with_transposed_weights() -> None:
    bias = RNG.integers(-999, 999, 5).astype(np.int32)
    after = check_pass(layer(Gemm(trans_b=True), (4, 8), weights(5, 8), axis=0, bias=bias), contract)
    assert names(eliminate_dead(after)) == ["DequantizeLinear", "MatMulInteger", "Sub", "Cast", "Mul", "Add"]


def test_signed_bytes_are_shifted_where_only_unsigned_ones_have_a_product() -> None:
    graph = layer(MatMul(), (4, 8), weights(8, 5), dtype=DType.I8)
    after = eliminate_dead(check_pass(graph, contract))
    assert names(after) == ["Cast", "Add", "Cast", "MatMulInteger", "Sub", "Cast", "Mul"]
    check_lowered(after)


def test_unsigned_bytes_are_shifted_where_only_signed_ones_have_a_product() -> None:
    """As on Arm with dot products, but without i8mm."""
    signed = partial(contract_integers, types=frozenset({(DType.I8, DType.I8)}))
    after = eliminate_dead(check_pass(layer(MatMul(), (4, 8), weights(8, 5)), signed))
    assert names(after) == ["Cast", "Add", "Cast", "MatMulInteger", "Sub", "Cast", "Mul"]
    check_lowered(after)


def test_unsigned_weights_around_the_middle_are_signed() -> None:
    (b, x), zero = b_input(DType.U8, 4, 8), np.array(128, np.uint8)
    w = b.constant("w", RNG.integers(0, 256, (8, 5)).astype(np.uint8))
    y = b.apply(MatMulInteger((False, True)), x, w, b.constant("zero", zero), name="y")
    after = eliminate_dead(check_pass(b.finish(y), contract))
    assert names(after) == ["MatMulInteger"]


def b_input(dtype: DType, *shape: int) -> tuple[GraphBuilder, Value]:
    b = GraphBuilder()
    return b, b.input("x", TensorType(dtype, shape))


INTEGER_OPS = [
    pytest.param(sample, id=f"{op.__name__}-{n}")
    for op in (MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv)
    for n, sample in enumerate(op.samples(np.random.default_rng(1)))
]


@pytest.mark.parametrize("products", [VNNI, frozenset({(DType.I8, DType.I8)})], ids=["u8·s8", "s8·s8"])
@pytest.mark.parametrize("sample", INTEGER_OPS)
def test_integer_operators_give_the_same_numbers(sample: Sample, products: Products) -> None:
    """With all but the first input known, and with zero points that are not."""
    for is_known in (True, False):
        b, inputs, feeds = GraphBuilder(), list[Value](), dict[str, Array]()
        for n, array in enumerate(sample.inputs):
            is_zero_point = n > 1 and array.dtype.kind in "iu" and array.size == 1
            if n == 0 or (is_zero_point and not is_known):
                inputs.append(b.input(f"x{n}", TensorType.of(array)))
                feeds[f"x{n}"] = array
            else:
                inputs.append(b.constant(f"c{n}", array))
        graph = b.finish(b.apply(sample.op, *inputs, name="y"))
        after = contract_integers(graph, products)
        verify_graph(after)
        (wanted,), (found,) = (interpret_graph(g, feeds).values() for g in (graph, after))
        np.testing.assert_array_equal(found, wanted)


def test_a_zero_point_that_is_computed_leaves_bytes_to_be_contracted() -> None:
    b, x = b_input(DType.F32, 1, 8, 6, 7)
    short, _, zero = b.add(DynamicQuantizeLinear(), (x,)).outputs
    w = b.constant("w", weights(5, 8, 3, 3))
    y = b.apply(ConvInteger(Channels(WINDOW), (True, False)), short, w, zero, name="y")
    after = eliminate_dead(check_pass(b.finish(y), contract))
    assert names(after) == ["DynamicQuantizeLinear", "ConvInteger", "Cast", "Mul", "Sub"]
    check_lowered(after)


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(layer(MatMul(), (4, 8), weights(8, 5), axis=0), id="a scale for each row of weights"),
        pytest.param(layer(Conv(WINDOW, 8), (1, 8, 6, 7), weights(8, 1, 3, 3)), id="depthwise"),
        pytest.param(layer(Gemm(alpha=2.0), (4, 8), weights(8, 5)), id="alpha"),
    ],
)
def test_what_stays_in_floats(graph: Graph) -> None:
    assert contract(graph) is graph


def test_a_target_without_products_of_bytes_keeps_floats() -> None:
    graph = layer(MatMul(), (4, 8), weights(8, 5))
    assert contract_integers(graph, frozenset()) is graph


@pytest.mark.parametrize(("largest", "is_bounded"), [(64, True), (65, False)])
@pytest.mark.parametrize("dtype", [DType.U8, DType.I8])
def test_weights_within_bounds_say_so(dtype: DType, largest: int, is_bounded: bool) -> None:
    """Bytes of another sign than the instruction has are shifted to it."""
    bounds = (BoundedBytes(DType.U8, DType.I8, (-64, 64)),)
    w = np.clip(weights(16, 8), -64, 64)
    image = np.clip(weights(8, 16, 3, 3), -64, 64)
    for op, shape, own in ((MatMul(), (3, 16), w), (Conv(WINDOW), (1, 16, 6, 6), image)):
        own[0, 0] = largest
        graph = layer(op, shape, own, dtype=dtype)
        after = eliminate_dead(contract_integers(graph, BYTE_PAIRS, bounds))
        verify_graph(after)
        (made,) = (n for n in after.nodes if isinstance(n.op, MatMulInteger | ConvInteger))
        within = made.op.within if isinstance(made.op, MatMulInteger) else made.op.channels.within
        assert within == ((-64, 64) if is_bounded else None)
        assert made.inputs[0].type.dtype is (DType.U8 if is_bounded else dtype)
        feeds = {"x": RNG.integers(0, 100, shape).astype(dtype.numpy)}
        want, found = (interpret_graph(g, feeds)["y"] for g in (graph, after))
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
        check_lowered(after)


@pytest.mark.parametrize(("channels", "whole"), [(3, 4), (4, 4), (6, 8), (5, 5), (1, 1)])
@pytest.mark.parametrize("pads", [0, 1])
@pytest.mark.parametrize("zero", [0, 3])
def test_channels_become_words(channels: int, whole: int, pads: int, zero: int) -> None:
    """Where a few of zeros are missing: what pads the image is not multiplied with anything."""
    window = Window((3, 3), (2, 2), (1, 1), (pads, pads), (pads, pads))
    graph = layer(Conv(window), (1, channels, 9, 8), weights(8, channels, 3, 3), zero=zero)
    after = eliminate_dead(contract(graph))
    verify_graph(after)
    (made,) = (n for n in after.nodes if isinstance(n.op, ConvInteger))
    assert [v.type.shape[1] for v in made.inputs] == [whole, whole]
    feeds = {"x": RNG.integers(0, 256, (1, channels, 9, 8)).astype(np.uint8)}
    want, found = (interpret_graph(g, feeds)["y"] for g in (graph, after))
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    check_lowered(after)

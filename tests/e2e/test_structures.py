"""Structures that recipes may not expect: unusual reductions, shared operands, empty and tiny tensors, other types.

Each function below builds a small model and returns its outputs; `test_structure` holds all of them to onnxruntime.
What a recipe refuses must still compile.
"""

import inspect
import sys

import numpy as np
import pytest

from tests.onnx_cases import Model, check_model

Outputs = str | tuple[str, ...]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")


# --------------------------------------------------------------------------------------------------------- contractions
def product_with_its_own_transpose(m: Model) -> Outputs:
    x = m.input(13, 9)
    return m.op("MatMul", x, m.op("Transpose", x, perm=[1, 0]))


def product_of_a_matrix_with_itself(m: Model) -> Outputs:
    x = m.input(9, 9)
    return m.op("MatMul", x, x)


def stacked_product_with_its_own_transpose(m: Model) -> Outputs:
    x = m.input(2, 3, 8, 17)
    return m.op("MatMul", x, m.op("Transpose", x, perm=[0, 1, 3, 2]))


def product_of_constants(m: Model) -> Outputs:
    return m.op("Add", m.op("MatMul", m.weight(5, 6), m.weight(6, 7)), m.input(5, 7))


def images_of_few_tiles(m: Model) -> Outputs:
    """Blocks of a fast convolution that span images, and what follows it."""
    x = m.op("Relu", m.op("Conv", m.input(4, 32, 7, 7), m.weight(64, 32, 1, 1)))
    y = m.op("Conv", x, m.weight(64, 64, 3, 3), m.weight(64), pads=[1] * 4)
    return m.op("Relu", m.op("Add", y, x))


def layers_side_by_side(m: Model) -> Outputs:
    """Parts and pieces of a buffer are padded elsewhere, and one buffer in two ways."""
    both = m.op("Sigmoid", m.op("Conv", m.input(1, 16, 12, 10), m.weight(32, 16, 1, 1)))
    one, other = m.op("Split", both, axis=1, outputs=2, num_outputs=2)
    deep = m.op("Relu", m.op("Conv", other, m.weight(16, 16, 3, 3), pads=[1] * 4))
    deep = m.op("Conv", deep, m.weight(16, 16, 3, 3), pads=[1] * 4)
    whole = m.op("Concat", one, other, deep, axis=1)
    down = m.op("Conv", deep, m.weight(16, 16, 3, 3), pads=[1] * 4, strides=[2, 2])
    pool = m.op("MaxPool", deep, kernel_shape=[5, 5], pads=[2] * 4)
    return m.op("Conv", whole, m.weight(24, 48, 1, 1)), down, pool


def convolution_of_constants(m: Model) -> Outputs:
    y = m.op("Conv", m.weight(1, 3, 6, 6), m.weight(8, 3, 3, 3))
    return m.op("Add", y, m.input(1, 8, 4, 4))


def product_consumed_twice(m: Model) -> Outputs:
    y = m.op("MatMul", m.input(7, 5), m.weight(5, 9))
    return m.op("Relu", y), m.op("Tanh", y)


def product_consumed_by_a_reduction_and_itself(m: Model) -> Outputs:
    y = m.op("MatMul", m.input(7, 5), m.weight(5, 9))
    return m.op("Sub", y, m.op("ReduceMax", y, m.ints(-1), keepdims=1))


def residual_is_an_output_too(m: Model) -> Outputs:
    x = m.input(6, 8)
    y = m.op("Add", m.op("MatMul", x, m.weight(8, 8)), x)
    return m.op("Relu", y), y


def epilogue_broadcasts_rows(m: Model) -> Outputs:
    y = m.op("MatMul", m.input(3, 7, 5), m.weight(5, 9))
    return m.op("Mul", m.op("Add", y, m.input(7, 1)), m.input(3, 1, 1))


def epilogue_broadcasts_columns(m: Model) -> Outputs:
    y = m.op("MatMul", m.input(3, 7, 5), m.weight(5, 9))
    return m.op("Mul", m.op("Add", y, m.input(9)), m.input(1, 9))


def epilogue_widens_the_product(m: Model) -> Outputs:
    y = m.op("MatMul", m.input(1, 5), m.weight(5, 9))
    return m.op("Add", y, m.input(7, 1))


def product_through_a_slice(m: Model) -> Outputs:
    y = m.op("MatMul", m.input(7, 5), m.weight(5, 19))
    return m.op("Relu", m.op("Slice", y, m.ints(1, 3), m.ints(6, 17), m.ints(0, 1), m.ints(2, 3)))


def product_through_a_gather(m: Model) -> Outputs:
    y = m.op("MatMul", m.input(7, 5), m.weight(5, 9))
    return m.op("Relu", m.op("Gather", y, m.constant([3, 0, 3], np.int64), axis=1))


def product_through_a_reversed_slice(m: Model) -> Outputs:
    y = m.op("MatMul", m.input(7, 5), m.weight(5, 9))
    return m.op("Tanh", m.op("Slice", y, m.ints(-1), m.ints(-100), m.ints(1), m.ints(-1)))


def product_through_a_transpose_and_reshape(m: Model) -> Outputs:
    y = m.op("MatMul", m.input(2, 6, 5), m.weight(5, 8))
    y = m.op("Transpose", m.op("Reshape", y, m.ints(2, 6, 2, 4)), perm=[0, 2, 3, 1])
    return m.op("Relu", y)


def product_through_a_transpose_and_gather(m: Model) -> Outputs:
    """Columns become rows, of which indices choose some: where a tile is read is known only then."""
    y = m.op("MatMul", m.input(16, 8, 3, 5), m.weight(5, 9))
    y = m.op("Transpose", y, perm=[2, 0, 3, 1])
    return m.op("Gather", y, m.input(3, dtype=np.int64), axis=1)


def halves_of_a_product(m: Model) -> Outputs:
    y = m.op("MatMul", m.input(4, 5), m.weight(5, 18))
    a, b = m.op("Split", y, m.ints(9, 9), axis=1, outputs=2)
    return m.op("Mul", a, m.op("Sigmoid", b))


def outer_product(m: Model) -> Outputs:
    return m.op("MatMul", m.input(9, 1), m.input(1, 17))


def inner_product(m: Model) -> Outputs:
    return m.op("MatMul", m.input(37), m.input(37))


def matrix_times_vector(m: Model) -> Outputs:
    return m.op("MatMul", m.input(9, 13), m.input(13)), m.op("MatMul", m.input(9), m.input(9, 13))


def long_inner_product(m: Model) -> Outputs:
    return m.op("MatMul", m.input(1, 5000), m.weight(5000, 1))


def tall_product(m: Model) -> Outputs:
    return m.op("MatMul", m.input(700, 3), m.weight(3, 2))


def wide_product(m: Model) -> Outputs:
    return m.op("MatMul", m.input(2, 3), m.weight(3, 700))


def broadcast_stacks(m: Model) -> Outputs:
    return m.op("MatMul", m.input(3, 1, 4, 5), m.input(2, 5, 6))


def einsum_with_a_middle_sum(m: Model) -> Outputs:
    return m.op("Einsum", m.input(3, 4, 5), m.input(4, 6, 3), equation="abc,bda->cd")


def einsum_of_a_diagonal_batch(m: Model) -> Outputs:
    return m.op("Einsum", m.input(3, 4, 5), m.input(3, 4, 5), equation="abc,abc->ab")


def both_operands_transposed(m: Model) -> Outputs:
    a, b = m.op("Transpose", m.input(5, 7), perm=[1, 0]), m.op("Transpose", m.input(9, 5), perm=[1, 0])
    return m.op("MatMul", a, b)


def operand_that_is_concatenated(m: Model) -> Outputs:
    x = m.op("Concat", m.input(3, 5), m.input(4, 5), axis=0)
    return m.op("MatMul", x, m.weight(5, 9)), m.op("MatMul", m.weight(9, 7), x)


def chain_of_products(m: Model) -> Outputs:
    x = m.input(6, 5)
    for n, k in ((5, 7), (7, 3), (3, 16)):
        x = m.op("MatMul", x, m.weight(n, k))
    return x


# ----------------------------------------------------------------------------------------------------------- reductions
def reduction_of_the_first_axis(m: Model) -> Outputs:
    return m.op("ReduceSum", m.input(9, 17), m.ints(0), keepdims=0)


def reduction_of_a_middle_axis(m: Model) -> Outputs:
    return m.op("ReduceMean", m.input(3, 9, 17), m.ints(1), keepdims=0)


def reduction_of_outer_and_inner_axes(m: Model) -> Outputs:
    return m.op("ReduceMax", m.input(3, 9, 17), m.ints(0, 2), keepdims=1)


def reduction_to_a_scalar(m: Model) -> Outputs:
    return m.op("ReduceSum", m.input(3, 9, 7), keepdims=0), m.op("ReduceL2", m.input(40), keepdims=0)


def reduction_of_unit_axes(m: Model) -> Outputs:
    return m.op("ReduceSum", m.input(1, 9, 1), m.ints(0, 2), keepdims=0)


def reduction_of_everything_but_units(m: Model) -> Outputs:
    return m.op("ReduceMin", m.input(1, 9, 1, 4), m.ints(1, 3), keepdims=1)


def large_reduction(m: Model) -> Outputs:
    return m.op("ReduceMean", m.input(2, 30000), m.ints(1), keepdims=1)


def reductions_of_one_value_along_two_axes(m: Model) -> Outputs:
    x = m.op("Exp", m.input(6, 9))
    return m.op("ReduceSum", x, m.ints(0), keepdims=0), m.op("ReduceSum", x, m.ints(1), keepdims=0)


def reduction_of_a_reduction(m: Model) -> Outputs:
    x = m.op("ReduceSum", m.input(3, 9, 7), m.ints(2), keepdims=0)
    return m.op("ReduceMax", m.op("Relu", x), m.ints(0), keepdims=0)


def reduced_input_that_is_an_output(m: Model) -> Outputs:
    x = m.op("Tanh", m.input(5, 11))
    return x, m.op("ReduceMean", x, m.ints(1), keepdims=1)


def softmax_of_a_middle_axis(m: Model) -> Outputs:
    return m.op("Softmax", m.input(3, 5, 9), axis=1)


def softmax_of_the_first_axis(m: Model) -> Outputs:
    return m.op("Softmax", m.input(7, 9), axis=0)


def softmax_of_one_element(m: Model) -> Outputs:
    return m.op("Softmax", m.input(7, 1), axis=1), m.op("Softmax", m.input(1), axis=0)


def softmax_through_a_transpose(m: Model) -> Outputs:
    y = m.op("Softmax", m.op("Transpose", m.input(5, 3, 9), perm=[2, 0, 1]), axis=-1)
    return m.op("Transpose", y, perm=[1, 0, 2])


def norm_of_several_axes(m: Model) -> Outputs:
    x = m.input(2, 3, 4, 5)
    return m.op("LayerNormalization", x, m.weight(3, 4, 5), m.weight(3, 4, 5), axis=1)


def norm_by_hand(m: Model) -> Outputs:
    x = m.input(4, 19)
    d = m.op("Sub", x, m.op("ReduceMean", x, m.ints(-1), keepdims=1))
    v = m.op("ReduceMean", m.op("Mul", d, d), m.ints(-1), keepdims=1)
    return m.op("Div", d, m.op("Sqrt", m.op("Add", v, m.constant(np.float32(1e-5)))))


def arg_max_of_every_axis(m: Model) -> Outputs:
    x = m.input(4, 5, 9)
    return tuple(m.op("ArgMax", x, axis=a, keepdims=a % 2) for a in range(3))


def cumulative_sum_of_every_axis(m: Model) -> Outputs:
    x = m.input(3, 5, 9)
    return tuple(m.op("CumSum", x, m.constant(a, np.int64)) for a in range(3))


def pooling_of_reductions(m: Model) -> Outputs:
    x = m.op("AveragePool", m.input(1, 9, 8, 8), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    return m.op("ReduceMax", x, m.ints(1), keepdims=0)


# --------------------------------------------------------------------------------------------------------------- shapes
def scalars(m: Model) -> Outputs:
    return m.op("Add", m.input(), m.input()), m.op("Exp", m.input())


def unit_dimensions_everywhere(m: Model) -> Outputs:
    x = m.input(1, 1, 1, 1)
    y = m.op("Conv", x, m.weight(1, 1, 1, 1), m.weight(1))
    return m.op("Softmax", m.op("MatMul", y, m.weight(1, 1)), axis=-1)


def six_dimensions(m: Model) -> Outputs:
    x = m.input(2, 3, 2, 2, 3, 2)
    y = m.op("Transpose", x, perm=[5, 1, 3, 0, 4, 2])
    return m.op("Add", y, m.input(3, 1, 2, 1, 2)), m.op("ReduceMean", x, m.ints(1, 3, 5), keepdims=0)


def empty_tensors(m: Model) -> Outputs:
    x = m.op("Slice", m.input(2, 5), m.ints(2), m.ints(2), m.ints(0))
    return m.op("Relu", x), m.op("Concat", x, m.input(2, 5), axis=0), m.op("Transpose", x, perm=[1, 0])


def empty_slice(m: Model) -> Outputs:
    y = m.op("Slice", m.input(4, 5), m.ints(2), m.ints(2), m.ints(0))
    return m.op("Relu", y)


def diamond(m: Model) -> Outputs:
    x = m.input(5, 6)
    a = m.op("Relu", x)
    return m.op("Add", m.op("MatMul", a, m.weight(6, 6)), m.op("Mul", a, m.op("MatMul", a, m.weight(6, 6))))


# ---------------------------------------------------------------------------------------------------------------- types
def product_of_doubles(m: Model) -> Outputs:
    x = m.input(5, 7, dtype=np.float64)
    return m.op("Relu", m.op("MatMul", x, m.constant(m.rng.standard_normal((7, 9)))))


def softmax_of_doubles(m: Model) -> Outputs:
    return m.op("Softmax", m.input(5, 9, dtype=np.float64), axis=-1)


def product_of_integers(m: Model) -> Outputs:
    return m.op("MatMul", m.input(5, 7, dtype=np.int64), m.input(7, 9, dtype=np.int64))


def product_of_short_integers(m: Model) -> Outputs:
    return m.op("MatMul", m.input(5, 7, dtype=np.int32), m.input(7, 9, dtype=np.int32))


def booleans(m: Model) -> Outputs:
    a, b = m.input(3, 7, dtype=np.bool_), m.input(7, dtype=np.bool_)
    both = m.op("And", a, b)
    return (
        both,
        m.op("Not", m.op("Or", both, a)),
        m.op("Cast", both, to=1),
        m.op("Where", both, m.input(3, 7), m.input(1)),
    )


def mixed_types(m: Model) -> Outputs:
    x = m.input(4, 9, dtype=np.int32)
    y = m.op("Cast", x, to=1)
    return m.op("Mul", y, m.input(9)), m.op("Greater", x, m.constant(2, np.int32)), m.op("Cast", y, to=11)


def bytes_and_halves(m: Model) -> Outputs:
    x = m.input(3, 33, dtype=np.float16)
    return m.op("Cast", m.op("Cast", x, to=1), to=10), m.op("Cast", m.input(3, 33, dtype=np.uint8), to=1)


# ------------------------------------------------------------------------------------------ layouts around convolutions
def convolution_then_reshape(m: Model) -> Outputs:
    y = m.op("Relu", m.op("Conv", m.input(2, 3, 5, 6), m.weight(16, 3, 3, 3), pads=[1, 1, 1, 1]))
    return m.op("MatMul", m.op("Reshape", y, m.ints(2, 16 * 5, 6)), m.weight(6, 4))


def convolution_then_transpose(m: Model) -> Outputs:
    y = m.op("Conv", m.input(2, 3, 5, 6), m.weight(16, 3, 3, 3), pads=[1, 1, 1, 1])
    return m.op("Transpose", m.op("Relu", y), perm=[0, 2, 3, 1])


def convolutions_of_transposes(m: Model) -> Outputs:
    x = m.op("Transpose", m.input(2, 5, 6, 9), perm=[0, 3, 1, 2])
    y = m.op("Conv", x, m.weight(9, 9, 3, 3), pads=[1, 1, 1, 1])
    return m.op("Conv", m.op("Transpose", y, perm=[0, 1, 3, 2]), m.weight(8, 9, 1, 1))


def concatenated_convolutions(m: Model) -> Outputs:
    x = m.input(1, 3, 6, 6)
    a, b = (m.op("Conv", x, m.weight(n, 3, 3, 3), pads=[1, 1, 1, 1]) for n in (8, 5))
    y = m.op("Concat", a, b, a, axis=1)
    return m.op("Conv", y, m.weight(9, 21, 1, 1)), y


def channels_sliced_and_shuffled(m: Model) -> Outputs:
    y = m.op("Conv", m.input(1, 3, 6, 6), m.weight(16, 3, 1, 1))
    a, b = m.op("Split", y, m.ints(8, 8), axis=1, outputs=2)
    z = m.op("Concat", m.op("Conv", a, m.weight(8, 8, 3, 3), pads=[1, 1, 1, 1]), b, axis=1)
    z = m.op("Transpose", m.op("Reshape", z, m.ints(1, 2, 8, 6, 6)), perm=[0, 2, 1, 3, 4])
    return m.op("Conv", m.op("Reshape", z, m.ints(1, 16, 6, 6)), m.weight(8, 16, 1, 1))


def image_scaled_by_channel(m: Model) -> Outputs:
    y = m.op("Conv", m.input(2, 3, 6, 6), m.weight(16, 3, 3, 3))
    squeezed = m.op("Conv", m.op("GlobalAveragePool", y), m.weight(16, 16, 1, 1))
    return m.op("Conv", m.op("Mul", y, m.op("Sigmoid", squeezed)), m.weight(8, 16, 1, 1))


def convolution_output_in_the_middle(m: Model) -> Outputs:
    y = m.op("Conv", m.input(1, 3, 6, 6), m.weight(16, 3, 3, 3))
    return y, m.op("Conv", m.op("Relu", y), m.weight(9, 16, 3, 3))


def softmax_over_channels(m: Model) -> Outputs:
    y = m.op("Conv", m.input(1, 3, 6, 6), m.weight(16, 3, 3, 3))
    return m.op("Softmax", y, axis=1)


def instance_norm_between_convolutions(m: Model) -> Outputs:
    y = m.op("Conv", m.input(2, 3, 6, 6), m.weight(16, 3, 3, 3))
    y = m.op("InstanceNormalization", y, m.weight(16), m.weight(16))
    return m.op("Conv", m.op("Relu", y), m.weight(9, 16, 3, 3))


def many_values_alive_at_once(m: Model) -> Outputs:
    x = m.input(33, 17)
    parts = [m.op("MatMul", x, m.weight(17, n)) for n in range(1, 9)]
    sums = [m.op("ReduceSum", p, m.ints(1), keepdims=1) for p in reversed(parts)]
    return m.op("Concat", *parts, *sums, axis=1)


# ------------------------------------------------------------------------------------------------ sorts and recurrences
def largest_channels_of_a_convolution(m: Model) -> Outputs:
    y = m.op("Conv", m.input(1, 3, 12, 12), m.weight(16, 3, 3, 3), pads=[1] * 4)
    return m.op("TopK", y, m.ints(3), axis=1, outputs=2)


def largest_of_a_pool_between_convolutions(m: Model) -> Outputs:
    y = m.op("Conv", m.input(1, 3, 12, 12), m.weight(16, 3, 3, 3), pads=[1] * 4)
    y = m.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    best, _ = m.op("TopK", y, m.ints(4), axis=3, outputs=2)
    return m.op("Conv", best, m.weight(8, 16, 1, 1))


def best_pixel_of_every_channel(m: Model) -> Outputs:
    y = m.op("Relu", m.op("Conv", m.input(2, 3, 6, 6), m.weight(16, 3, 1, 1)))
    return m.op("TopK", m.op("Reshape", y, m.ints(2, 16, 36)), m.ints(1), axis=-1, outputs=2)


def largest_of_a_part(m: Model) -> Outputs:
    """Neither the other part nor the places are used."""
    part, _ = m.op("Split", m.input(6, 2, 8), m.ints(5, 1), axis=0, outputs=2)
    best, _ = m.op("TopK", part, m.ints(1), axis=1, outputs=2)
    return best


def means_of_recurrent_layers(m: Model) -> Outputs:
    x, means = m.input(8, 4, 16), []
    for op, gates, axis in (("RNN", 16, 3), ("GRU", 48, 1), ("LSTM", 64, 0)):
        weights = m.weight(1, gates, 16), m.weight(1, gates, 16)
        (y,) = m.op(op, x, *weights, outputs=1, hidden_size=16)
        means.append(m.op("ReduceMean", y, m.ints(axis), keepdims=0))
    return tuple(means)


def recurrent_layers_of_one_hidden_element(m: Model) -> Outputs:
    """What a step sums over has one iteration, and no loop of its own once rows are divided."""
    x, last = m.input(20, 32, 32), []
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        weights = m.weight(2, gates, 32), m.weight(2, gates, 1)
        last += m.op(op, x, *weights, outputs=1, hidden_size=1, direction="bidirectional")
    return tuple(last)


def recurrent_layer_between_windows(m: Model) -> Outputs:
    y = m.op("Conv", m.input(2, 3, 8, 8), m.weight(16, 3, 3, 3), pads=[1] * 4)
    steps = m.op("Transpose", m.op("Reshape", y, m.ints(2, 16, 64)), perm=[2, 0, 1])
    every, last = m.op("LSTM", steps, m.weight(1, 64, 16), m.weight(1, 64, 16), outputs=2, hidden_size=16)
    pooled = m.op("MaxPool", every, kernel_shape=[1, 2], strides=[1, 2])
    return pooled, m.op("Softmax", last, axis=-1), m.op("ReduceMax", every, m.ints(2, 3), keepdims=0)


# ------------------------------------------------------------------------------------------------------------- the test

BUILDERS = [
    f
    for name, f in inspect.getmembers(sys.modules[__name__], inspect.isfunction)
    if f.__module__ == __name__ and list(inspect.signature(f).parameters) == ["m"]
]


@pytest.mark.parametrize("build", BUILDERS, ids=lambda f: f.__name__)
def test_structure(build, caplog: pytest.LogCaptureFixture) -> None:
    m = Model()
    outputs = build(m)
    check_model(m.finish(*([outputs] if isinstance(outputs, str) else outputs)))
    assert "Please report this" not in caplog.text

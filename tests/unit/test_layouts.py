"""Layouts of the buffers between kernels: which may have their channels last, and that results stay the same. Which do
is a matter of cost: `test_layout_choice.py`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.onnx_cases import Model, random_feeds
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.passes import prepare
from tilewright.graph.passes.lower import lower_graph
from tilewright.ir.layout import ReorderDims
from tilewright.schedule.steps.fold_padding import try_padding
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.schedule.trace import replay
from tilewright.search.layouts import find_images, lay_out
from tilewright.support.program import leaves
from tilewright.tir.func import Module
from tilewright.tir.interp import interpret_module
from tilewright.tir.stmt import blocks
from tilewright.tir.verify import verify_module

Build = Callable[[Model], "str | tuple[str, ...]"]


def seen(module: Module) -> list[tuple[str, tuple[int, ...]]]:
    """What the caller and the weights know of buffers."""
    fixed = (*module.inputs, *module.outputs, *(c.buffer for c in module.constants))
    return [(b.name, b.shape) for b in fixed]


def module_of(build: Build) -> Module:
    m = Model()
    made = build(m)
    return lower_graph(prepare(load_graph(m.finish(*([made] if isinstance(made, str) else made)), None)))


def channels_last(build: Build) -> list[int]:
    """The numbers of channels of the buffers between kernels whose channels can be last, in program order; all are.

    The results are what they were before, and what the caller sees keeps its shape.
    """
    m = Model()
    made = build(m)
    model = m.finish(*([made] if isinstance(made, str) else made))
    before = lower_graph(prepare(load_graph(model, None)))
    after, steps = lay_out(before, find_images(before))
    verify_module(after)
    assert seen(after) == seen(before)
    assert seen(replay(before, steps)) == seen(after)
    feeds = random_feeds(model)
    want, got = interpret_module(before, feeds), interpret_module(after, feeds)
    for name, value in want.items():
        np.testing.assert_array_equal(
            got[name], value
        )  # the order of sums is a matter of loops, not of layouts
    turned = {
        s.buffer
        for s in steps
        if isinstance(s, TransformLayout) and any(isinstance(p, ReorderDims) for p in s.layout.primitives)
    }
    used = dict.fromkeys(b for c in leaves(after.program) for b in c.args if b in after.temps)
    return [b.shape[-1] for b in used if b.name in turned]


def conv(m: Model, x: str, c_in: int, c_out: int, kernel: int = 3, **attrs: Any) -> str:
    w = m.weight(c_out, c_in // attrs.get("group", 1), kernel, kernel)
    return m.op("Conv", x, w, pads=[kernel // 2] * 4, **attrs)


def test_images_between_convolutions() -> None:
    def build(m: Model) -> str:
        y = m.op("Relu", conv(m, m.input(1, 3, 6, 5), 3, 16))
        return conv(m, m.op("Relu", conv(m, y, 16, 9)), 9, 8)

    assert channels_last(build) == [16, 9]


def test_few_channels_stay_where_they_are() -> None:
    def build(m: Model) -> str:
        return conv(m, conv(m, m.input(1, 3, 6, 5), 3, 7), 7, 4)

    assert channels_last(build) == []


def test_products_of_matrices_are_left_alone() -> None:
    def build(m: Model) -> str:
        y = m.op("MatMul", m.input(2, 9, 8), m.weight(8, 16))
        y = m.op("Softmax", m.op("MatMul", m.weight(9, 9), y), axis=-1)
        return m.op("MatMul", y, m.weight(16, 8))

    assert channels_last(build) == []


def test_what_is_computed_from_images_follows() -> None:
    """A residual, a pool, and a concatenation of channels; each kernel reads and writes its images alike."""

    def build(m: Model) -> str:
        x = conv(m, m.input(1, 3, 6, 6), 3, 16)
        y = m.op("Add", conv(m, x, 16, 16), x)
        y = m.op("MaxPool", m.op("Sigmoid", y), kernel_shape=[2, 2], strides=[2, 2])
        return conv(m, m.op("Concat", y, y, axis=1), 32, 8)

    assert set(channels_last(build)) == {16, 32}


def test_the_order_of_images_is_that_of_the_program() -> None:
    """Buffers hash by where they are in memory: a set of them has another order in every process."""
    names = ("Sigmoid", "Tanh", "Relu", "Exp", "Neg", "Abs", "Softplus", "Sqrt")

    def build(m: Model) -> str:
        x = m.input(1, 8, 6, 6)
        return conv(m, m.op("Sum", *(m.op(name, x) for name in names)), 8, 8)

    found = [b.name for b in find_images(module_of(build))]
    at = [next(n for n, image in enumerate(found) if name.lower() in image) for name in names]
    assert at == sorted(at)


def test_depthwise_convolutions_between_others() -> None:
    def build(m: Model) -> str:
        y = conv(m, m.input(1, 3, 6, 6), 3, 16, kernel=1)
        return conv(m, conv(m, y, 16, 16, group=16), 16, 8, kernel=1)

    assert channels_last(build) == [16, 16]


def test_images_of_one_and_three_dimensions() -> None:
    def build(m: Model) -> tuple[str, str]:
        x, z = m.input(2, 3, 20), m.input(1, 3, 4, 4, 4)
        y = m.op("Conv", m.op("Conv", x, m.weight(9, 3, 3)), m.weight(8, 9, 3))
        return y, m.op("Conv", m.op("Conv", z, m.weight(12, 3, 2, 2, 2)), m.weight(8, 12, 2, 2, 2))

    assert sorted(channels_last(build)) == [9, 12]


def transposed(m: Model, x: str, c_in: int, c_out: int, **attrs: Any) -> str:
    return m.op("ConvTranspose", x, m.weight(c_in, c_out, 2, 2), strides=[2, 2], **attrs)


def test_results_that_are_interleaved_between_convolutions_have_channels_last() -> None:
    def build(m: Model) -> str:
        y = transposed(m, conv(m, m.input(1, 3, 4, 32), 3, 8), 8, 16)
        return conv(m, y, 16, 8)

    assert channels_last(build) == [8, 16]


def test_pieces_of_a_concatenation_are_stored_where_it_is() -> None:
    def build(m: Model) -> str:
        skip = conv(m, m.input(1, 3, 8, 8), 3, 8)
        deep = conv(m, m.op("MaxPool", skip, kernel_shape=[2, 2], strides=[2, 2]), 8, 8)
        up = transposed(m, deep, 8, 16)
        return conv(m, m.op("Concat", skip, up, axis=1), 24, 8)

    # Neither the first nor the transposed convolution has a buffer of its own, and nothing copies.
    assert channels_last(build) == [24, 8, 8]


def copies(build: Build) -> list[str]:
    """What is left only to move data: blocks that pad, and Funcs of nothing else."""
    channels_last(build)
    module = module_of(build)
    after, _ = lay_out(module, find_images(module))
    padding = [b.name for f in after.funcs for b in blocks(f.body) if try_padding(b) is not None]
    return padding + [f.name for f in after.funcs if not any(b.is_reduction for b in blocks(f.body))]


def test_several_readers_share_a_border() -> None:
    def build(m: Model) -> tuple[str, str, str]:
        x = conv(m, m.input(1, 8, 6, 6), 8, 16, kernel=1)
        pool = m.op("MaxPool", x, kernel_shape=[5, 5], pads=[2] * 4)
        return conv(m, x, 16, 8), conv(m, x, 16, 8, kernel=5), m.op("Relu", conv(m, pool, 16, 8, kernel=1))

    assert copies(build) == []


AROUND: dict[str, Build] = {
    "reshape": lambda m: m.op("Reshape", conv(m, m.input(2, 3, 4, 4), 3, 8), m.ints(2, 32, 4)),
    "flatten": lambda m: m.op(
        "MatMul", m.op("Flatten", m.op("Relu", conv(m, m.input(2, 3, 4, 4), 3, 8))), m.weight(128, 5)
    ),
    "transpose": lambda m: m.op("Transpose", conv(m, m.input(2, 3, 4, 4), 3, 8), perm=[0, 3, 1, 2]),
    "split": lambda m: m.op("Split", conv(m, m.input(2, 3, 4, 4), 3, 16), axis=1, outputs=2, num_outputs=2),
    "pad": lambda m: conv(
        m, m.op("Pad", conv(m, m.input(1, 3, 4, 4), 3, 8), m.ints(0, 1, 1, 2, 0, 2, 0, 1)), 11, 8
    ),
    "gather": lambda m: m.op(
        "Gather", conv(m, m.input(1, 3, 4, 4), 3, 9), m.constant([5, 0, 5], np.int64), axis=1
    ),
    "softmax": lambda m: m.op("Softmax", conv(m, m.input(1, 3, 4, 4), 3, 9), axis=1),
    "mean": lambda m: m.op("GlobalAveragePool", m.op("Relu", conv(m, m.input(2, 3, 4, 4), 3, 9))),
    "both": lambda m: (lambda y: (y, conv(m, m.op("Relu", y), 9, 8)))(conv(m, m.input(1, 3, 4, 4), 3, 9)),
    "resize": lambda m: conv(
        m,
        m.op(
            "Resize",
            conv(m, m.input(1, 3, 3, 3), 3, 9),
            "",
            m.constant([1, 1, 2, 2], np.float32),
            mode="nearest",
        ),
        9,
        8,
    ),
    "transposed convolution": lambda m: m.op(
        "ConvTranspose", conv(m, m.input(1, 3, 3, 3), 3, 9), m.weight(9, 8, 2, 2), strides=[2, 2]
    ),
}


@pytest.mark.parametrize("name", AROUND)
def test_results_stay_the_same_around(name: str) -> None:
    channels_last(AROUND[name])

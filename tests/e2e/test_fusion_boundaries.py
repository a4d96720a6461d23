"""How many kernels models in pieces become, and that they compute what numpy does, also if their trace is replayed."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from tests.onnx_cases import Model, random_feeds
from tilewright.compiler import CompiledModel, compile
from tilewright.driver.trace import ProgramTrace
from tilewright.support.artifact import Segment
from tilewright.support.program import leaves

Array = NDArray[np.float32]


def summed_both_ways() -> ModelProto:
    """A cheap value that two folds of different directions read."""
    m = Model()
    t = m.op("Relu", m.op("Add", m.input(512, 512), m.constant(np.float32(1))))
    return m.finish(*(m.op("ReduceSum", t, m.ints(axis), keepdims=0) for axis in (0, 1)))


def numpy_sums(x: Array) -> Sequence[Array]:
    t = np.maximum(x + 1, 0)
    return [t.sum(axis) for axis in (0, 1)]


HEADS, TOKENS, DIM = 4, 32, 64
COS, SIN = (f(np.arange(TOKENS)[:, None] * 0.1 + np.arange(DIM)) for f in (np.cos, np.sin))


def rotated() -> ModelProto:
    """Queries and keys, of each of which the second half is negated and goes first."""
    m = Model()
    cos, sin = (m.constant(a.astype(np.float32)) for a in (COS, SIN))
    made: list[str] = []
    for _ in range(2):
        x = m.input(1, HEADS, TOKENS, DIM)
        low, high = (m.op("Slice", x, m.ints(a), m.ints(a + DIM // 2), m.ints(3)) for a in (0, DIM // 2))
        turned = m.op("Concat", m.op("Neg", high), low, axis=-1)
        made.append(m.op("Add", m.op("Mul", x, cos), m.op("Mul", turned, sin)))
    return m.finish(*made)


def numpy_rotated(*inputs: Array) -> Sequence[Array]:
    half = DIM // 2
    return [x * COS + np.concatenate([-x[..., half:], x[..., :half]], -1) * SIN for x in inputs]


def kernels(made: CompiledModel) -> int:
    return sum(len(s.calls) for s in leaves(made.artifact.program) if isinstance(s, Segment))


@pytest.mark.parametrize(
    ("model", "count", "expected"),
    [
        (summed_both_ways(), 3, numpy_sums),  # the sum of columns is divided for a team, and added up
        (rotated(), 2, numpy_rotated),
    ],
    ids=["a cheap value of two folds", "queries and keys"],
)
def test_kernels_and_results(model: ModelProto, count: int, expected: Callable[..., Sequence[Array]]) -> None:
    made = compile(model)
    assert kernels(made) == count
    feeds = random_feeds(model)
    for program in (made, compile(model, trace=ProgramTrace.parse(str(made.trace)))):
        assert program.trace == made.trace
        with program.session(2) as session:
            for got, want in zip(session.run(feeds).values(), expected(*feeds.values()), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)

"""While something is compiled, garbage is collected rarely and recursion goes deep; as before afterwards."""

import gc
import sys
from collections.abc import Iterator

import numpy as np
import onnx
import pytest

from tilewright.compiler import compile
from tilewright.support.compiling import compiling


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before, depth = gc.get_threshold(), sys.getrecursionlimit()
    yield
    gc.set_threshold(*before)
    sys.setrecursionlimit(depth)


def test_as_before_when_the_last_one_is_through() -> None:
    gc.set_threshold(600, 11, 12)
    sys.setrecursionlimit(1100)
    with pytest.raises(KeyError), compiling():
        with compiling():
            assert gc.get_threshold()[0] > 100_000 and gc.isenabled()
        assert gc.get_threshold()[0] > 100_000 and sys.getrecursionlimit() > 10_000
        raise KeyError
    assert gc.get_threshold() == (600, 11, 12) and sys.getrecursionlimit() == 1100


def test_who_wants_it_never_or_more_rarely_still_has_it_so() -> None:
    for wanted in ((0, 0, 0), (10_000_000, 5, 5)):
        gc.set_threshold(*wanted)
        with compiling():
            assert gc.get_threshold() == wanted
        assert gc.get_threshold() == wanted


def test_a_long_chain_of_functions() -> None:
    nodes = [onnx.helper.make_node("Tanh", [f"x{n}"], [f"x{n + 1}"]) for n in range(70)]
    ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [8]) for n in ("x0", "x70")]
    graph = onnx.helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    x = np.linspace(-2, 2, 8, dtype=np.float32)
    want = x
    for _ in nodes:
        want = np.tanh(want)
    (got,) = compile(model).session().run({"x0": x}).values()
    np.testing.assert_allclose(got, want, rtol=1e-5)

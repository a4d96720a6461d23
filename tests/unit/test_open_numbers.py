"""Numbers that depend on open sizes, as nodes over the shapes of inputs."""

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tilewright.frontend.onnx.open_numbers import DimNames, NumberWriter
from tilewright.graph.origin import OpenNumbers
from tilewright.graph.value import Value
from tilewright.ir.dtype import DType
from tilewright.ops.opdef import TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.support.sizes import Dim, size_of, sym_int

BATCH, N, STEPS = sym_int(Dim("batch", 1, 8)), sym_int(Dim("n", 2, 64)), sym_int(Dim("steps", 4, 40, 4))


def written(numbers: OpenNumbers, shapes: Sequence[tuple[int, ...]], at: dict[str, int]) -> Array:
    """What the nodes compute for inputs of these shapes, where dimensions have sizes."""
    inputs = [Value(f"x{i}", TensorType(DType.F32, s)) for i, s in enumerate(shapes)]
    literals: dict[str, Array] = {}

    def literal(array: Array) -> str:
        literals[f"c{len(literals)}"] = array
        return f"c{len(literals) - 1}"

    writer = NumberWriter(inputs, literal, {"size~0"})
    result = writer.write(numbers, 18)
    graph = helper.make_graph(
        writer.nodes,
        "g",
        [helper.make_tensor_value_info(v.name, TensorProto.FLOAT, None) for v in inputs],
        [helper.make_tensor_value_info(result, helper.np_dtype_to_tensor_dtype(numbers.dtype), None)],
        [numpy_helper.from_array(a, n) for n, a in literals.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    feeds = {v.name: np.zeros([size_of(n).evaluate(at) for n in v.shape], np.float32) for v in inputs}
    return np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])


@pytest.mark.parametrize(
    ("values", "shapes"),
    [
        ((BATCH, N, 8), [(BATCH, N)]),
        ((BATCH * N, -1), [(BATCH, N)]),
        ((N, 3), [(N + 2,)]),
        ((N, BATCH), [(BATCH * N, 2), (1, BATCH)]),
        ((N, BATCH), [(2 * N + BATCH,), (3 * BATCH,)]),
        (((N + 1) // 2, N // 3 * BATCH), [(N, BATCH)]),
        (((N + 1) // 2 + 1,), [((N + 1) // 2,)]),
        ((STEPS, STEPS // 2, STEPS // 4), [(STEPS // 2,)]),
        ((BATCH * N + 1, N * N - N), [(BATCH * N, N)]),
    ],
)
def test_numbers_follow_from_shapes(values: tuple[int, ...], shapes: list[tuple[int, ...]]) -> None:
    numbers = OpenNumbers(values, (len(values),), np.dtype(np.int64))
    for at in ({"batch": 1, "n": 2, "steps": 4}, {"batch": 3, "n": 11, "steps": 36}):
        want = [size_of(n).evaluate(at) for n in values]
        np.testing.assert_array_equal(written(numbers, shapes, at), want)


@pytest.mark.parametrize(("shape", "dtype"), [((), np.int32), ((1, 1), np.int64)])
def test_numbers_have_their_shape_and_type(shape: tuple[int, ...], dtype: type) -> None:
    found = written(OpenNumbers((N,), shape, np.dtype(dtype)), [(N,)], {"n": 5})
    assert found.shape == shape and found.dtype == dtype and found.reshape(-1)[0] == 5


def test_sizes_that_shapes_do_not_tell() -> None:
    numbers = OpenNumbers((N,), (1,), np.dtype(np.int64))
    with pytest.raises(UserError, match="the size n does not follow from the shapes of the region's inputs"):
        written(numbers, [(BATCH * N,)], {"batch": 2, "n": 4})
    with pytest.raises(UserError, match="does not follow"):
        written(numbers, [(BATCH * N,), (BATCH + N,)], {"batch": 2, "n": 4})


def test_numbers_in_an_opset_without_arithmetic_that_broadcasts() -> None:
    with pytest.raises(UserError, match="not written as nodes of opset 6"):
        NumberWriter([], str, ()).write(OpenNumbers((N,), (1,), np.dtype(np.int64)), 6)


def test_names_of_sizes() -> None:
    names, clash = DimNames(), sym_int(Dim("n * 2", 1, 9))
    assert names.shape((BATCH, 3, N * 2, N, clash, N)) == ["batch", 3, "n * 2", "n", "n * 2~", "n"]
    assert names.numbers(["n", 4, "n * 2"]) == (N, 4, N * 2)
    assert names.numbers(["m"]) is None and names.numbers([None]) is None

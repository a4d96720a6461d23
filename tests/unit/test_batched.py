"""Models on larger batches: what keeps its batch apart is rewritten, anything else refused."""

import click
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from benchmarks.batched import with_batch
from benchmarks.onnx_runtime import BoundOnnxRuntime
from examples.models import mlp, resnet18


@pytest.mark.parametrize("build", [lambda: mlp((8, 4)), lambda: resnet18(size=32, classes=10)])
def test_each_row_is_what_it_is_alone(build: object) -> None:
    assert callable(build)
    model = build()
    assert isinstance(model, ModelProto)
    single, several = (
        BoundOnnxRuntime(m.SerializeToString(), threads=1) for m in (model, with_batch(model, 3))
    )
    (spec,) = several.inputs
    x = np.random.default_rng(0).standard_normal(spec.shape).astype(np.float32)
    assert len(x) == 3
    (y,) = several({spec.name: x}).values()
    alone = [next(iter(single({spec.name: x[n : n + 1]}).values())) for n in range(3)]
    np.testing.assert_allclose(y, np.concatenate(alone), rtol=1e-4, atol=1e-5)


def flatten(shape: list[int]) -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6])
    to = numpy_helper.from_array(np.array(shape, np.int64), "to")
    graph = helper.make_graph([helper.make_node("Reshape", ["x", "to"], ["y"])], "flatten", [x], [y], [to])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_a_shape_that_begins_with_one_keeps_the_batch() -> None:
    made = with_batch(flatten([1, 6]), 4)
    assert numpy_helper.to_array(made.graph.initializer[0]).tolist() == [4, 6]


def test_a_model_that_mixes_its_batch_is_refused() -> None:
    with pytest.raises(click.ClickException, match="mixes its batch"):
        with_batch(flatten([-1, 12]), 4)

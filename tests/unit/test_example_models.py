"""The networks of examples/models.py are valid ONNX, reproducible, and the size they claim to be."""

import math

import onnx
import pytest
from onnx import ModelProto, TensorProto

from examples.models import mlp, resnet18, transformer_encoder

SMALL = {
    "mlp": lambda: mlp((8, 6, 4)),
    "resnet18": lambda: resnet18(size=32, classes=7),
    "transformer_encoder": lambda: transformer_encoder(layers=1, hidden=16, heads=2, tokens=4),
}


def parameters(model: ModelProto) -> int:
    """Trainable ones: running statistics and shapes do not count."""
    return sum(
        math.prod(t.dims)
        for t in model.graph.initializer
        if t.data_type == TensorProto.FLOAT and not t.name.startswith(("bn_mean", "bn_var"))
    )


@pytest.mark.parametrize("name", SMALL)
def test_model_is_valid_and_reproducible(name: str) -> None:
    model = SMALL[name]()
    onnx.checker.check_model(model, full_check=True)
    assert model.graph.name == name
    assert SMALL[name]().SerializeToString() == model.SerializeToString()


def test_resnet18_is_the_published_network() -> None:
    model = resnet18()
    assert parameters(model) == 11_689_512
    assert sum(n.op_type == "Conv" for n in model.graph.node) == 20


def test_transformer_rejects_heads_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="multiple of heads"):
        transformer_encoder(hidden=10, heads=3)

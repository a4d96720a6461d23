"""Everything that `inspect` shows, of models of several kinds: it must never fail where the model compiles."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import ModelProto

from examples.models import transformer_encoder
from tests.onnx_cases import Model
from tests.toy_plugin import Numpy
from tilewright.cli.main import main
from tilewright.cli.peak import measure_limits
from tilewright.plugins.registry import register_plugin, unregister_plugin
from tilewright.stages import Stages, stages
from tilewright.support.program import leaves
from tilewright.tir.func import Call, Module
from tilewright.tir.parser import parse_module

NUMPY = ("--placement", "--plugin", "numpy", "--policy", "greedy")
PROFILE = ("--profile", "--seconds", "0", "--threads", "1")


def encoder() -> ModelProto:
    """Equal layers, which share their schedules."""
    return transformer_encoder(layers=2, hidden=32, heads=2, tokens=8)


def classifier() -> ModelProto:
    """Blocks of an expansion, a depthwise filter, channels scaled by their means, and a projection."""
    m = Model()
    x = m.op(
        "HardSwish", m.op("Conv", m.input(1, 3, 16, 16), m.weight(16, 3, 3, 3), strides=[2, 2], pads=[1] * 4)
    )
    for _ in range(2):
        y = m.op("Relu", m.op("Conv", x, m.weight(32, 16, 1, 1), m.weight(32)))
        y = m.op("Relu", m.op("Conv", y, m.weight(32, 1, 3, 3), m.weight(32), group=32, pads=[1] * 4))
        scale = m.op("Conv", m.op("GlobalAveragePool", y), m.weight(32, 32, 1, 1))
        y = m.op("Mul", y, m.op("HardSigmoid", scale))
        x = m.op("Add", x, m.op("Conv", y, m.weight(16, 32, 1, 1), m.weight(16)))
    y = m.op("Flatten", m.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]))
    return m.finish(m.op("Softmax", m.op("MatMul", y, m.weight(16 * 16, 10)), axis=-1))


def recogniser() -> ModelProto:
    """Windows, recurrent layers in both directions, and the best of each step."""
    m = Model()
    x = m.op("Relu", m.op("Conv", m.input(1, 1, 8, 24), m.weight(8, 1, 3, 3), m.weight(8), pads=[1] * 4))
    x = m.op("MaxPool", x, kernel_shape=[8, 2], strides=[8, 2])
    x = m.op("Transpose", m.op("Squeeze", x, m.ints(2)), perm=[2, 0, 1])
    for _ in range(2):
        weights = m.weight(2, 32, 8), m.weight(2, 32, 8), m.weight(2, 64)
        (y,) = m.op("LSTM", x, *weights, outputs=1, hidden_size=8, direction="bidirectional")
        x = m.op("ReduceMean", y, m.ints(1), keepdims=0)
    return m.finish(*m.op("TopK", m.op("Softmax", x, axis=-1), m.ints(2), axis=-1, outputs=2))


def detector() -> ModelProto:
    """Two scales side by side; what is kept of their places is for the host to say."""
    m = Model()
    x = m.op("Conv", m.input(1, 3, 8, 8), m.weight(8, 3, 3, 3), pads=[1] * 4)
    small = m.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    scales = m.constant([1, 1, 2, 2], np.float32)
    large = m.op("Resize", small, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric")
    y = m.op("Sigmoid", m.op("Conv", m.op("Concat", x, large, axis=1), m.weight(1, 16, 1, 1)))
    return m.finish(y, m.op("NonZero", m.op("Greater", y, m.constant(0.5, np.float32))))


def odd_names() -> ModelProto:
    """Names that are no identifiers, that are keywords of the text, and that differ only in such characters."""
    m = Model()
    x = m.input(4, 8)
    y = x
    for _ in range(3):
        y = m.op("Relu", m.op("MatMul", y, m.weight(8, 8)))
    model = m.finish(m.op("Add", m.op("Softmax", y, axis=-1), x))
    words = ["p2o/Conv.0:0", "p2o.Conv.0:0", "range", "for", "名前", "with block", "t0", 'a\\"b']
    names = dict(zip(dict.fromkeys(o for n in model.graph.node for o in n.output), words, strict=True))
    for n in model.graph.node:
        n.input[:] = [names.get(i, i) for i in n.input]
        n.output[:] = [names[o] for o in n.output]
    for o in model.graph.output:
        o.name = names[o.name]
    return model


MODELS = (encoder, classifier, recogniser, detector, odd_names)

_MADE: dict[tuple[bytes, str], Stages] = {}


def stages_once(model: Path, **options: Any) -> Stages:
    """Commands that ask for the same compilation of the same model share it: what they show of it is looked at here."""
    key = model.read_bytes(), repr(sorted((name, v) for name, v in options.items() if v))
    if key not in _MADE:
        _MADE[key] = stages(model, **options)
    return _MADE[key]


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TILEWRIGHT_CACHE", str(folder / "cache"))
        environment.setenv("TILEWRIGHT_DB", "off")
        environment.setattr("tilewright.cli.profile.measure_limits", partial(measure_limits, seconds=0))
        environment.setattr("tilewright.cli.inspection.stages", stages_once)
        register_plugin(Numpy())
        yield
        unregister_plugin("numpy")


@pytest.fixture(params=MODELS, ids=lambda f: f.__name__)
def make(request: pytest.FixtureRequest) -> Callable[[], ModelProto]:
    return request.param


@pytest.fixture
def model(make: Callable[[], ModelProto], tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(make().SerializeToString())
    return path


def inspect(model: Path, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["inspect", str(model), *arguments])
    assert result.exit_code == 0, f"inspect {' '.join(arguments)}: {result.output}"
    return result.stdout


def inspect_json(model: Path, *arguments: str) -> dict[str, Any]:
    return json.loads(inspect(model, *arguments, "--json"))


def test_every_stage_is_printed(model: Path) -> None:
    names = [k["name"] for k in inspect_json(model)["kernels"]]
    for stage in ("graph", "tir"):
        assert inspect(model, "--ir", stage).strip()
    for stage in ("lowered", "llvm", "asm"):
        text = inspect(model, "--ir", stage)
        assert stage == "lowered" or all(n in text for n in names)
    assert inspect_json(model, "--ir", "scheduled")["text"].strip()


def test_the_profile_and_the_placement_are_shown(model: Path) -> None:
    kernels = {k["name"] for k in inspect_json(model)["kernels"]}
    profile = inspect_json(model, *PROFILE)
    assert {k["name"] for k in profile["kernels"]} == kernels
    placed = inspect_json(model, *NUMPY)
    assert {r["plugin"] for r in placed["regions"]} <= {"numpy"} and placed["units"]


@pytest.mark.parametrize("make", [odd_names], indirect=True)
def test_so_they_are_for_people(model: Path) -> None:
    assert "GB/s read from memory" in inspect(model, *PROFILE)
    assert "by native code" in inspect(model, *NUMPY)


def test_modules_are_whole_and_read_back(make: Callable[[], ModelProto]) -> None:
    found = stages(make())
    for module in (found.tir, found.scheduled):
        check_whole(module)
        values = {c.buffer.name: c.value for c in module.constants}
        assert str(parse_module(str(module), values)) == str(module)


def check_whole(module: Module) -> None:
    """Every Func is called, by a name that is its own, with buffers that fit its params."""
    funcs = {f.name: f for f in module.funcs}
    found = [c for c in leaves(module.program) if isinstance(c, Call)]
    assert len(funcs) == len(module.funcs) and {c.func for c in found} == set(funcs)
    for c in found:
        assert [(b.shape, b.dtype) for b in c.args] == [(p.shape, p.dtype) for p in funcs[c.func].params]

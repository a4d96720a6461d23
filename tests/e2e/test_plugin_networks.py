"""Whole networks with everything that ONNX Runtime takes given to it: they run, and give what ONNX Runtime gives.

Those that come inside of packages on PyPI are tried where the packages are installed.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

import tilewright as tw
from benchmarks.agreement import PACKAGES, Case, check, wheel_feeds
from examples.models import mlp, resnet18, transformer_encoder

pytest.importorskip("onnxruntime")

NETWORKS = {
    "mlp": lambda: mlp((32, 24, 10)),
    "resnet18": lambda: resnet18(size=32, classes=10),
    "transformer": lambda: transformer_encoder(layers=1, hidden=32, heads=2, tokens=16),
}


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")


def agree(path: Path, label: str, feeds: dict[str, np.ndarray]) -> None:
    row = check(Case("test", f"{path.stem} {label}", path, feeds), ("onnxruntime",))
    assert row.is_fine, f"{row.case.name}: error {row.error:.3g} {row.problem}"


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network(name: str, tmp_path: Path) -> None:
    model: ModelProto = NETWORKS[name]()
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    rng = np.random.default_rng(0)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    agree(path, "", {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()})
    made = tw.compile(path, plugins=("onnxruntime",), placement="greedy", strict=True)
    assert len(made.artifact.regions) == 1  # all of it


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_the_models_of_a_package(package: str) -> None:
    found = find_spec(package.replace("-", "_"))
    folders = [] if found is None else list(found.submodule_search_locations or ())
    models = sorted(p for folder in folders for p in Path(folder).rglob("*.onnx"))
    if not models:
        pytest.skip(f"{package} is not installed")
    for path in models:
        for label, feeds in wheel_feeds(path):
            agree(path, label, dict(feeds))

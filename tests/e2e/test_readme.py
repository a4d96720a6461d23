"""The quick start of the README works as it is printed."""

import re
from pathlib import Path

import numpy as np
import pytest

from examples.models import mlp

ROOT = Path(__file__).resolve().parents[2]


def test_quick_start_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(mlp().SerializeToString())
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    outputs = names["outputs"]
    assert isinstance(outputs, dict)
    assert outputs["y"].shape == (1, 10)
    assert np.isfinite(outputs["y"]).all()

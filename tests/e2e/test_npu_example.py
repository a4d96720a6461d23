"""The accelerator in examples/npu, an out-of-tree package: its own tests, in processes that find it by its path."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "npu"
# What brings the machine to Tilewright: with what it claims, calibration and lowering.
BRIDGE = ("plugin", "layers", "calibration", "lowering")


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_its_own_tests_pass(which: str) -> None:
    source = os.pathsep.join([str(PACKAGE / "src"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, str(PACKAGE / "tests")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_bridge_is_small() -> None:
    files = [PACKAGE / "src" / "tilewright_npu" / f"{name}.py" for name in BRIDGE]
    lines = {p.stem: len(p.read_text(encoding="utf-8").splitlines()) for p in files}
    print(", ".join(f"{name}: {n}" for name, n in lines.items()), f"together: {sum(lines.values())} lines")
    assert sum(lines.values()) <= 400

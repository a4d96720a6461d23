"""Promises about the sources as a whole that no linter of ours checks."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tilewright

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "tilewright").rglob("*.py"))
MAX_LINES = 500
VAGUE = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT / "src"))


def test_sources_were_found() -> None:
    assert len(SOURCES) > 30


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_file_is_short_and_says_what_it_is_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES, f"{name_of(path)} is too long: split it by noun"
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{name_of(path)} has no module docstring"


def test_no_module_has_a_vague_name() -> None:
    assert not [name_of(p) for p in SOURCES if p.stem in VAGUE or p.stem.startswith("new_")]


def test_test_files_have_unique_names() -> None:
    """pytest imports them by basename: two of the same name shadow each other."""
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))


def test_readme_names_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
    assert re.search(r"^make (\S+ )?test$", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE)


def test_dev_install_is_light() -> None:
    """`make test` must not download a framework."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert not [r for r in extras["dev"] if r.startswith(("torch", "ray", "tilewright"))]


def test_runtime_does_not_need_the_compiler() -> None:
    """A machine that only runs compiled programs has neither LLVM nor onnx."""
    code = (
        "import sys\n"
        "sys.modules['llvmlite'] = sys.modules['onnx'] = None\n"  # importing them raises ImportError
        "import tilewright.runtime, tilewright.support.artifact\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_public_names_exist() -> None:
    assert all(getattr(tilewright, name) is not None for name in tilewright.__all__)
    with pytest.raises(AttributeError):
        tilewright.nonsense  # noqa: B018

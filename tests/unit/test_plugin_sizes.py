"""A plugin is small: what it takes to bring one's own code generator is a promise, printed and kept."""

from pathlib import Path

import pytest

import tilewright.plugins

FOLDER = Path(tilewright.plugins.__file__).parent
OURS = ("__init__", "registry", "isolation", "packages", "worker")  # the mechanism, which all plugins share
PLUGINS = sorted(p for p in FOLDER.glob("*.py") if p.stem not in OURS)


@pytest.mark.parametrize("path", PLUGINS, ids=lambda p: p.stem)
def test_a_plugin_has_at_most_400_lines(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    print(f"{path.stem}: {lines} lines")
    assert lines <= 400

"""A plugin is small: what it takes to bring one's own code generator is a promise, printed and kept."""

from pathlib import Path

import pytest

import tilewright.plugins

FOLDER = Path(tilewright.plugins.__file__).parent
# The mechanism, which all plugins share.
OURS = ("__init__", "registry", "isolation", "packages", "worker", "chains", "foreign", "primitives")
FILES = sorted(p for p in FOLDER.glob("*.py") if p.stem not in OURS)
PLUGINS = sorted({p.stem.split("_")[0] for p in FILES})


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_has_at_most_400_lines(plugin: str) -> None:
    """In all its files: `onednn_library` is part of `onednn`."""
    files = [p for p in FILES if p.stem.split("_")[0] == plugin]
    lines = sum(len(p.read_text(encoding="utf-8").splitlines()) for p in files)
    print(f"{plugin}: {lines} lines")
    assert lines <= 400

"""One version number, and pages that state it and the format of files as they are."""

import re
from pathlib import Path

import tilewright
from tilewright.support.artifact import FORMAT_VERSION

ROOT = Path(__file__).parents[2]


def test_the_changelog_begins_with_this_version() -> None:
    first = re.search(
        r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert first is not None, "a heading of the form `## 0.1.0 (unreleased)` or `## 0.1.0 (2030-01-31)`"
    assert first[1] == tilewright.__version__


def test_both_wheels_read_their_version_from_one_file() -> None:
    for project in ("pyproject.toml", "wheels/runtime/pyproject.toml"):
        text = (ROOT / project).read_text()
        path = re.search(r'^\[tool\.hatch\.version\]\npath = "(.+)"$', text, re.MULTILINE)
        assert path is not None, f"{project} states no [tool.hatch.version] path"
        assert ((ROOT / project).parent / path[1]).resolve() == ROOT / "src/tilewright/version.py"


def test_pages_state_the_format_of_files() -> None:
    stated = re.findall(
        r"format (\d+)", (ROOT / "docs/versioning.md").read_text() + (ROOT / "CHANGELOG.md").read_text()
    )
    assert set(stated) == {str(FORMAT_VERSION)}

"""The documentation becomes a site: strictly, and without anything from the network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What a browser would fetch by itself when it shows a page.
_FETCHED = re.compile(
    r"""<(?:link|script|img|iframe|source)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^"'\s>]+|@import"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = {p.relative_to(ROOT / "docs").with_suffix(".html") for p in (ROOT / "docs").rglob("*.md")}
    renamed = {p.with_name("index.html") if p.name == "README.html" else p for p in pages}
    assert not [p for p in renamed if not (site / p).is_file()]
    assert (site / "contributing.html").is_file()


def test_a_reader_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        found = _FETCHED.search(page.read_text(encoding="utf-8"))
        assert found is None, f"{page.relative_to(site)}: {found[0]}"
    assert "url(http" not in "".join(p.read_text(encoding="utf-8") for p in site.rglob("*.css"))

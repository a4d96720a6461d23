"""Links of documents lead somewhere: to a file, and to a heading of it. So do the pages that sources name."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
SOURCES = sorted(p for f in ("src", "benchmarks", "examples", "tests") for p in (ROOT / f).rglob("*.py"))

_FENCED = re.compile(r"^(```|~~~).*?^\1", flags=re.M | re.S)
_LINK = re.compile(r"\]\((?P<path>[^)#:\s]*)(?:#(?P<anchor>[^)\s]*))?\)")
_IN_HTML = re.compile(r"<(?:img|a|source)\b[^>]*?\b(?:src|href|srcset)=\"(?P<path>[^\"#:]+)\"")


def prose(path: Path) -> str:
    return _FENCED.sub("", path.read_text(encoding="utf-8"))


@cache
def anchors(path: Path) -> frozenset[str]:
    """Of the headings, as repository viewers and the site make them. Of headings with the same text only the first."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *#*$", prose(path), flags=re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-"))
    return frozenset(found)


def broken(path: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(path))
    found: list[str] = []
    for m in _LINK.finditer(text):
        target = (path.parent / m["path"]).resolve() if m["path"] else path
        is_heading = m["anchor"] is None or (target.suffix == ".md" and m["anchor"] in anchors(target))
        if not (target.exists() and is_heading):
            found.append(m[0])
    return found + [m[0] for m in _IN_HTML.finditer(text) if not (path.parent / m["path"]).exists()]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_of_documents_lead_somewhere(path: Path) -> None:
    assert not broken(path)


def test_pages_that_sources_name_exist() -> None:
    missing: list[str] = []
    for path in SOURCES:
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8")):
            is_made = path.is_relative_to(ROOT / "benchmarks") and name.startswith("docs/results/")
            if not is_made and not (ROOT / name).exists():
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert not missing


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A `heading`, of two\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md#a-heading-of-two) [b](there.md#no) [c](gone.md) [d](#no) `[e](gone.md)`\n")
    assert broken(page) == ["](there.md#no)", "](gone.md)", "](#no)"]

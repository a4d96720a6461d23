"""Comments and pages name only what exists: files, modules, attributes and identifiers in `backticks`.

A path leads to a file. A dotted name that begins with a module or a class leads to something in it. Any other name is a
word of the code somewhere; words in backticks do not count, so that one which is left over does not speak for itself.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tilewright"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PAGES = sorted(
    [
        *(p for p in (ROOT / "docs").glob("*.md") if not p.name.startswith("from-")),  # about names of others
        *(ROOT / "docs" / "decisions").glob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    ]
)
CODE = sorted(p for f in ("src", "benchmarks", "examples", "tests") for p in (ROOT / f).rglob("*.py"))

# Names that a rule makes, or that are somebody else's.
ELSEWHERE = {
    "DATA_BATCH": "of ONNX: what a dimension means",
    "S_1_i": "a loop, as steps name it",
    "TILEWRIGHT_PYTHON_ENGINE": "made of the name of an engine",
    "cat_low": "a block, as a step names it",
    "concurrent.futures.ProcessPoolExecutor": "of Python",
    "families/NAME/": "any family",
    "first__second": "a Func, as a step names it",
    "k17_conv_relu": "a kernel, as it was once named",
    "name_1": "of attributes of any name",
    "samples/": "a folder of the reader's",
    "schedule/recipes/": "a folder that a decision is about, and that is gone",
    "tflite_runtime": "a package of others",
    "thing_create": "any function of this form",
    "thing_destroy": "any function of this form",
    "tilewright.extensions": "a group of entry points",
}

_FENCED = re.compile(r"^```.*?^```", flags=re.M | re.S)
_SPAN = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"[\w.-]*/?(?:[\w.-]+/)*[\w.-]+\.(?:py|md|sh|toml|yml)|(?:[\w.-]+/)+")
_DOTTED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(.*\))?")
_NAME = re.compile(r"([A-Za-z_]\w*)(?:\(.*\))?")


def spans(path: Path) -> Iterator[str]:
    yield from _SPAN.findall(_FENCED.sub("", path.read_text(encoding="utf-8")))


@lru_cache(maxsize=64)
def examples(path: Path) -> frozenset[str]:
    """Words of the code that a page shows."""
    blocks = _FENCED.findall(path.read_text(encoding="utf-8")) if path.suffix == ".md" else ()
    return frozenset(w for block in blocks for w in re.findall(r"[A-Za-z_]\w*", block))


@lru_cache(maxsize=1)
def words() -> frozenset[str]:
    """All words of the code that are not in backticks."""
    found: set[str] = set()
    for path in (*CODE, ROOT / "pyproject.toml", ROOT / "Makefile"):
        if path != Path(__file__):
            found |= set(re.findall(r"[A-Za-z_]\w*", _SPAN.sub("", path.read_text(encoding="utf-8"))))
    return frozenset(found)


@lru_cache(maxsize=1)
def classes() -> dict[str, str]:
    """The texts of the modules that define a class, by its name."""
    found: dict[str, str] = {}
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"^class (\w+)", text, flags=re.M):
            found[name] = found.get(name, "") + text
    return found


def is_path(text: str, at: Path) -> bool:
    homes = (ROOT, ROOT / "src", PACKAGE, ROOT / "docs", ROOT / "docs" / "results", *at.parents[:3])
    if any((home / text).exists() for home in homes):
        return True
    if at.suffix == ".py":
        return "/" not in text and any(at.parent.rglob(text))
    # A page may name a file of a folder that it is about, or one that its reader makes.
    is_there = any(f"/{text}" in f"{p.relative_to(ROOT)}" for p in CODE)
    return is_there or text.removesuffix(".py") in examples(at)


def module_at(parts: list[str], at: Path) -> tuple[Path, list[str]] | None:
    """The module that a dotted name begins with, and what is left of the name."""
    homes = (ROOT / "src", ROOT, PACKAGE, at.parent) if at.suffix == ".py" else (ROOT / "src", ROOT, PACKAGE)
    for home in homes:
        for n in range(len(parts), 0, -1):
            stem = home.joinpath(*parts[:n])
            for file in (stem.with_suffix(".py"), stem / "__init__.py"):
                if file.exists():
                    return file, parts[n:]
    return None


def is_known(text: str, at: Path) -> bool:
    if _PATH.fullmatch(text):
        return is_path(text, at)
    if dotted := _DOTTED.fullmatch(text):
        parts = dotted[1].split(".")
        if (found := module_at(parts, at)) and (parts[0] in ("tilewright", "benchmarks") or not found[1]):
            file, rest = found
            return not rest or bool(
                re.search(rf"\b{rest[0]}\b", _SPAN.sub("", file.read_text(encoding="utf-8")))
            )
        if parts[0] in classes():
            return bool(re.search(rf"\b{parts[1]}\b", _SPAN.sub("", classes()[parts[0]])))
        return all(p in words() or p in examples(at) for p in parts)
    if name := _NAME.fullmatch(text):
        return name[1] in words() or name[1] in examples(at) or not re.search(r"_|[a-z][A-Z]", name[1])
    return True


@pytest.mark.parametrize("paths", [SOURCES, PAGES], ids=["sources", "pages"])
def test_what_is_named_exists(paths: list[Path]) -> None:
    unknown = [
        f"{path.relative_to(ROOT)}: `{text}`"
        for path in paths
        for text in spans(path)
        if text not in ELSEWHERE and not is_known(text, path)
    ]
    assert not unknown, "\n".join(unknown)


def test_exceptions_are_needed() -> None:
    named = {text for path in (*SOURCES, *PAGES) for text in spans(path)}
    assert ELSEWHERE.keys() <= named


def test_what_does_not_exist_is_found() -> None:
    here = PACKAGE / "cli" / "bench.py"
    assert not is_known("cli/nonesuch.py", here)
    assert not is_known("tilewright.cli.bench.nonesuch", here)
    assert not is_known("Schedule.nonesuch", here)
    assert not is_known("lower_" + "nonesuch", here)
    assert is_known("cli/bench.py", here) and is_known("tilewright.cli.bench.show", here)

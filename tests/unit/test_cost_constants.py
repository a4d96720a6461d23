"""Costs are formulas: figures of a CPU are in `target/machine.py`; what was fitted has a name, a unit and an origin."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilewright

ROOT = Path(tilewright.__file__).parent
SOURCES = sorted([*(ROOT / "cost").glob("*.py"), *(ROOT / "families").glob("*/cost.py")])
STEERING = sorted(
    p
    for name in ("cost", "families", "search", "target")
    for p in (ROOT / name).rglob("*.py")
    if p.name not in ("database.py", "tuning_tables.py", "figures.py")  # limits of files
)
UNIT = re.compile(
    r"\b(cycles|seconds|bytes|KiB|elements|lanes|vectors|registers|rows|columns|channels|steps|iterations|taps|loads"
    r"|lines|parts|chunks|bands|heads|results|threads|meetings|instructions|operations|multiply-adds|statements"
    r"|mappings|points|candidates|children|rounds|tiles|keys|times|of)\b"
)
# given: by hardware or a format. counted: in code or in a formula. measured: by the benchmark or the cases named.
# swept: by benchmarks/constants.py. bound: of what is tried or written out, beyond which there is only more to compile.
ORIGIN = re.compile(r"\b(given|counted|measured|swept|bound)\b", re.IGNORECASE)
FIGURE = 1e6  # a number as large is a clock or a rate, or bytes of a cache
PLAIN = {0.0, 0.5, 1.0, 2.0}  # nothing, half, one, and both: no fits


def comments(text: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {t.start[0]: t.string for t in tokens if t.type == tokenize.COMMENT}


def numbers(tree: ast.AST) -> Iterator[ast.Constant]:
    for n in ast.walk(tree):
        if isinstance(n, ast.Constant) and isinstance(n.value, int | float) and not isinstance(n.value, bool):
            yield n


def named(tree: ast.Module) -> list[ast.Assign]:
    return [n for n in tree.body if isinstance(n, ast.Assign) and any(numbers(n.value))]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: "/".join(p.parts[-2:]))
def test_costs_have_no_figures_of_a_cpu(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not [n.value for n in numbers(tree) if isinstance(n.value, int | float) and n.value >= FIGURE]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: "/".join(p.parts[-2:]))
def test_every_constant_says_what_it_is(path: Path) -> None:
    """On its line, or on the line above it."""
    text = path.read_text()
    said = comments(text)
    for n in named(ast.parse(text)):
        lines = range(n.lineno - 1, (n.end_lineno or n.lineno) + 1)
        assert any(line in said for line in lines), f"{path.name}:{n.lineno}: {ast.unparse(n)}"


def said_of(text: str, node: ast.Assign) -> str:
    """The comments of a constant, on its lines, and of the group of lines that it is in, above it."""
    lines, said = text.splitlines(), comments(text)
    found = [said.get(n, "") for n in range(node.lineno, (node.end_lineno or node.lineno) + 1)]
    for n in range(node.lineno - 1, 0, -1):
        if not lines[n - 1].strip():
            break
        if lines[n - 1].startswith("#"):
            found.append(said[n])
    return " ".join(found)


@pytest.mark.parametrize("path", STEERING, ids=lambda p: "/".join(p.parts[-2:]))
def test_constants_that_steer_choices_have_a_unit_and_an_origin(path: Path) -> None:
    text = path.read_text()
    for n in named(ast.parse(text)):
        said = said_of(text, n)
        place = f"{path.name}:{n.lineno}: {ast.unparse(n)}"
        assert UNIT.search(said), f"{place}: in which unit?"
        assert ORIGIN.search(said), f"{place}: found how?"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: "/".join(p.parts[-2:]))
def test_what_was_fitted_has_a_name(path: Path) -> None:
    """Formulas have no fractions in them but halves."""
    tree = ast.parse(path.read_text())
    for f in ast.walk(tree):
        if isinstance(f, ast.FunctionDef):
            fits = [n for n in numbers(f) if isinstance(n.value, float) and n.value not in PLAIN]
            assert not fits, f"{path.name}:{fits[0].lineno}: {fits[0].value}"

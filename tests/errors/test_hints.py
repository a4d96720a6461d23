"""Hints are in the words of who reads them: Python's, or the command line's."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilewright
from tilewright.cli.guest.serve import _failure  # pyright: ignore[reportPrivateUsage]
from tilewright.support.errors import Hint, ScheduleError, UserError

SHAPE = Hint("pass shapes={'x': (1, 3)}", command="give --shape x=1x3")
_PYTHON = re.compile(r"\w=\{|\w=\(|=True|=False|=None|\btw\.|\btilewright\.[a-z]+\b(?!\.)|\bsession\.|`\w+=")
_SOURCES = Path(tilewright.__file__).parent
# Tensor programs and steps are written in Python: whoever reads these hints does so too.
_WRITTEN_IN_PYTHON = ("tir/", "schedule/", "search/", "target/", "build.py")


def test_a_hint_has_words_for_both() -> None:
    error = UserError("no shape", where="input 'x'", hint=SHAPE)
    assert str(error) == "no shape\n  at: input 'x'\n  try: pass shapes={'x': (1, 3)}"
    assert error.for_command() == "no shape\n  at: input 'x'\n  try: give --shape x=1x3"
    plain = UserError("no", hint="use another")
    assert plain.for_command() == str(plain) == "no\n  try: use another"
    assert UserError("no").for_command() == "no"


def test_both_survive_where_an_error_is_told_again() -> None:
    first = UserError("no shape", hint=SHAPE)
    again = ScheduleError(f"import: {first.message}", where="model.onnx", hint=first.hint)
    assert again.for_command().endswith("try: give --shape x=1x3")


def test_the_process_of_an_engine_tells_a_command() -> None:
    assert _failure(UserError("no shape", hint=SHAPE))["hint"] == "give --shape x=1x3"
    assert _failure(UserError("no", hint="use another"))["hint"] == "use another"
    assert _failure(ValueError("no"))["hint"] is None


def plain_hints() -> Iterator[tuple[str, str]]:
    """The texts that are given as hints and are the same for everybody, and where."""
    for path in sorted(_SOURCES.rglob("*.py")):
        name = path.relative_to(_SOURCES).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "hint" and not is_hint(node.value):
                pieces = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
                yield f"{name}:{node.value.lineno}", "…".join(p for p in pieces if isinstance(p, str))


def is_hint(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Hint"


def test_no_other_hint_speaks_python() -> None:
    found = dict(plain_hints())
    assert len(found) > 200
    spoken = {
        where: text
        for where, text in found.items()
        if _PYTHON.search(text) and not where.startswith(_WRITTEN_IN_PYTHON)
    }
    assert not spoken


@pytest.mark.parametrize(
    "text", ["shapes={…}", "strict=True", "use tw.load", "tilewright.load runs", "session.run(x)"]
)
def test_what_speaks_python_is_recognised(text: str) -> None:
    assert _PYTHON.search(text)

"""The examples of docs/ir.md run, and print what the page says they print. `--bless` writes it anew."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ir.md"
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n\n```text\n(?P<output>.*?)```", re.DOTALL)


def test_examples_print_what_the_page_says(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text(encoding="utf-8")
    examples = list(EXAMPLE.finditer(text))
    assert len(examples) == text.count("```python") >= 6, "each example is followed by its output"
    names: dict[str, Any] = {}
    parts: list[str] = []
    end = 0
    for m in examples:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(m["code"], f"{PAGE.name}, example {len(parts) // 2}", "exec"), names)
        parts += [text[end : m.start("output")], out.getvalue().rstrip("\n") + "\n"]
        end = m.end("output")
    actual = "".join([*parts, text[end:]])
    if request.config.getoption("--bless"):
        PAGE.write_text(actual, encoding="utf-8")
    assert actual == PAGE.read_text(encoding="utf-8"), "run pytest with --bless if the new output is right"

"""The examples of these pages run, and print what the page says they print. `--bless` writes it anew."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {"ir.md": 6, "validation.md": 2}  # and how many examples they have at least
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n\n```text\n(?P<output>.*?)```", re.DOTALL)


@pytest.mark.parametrize("name", PAGES)
def test_examples_print_what_the_page_says(name: str, request: pytest.FixtureRequest) -> None:
    page = DOCS / name
    text = page.read_text(encoding="utf-8")
    examples = list(EXAMPLE.finditer(text))
    assert len(examples) == text.count("```python") >= PAGES[name], "each example is followed by its output"
    names: dict[str, Any] = {}
    parts: list[str] = []
    end = 0
    for m in examples:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(m["code"], f"{page.name}, example {len(parts) // 2}", "exec"), names)
        parts += [text[end : m.start("output")], out.getvalue().rstrip("\n") + "\n"]
        end = m.end("output")
    actual = "".join([*parts, text[end:]])
    if request.config.getoption("--bless"):
        page.write_text(actual, encoding="utf-8")
    assert actual == page.read_text(encoding="utf-8"), "run pytest with --bless if the new output is right"

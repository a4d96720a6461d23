"""Pages of documentation whose examples run: each ```python block is followed by a ```text block with its output."""

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>fragment|quoted): (?P<reason>.+?) -->\n\n)?^```python\n(?P<code>.*?)^```",
    re.DOTALL | re.MULTILINE,
)  # `fragment`: not run, for this reason; `quoted`: not run, lines of this file
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n\n```text\n(?P<output>.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Ran:
    names: dict[str, Any]  # what the examples have defined
    outputs: list[str]
    page: str  # as it should be


def run_page(page: Path, folder: Path, varies: str = "", instead: tuple[str, str] = ("", "")) -> Ran:
    """Run the examples in order, in one namespace. An output that mentions `varies` is taken as the page has it.
    `instead`: what stands in the code, and what is run in its place.
    """
    text = page.read_text(encoding="utf-8")
    examples = list(EXAMPLE.finditer(text))
    assert len(examples) == text.count("```python") > 0, "each example is followed by its output"
    ran = Ran({}, [], "")
    parts: list[str] = []
    end = 0
    for n, m in enumerate(examples):
        source = folder / f"example_{n}.py"  # a file, where tw.func finds the source
        code = m["code"].replace(*instead) if instead[0] else m["code"]
        source.write_text(code, encoding="utf-8")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, str(source), "exec"), ran.names)
        ran.outputs.append(out.getvalue())
        is_free = varies and varies in out.getvalue()
        parts += [
            text[end : m.start("output")],
            m["output"] if is_free else out.getvalue().rstrip("\n") + "\n",
        ]
        end = m.end("output")
    return Ran(ran.names, ran.outputs, "".join([*parts, text[end:]]))


def check_page(page: Path, ran: Ran, bless: bool) -> None:
    if bless:
        page.write_text(ran.page, encoding="utf-8")
    assert ran.page == page.read_text(encoding="utf-8"), "run pytest with --bless if the new output is right"

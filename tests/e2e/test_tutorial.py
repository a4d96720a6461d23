"""The tutorial does what it says: its code runs in order, and prints what the page says it prints.

Speeds are of the machine, so outputs with GFLOP/s in them are not compared. `--bless` writes the others anew.
"""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.native import HAS_AVX2

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n\n```text\n(?P<output>.*?)```", re.DOTALL)


@pytest.mark.skipif(not HAS_AVX2, reason="the tiles of the tutorial are for vectors of eight floats")
def test_tutorial(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text(encoding="utf-8")
    examples = list(EXAMPLE.finditer(text))
    assert len(examples) == text.count("```python") >= 8, "each example is followed by its output"
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    parts: list[str] = []
    printed = ""
    end = 0
    for n, m in enumerate(examples):
        source = tmp_path / f"example_{n}.py"  # a file, where tw.func finds the source
        source.write_text(m["code"], encoding="utf-8")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(m["code"], str(source), "exec"), names)
        printed += out.getvalue()
        is_fixed = "GFLOP/s" not in out.getvalue()
        parts += [
            text[end : m.start("output")],
            out.getvalue().rstrip("\n") + "\n" if is_fixed else m["output"],
        ]
        end = m.end("output")
    actual = "".join([*parts, text[end:]])
    if request.config.getoption("--bless"):
        PAGE.write_text(actual, encoding="utf-8")
    print("\n".join(line for line in printed.splitlines() if "GFLOP/s" in line))
    assert actual == PAGE.read_text(encoding="utf-8"), "run pytest with --bless if the new output is right"
    speeds = names["speeds"]
    assert speeds["packed"] > 5 * speeds["as written"]
    assert speeds["tensorized"] > 5 * speeds["as written"]

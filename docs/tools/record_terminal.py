"""A terminal session as a drawing: `make terminal` runs the commands below and writes docs/images/terminal.svg.

What is drawn is what the commands printed, on a ResNet-18 with random weights (examples/models.py). Speeds are those
of the machine that it runs on: record while nothing else uses it. Exit statuses are checked, so that a session that
failed is not published.
"""

import io
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from examples.models import resnet18

ROOT = Path(__file__).resolve().parents[2]
DRAWING = ROOT / "docs" / "images" / "terminal.svg"
MODEL = "resnet18.onnx"
COLUMNS = 106
MAX_BYTES = 150_000
# Fonts of the reader's system: a drawing must not fetch one.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "font-family: Fira Code, monospace",
    "font-family: ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace",
)
THEME = TerminalTheme(
    (24, 28, 33),
    (214, 220, 228),
    [
        (60, 66, 74),
        (224, 108, 117),
        (126, 200, 140),
        (226, 190, 110),
        (110, 170, 240),
        (198, 140, 220),
        (90, 190, 200),
        (214, 220, 228),
    ],
)


@dataclass(frozen=True, slots=True)
class Shown:
    comment: str
    arguments: tuple[str, ...]
    status: int = 0  # that it must end with

    @property
    def text(self) -> str:
        return " ".join(["tilewright", *self.arguments])


SESSION = (
    Shown("in turns with ONNX Runtime, on the same pinned cores", ("bench", MODEL, "--against", "ort")),
    Shown(
        "do the answers agree? at a tolerance below float32 rounding: where do they part?",
        ("compare", MODEL, "--bisect", "--tolerance", "5e-7"),
        status=4,
    ),
)


def outputs(folder: Path) -> list[str]:
    """What the commands print, in a folder with the model and a cache of its own."""
    (folder / MODEL).write_bytes(resnet18().SerializeToString())
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "FORCE_COLOR": "1",
        "TILEWRIGHT_CACHE": str(folder / "cache"),
        "TILEWRIGHT_DB": "off",
    }
    found: list[str] = []
    for shown in SESSION:
        command = [sys.executable, "-m", "tilewright", *shown.arguments]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != shown.status:
            raise click.ClickException(f"{shown.text}: status {done.returncode}\n{done.stderr}")
        found.append(done.stdout.rstrip())
    return found


def draw(printed: list[str]) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for n, (shown, output) in enumerate(zip(SESSION, printed, strict=True)):
        if n:
            console.print()
        console.print(Text(f"# {shown.comment}", "#8b95a3"), highlight=False)
        console.print(Text.assemble(("$ ", "green"), (shown.text, "bold")), highlight=False)
        console.print(
            Text.from_ansi("\n".join(line.rstrip() for line in output.splitlines())), highlight=False
        )
    drawing = console.export_svg(title="tilewright", theme=THEME, code_format=FORMAT, unique_id="terminal")
    return "\n".join(line.rstrip() for line in drawing.splitlines()) + "\n"


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), default=DRAWING, show_default=True)
def record(output: Path) -> None:
    """Run the commands, and draw what they print."""
    with tempfile.TemporaryDirectory(prefix="tilewright-terminal-") as folder:
        drawing = draw(outputs(Path(folder)))
    if len(drawing.encode()) > MAX_BYTES:
        raise click.ClickException(f"the drawing has {len(drawing.encode())} bytes, and may have {MAX_BYTES}")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(drawing, encoding="utf-8")
    click.echo(output)


if __name__ == "__main__":
    record()

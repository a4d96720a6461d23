"""Writes measurements to docs/results/, each file with all that is needed to repeat and to doubt it."""

import datetime
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tilewright.cli.machine import machine, versions

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "results"
_FOLDERS = re.compile(r"(?<![\w.])/(?:[^\s/]+/)+")  # of an absolute path


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first column is text, the others are numbers."""
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(
    name: str, title: str, shows: str, method: str, *parts: str, measured_at: str | None = None
) -> Path:
    """docs/results/NAME.md: heading, what it `shows` in a sentence, `parts`; below, how it was measured and when.

    `measured_at` is the commit of figures that were measured before; what is known of this moment is left out then.
    """
    packages = ", ".join(f"{k} {v}" for k, v in versions().items() if v is not None)
    # Where files lie on this machine is nobody's business.
    arguments = shlex.join(_FOLDERS.sub("", a) for a in sys.argv[1:])
    module = Path(sys.argv[0]).stem
    provenance = [
        f"- command: `python -m benchmarks.{module}{' ' + arguments if arguments else ''}`",
        f"- commit: {measured_at or current_commit()}",
        f"- date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        f"- machine: {machine().summary()}",
        *([] if measured_at else [_load()]),
        f"- versions: {packages}",
    ]
    path = FOLDER / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "\n\n".join((f"# {title}", shows, *parts, "## How this was measured", method, "\n".join(provenance)))
        + "\n",
        encoding="utf-8",
    )
    return path


def _load() -> str:
    busy = "above the number of threads: somebody else was busy"
    return f"- load average: {os.getloadavg()[0]:.1f} at the end ({busy})"


def current_commit(checkout: Path = ROOT) -> str:
    """With a plus sign if the sources were not those of the commit."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=checkout, capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src")
    return f"{git('rev-parse', '--short', 'HEAD') or 'unknown'}{'+' if changed else ''}"

"""Applications from PyPI, unedited, with ONNX Runtime and through `python -m tilewright.ort`.

    python -m benchmarks.applications --install        # once: a virtual environment with the applications
    python -m benchmarks.applications [NAME …]         # all of them, unless named
    python -m benchmarks.applications --quick --no-save

Each application runs by its own public interface, on the same made-up input, in processes that take turns. What is
compared: what the application says, every array that its sessions gave, and the time inside of `InferenceSession.run`.
"""

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from benchmarks.application_cases import APPLICATIONS, Application
from benchmarks.options import parse_thread_counts
from benchmarks.results import ROOT, table, write

HOME = Path.home() / ".cache" / "tilewright-bench" / "applications"
NEEDED = ("numpy", "ml_dtypes", "onnx", "llvmlite", "rich", "click", "jinja2", "onnxruntime")
# Of what the applications need, what their own work takes; the rest would bring other frameworks.
WITH = ("pillow", "opencv-python-headless", "shapely", "pyclipper", "six", "pyyaml", "tqdm", "python-dotenv")
WITH_SOUND = ("torch==2.13.0", "librosa", "resampy", "mir_eval", "pretty_midi", "scipy", "setuptools<81")
TOLERANCE = 1e-4
GOAL = 0.8
OURS, THEIRS = "tilewright", "onnxruntime"


@dataclass(frozen=True, slots=True)
class Runs:
    """Of one application with one engine: a result of the worker for each process, and the arrays of one of them."""

    found: Sequence[Mapping[str, Any]]
    arrays: Mapping[str, Any]

    def inside(self) -> list[float]:
        """Seconds inside of sessions for a unit of work, for each process."""
        return [median(f["inside"]) for f in self.found]

    def middle(self, what: str) -> float:
        values = [median(f[what]) if isinstance(f[what], list) else f[what] for f in self.found]
        return median(values)


@dataclass(frozen=True, slots=True)
class Compared:
    """One application with some threads."""

    application: Application
    threads: int
    runs: Mapping[str, Runs]

    @property
    def ratios(self) -> list[float]:
        """Our time over theirs, for each round."""
        pairs = zip(self.runs[OURS].inside(), self.runs[THEIRS].inside(), strict=True)
        return [a / b for a, b in pairs]

    @property
    def error(self) -> float:
        """The largest difference of an output of a session, over the largest number that it has in a unit of work.
        Infinite if runs or shapes differ.
        """
        mine, theirs = self.runs[OURS].arrays, self.runs[THEIRS].arrays
        if {n: a.shape for n, a in mine.items()} != {n: b.shape for n, b in theirs.items()}:
            return float("inf")
        outputs: dict[str, list[str]] = {}
        for name in theirs:
            outputs.setdefault(name.rpartition(".")[0], []).append(name)
        joined = [
            [np.concatenate([s[n].ravel() for n in names]) for s in (mine, theirs)]
            for names in outputs.values()
        ]
        return max((_difference(a, b) for a, b in joined), default=0.0)

    @property
    def is_same(self) -> bool:
        """Does the application say the same?"""
        return all(f["results"] == self.runs[THEIRS].found[0]["results"] for f in self.runs[OURS].found)


def _difference(mine: Any, theirs: Any) -> float:
    if not theirs.size:
        return 0.0
    if theirs.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(mine, theirs) else float("inf")
    a, b = mine.astype(np.float64), theirs.astype(np.float64)
    largest = float(np.abs(b).max())
    return float(np.abs(a - b).max()) / (largest or 1.0)


def run_once(
    application: Application, engine: str, threads: int, warm: int, times: int
) -> tuple[Mapping[str, Any], Any]:
    """One process. An error says what it has printed."""
    python = HOME / "venv" / "bin" / "python"
    with tempfile.TemporaryDirectory() as folder:
        arrays = Path(folder) / "arrays.npz"
        command = [
            *(str(python), "-W", "ignore"),
            *(["-m", "tilewright.ort"] if engine == OURS else []),
            *("-m", "benchmarks.application_worker", application.name),
            *(str(threads), str(warm), str(times), str(arrays)),
        ]
        # OpenCV and others have threads of their own, which would spin beside those that are timed.
        settings = {
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "OMP_NUM_THREADS": str(threads),
            "OPENCV_FOR_THREADS_NUM": "1",
            "TILEWRIGHT_ORT_FALLBACK": "0",  # or ONNX Runtime would be compared with itself
        }
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, **settings}, cwd=folder
        )
        if done.returncode:
            raise click.ClickException(f"{application.name}, {engine}:\n{done.stdout}{done.stderr}")
        found = json.loads(done.stdout.strip().splitlines()[-1])
        if found["engine"] != engine:
            raise click.ClickException(f"{application.name} was run by {found['engine']}, not by {engine}")
        with np.load(arrays, allow_pickle=False) as stored:
            return found, {n: stored[n] for n in stored.files}


def compare(application: Application, threads: int, rounds: int, warm: int, times: int) -> Compared:
    """In turns. Processes before the first round compile what there is to compile."""
    found: dict[str, list[Mapping[str, Any]]] = {OURS: [], THEIRS: []}
    arrays: dict[str, Any] = {}
    run_once(application, OURS, threads, warm, 1)
    for i in range(rounds):
        for engine in (OURS, THEIRS) if i % 2 else (THEIRS, OURS):
            one, arrays[engine] = run_once(application, engine, threads, warm, times)
            found[engine].append(one)
    return Compared(application, threads, {e: Runs(found[e], arrays[e]) for e in found})


COLUMNS = (
    *(
        "application",
        "what it does",
        "threads",
        "runs",
        "ONNX Runtime, ms",
        "Tilewright, ms",
        "ratio",
        "spread",
    ),
    *("same answer", "largest error", "load: ONNX Runtime, s", "Tilewright, s"),
)


def row(c: Compared) -> list[str]:
    ratios = c.ratios
    mine, theirs = c.runs[OURS], c.runs[THEIRS]
    return [
        f"[{c.application.name}](https://pypi.org/project/{c.application.package}/)",
        c.application.what,
        str(c.threads),
        str(mine.found[0]["calls"]),
        f"{1e3 * median(theirs.inside()):.1f}",
        f"{1e3 * median(mine.inside()):.1f}",
        f"**{median(ratios):.2f}**" if median(ratios) <= GOAL else f"{median(ratios):.2f}",
        f"{min(ratios):.2f} – {max(ratios):.2f}",
        "yes" if c.is_same else "**no**",
        f"{c.error:.1e}",
        f"{theirs.middle('load'):.2f}",
        f"{mine.middle('load'):.2f}",
    ]


def summary(found: Sequence[Compared]) -> str:
    names = {c.application.name for c in found}
    quick = {n for n in names if all(median(c.ratios) <= GOAL for c in found if c.application.name == n)}
    right = {
        n for n in names if all(c.is_same and c.error <= TOLERANCE for c in found if c.application.name == n)
    }
    mean = prod(median(c.ratios) for c in found) ** (1 / len(found))
    return (
        f"Unedited, through `python -m tilewright.ort`: {len(right)} of {len(names)} applications give the same "
        f"answers (arrays within {TOLERANCE:g}), and {len(quick)} spend at most {GOAL} of the "
        f"time in their models that they spend with ONNX Runtime; {mean:.2f} on the geometric mean."
    )


METHOD = f"""Each application is installed from PyPI with the model that is in its wheel, and works through its own
public interface on images, sound and files that are generated (`benchmarks/application_cases.py`). It runs in a
process of its own, as it is or with `python -m tilewright.ort` before it; processes take turns, and are pinned to
as many processors as there are threads. Where an application does not say how many threads a session has, both
engines are told the same. *runs*: calls of `InferenceSession.run` for a unit of work. Times are those inside of
these calls, for a unit of work, after warming up; medians of processes, each the median of its units. *ratio*:
ours over ONNX Runtime's, median of rounds; *spread*: least and largest. *largest error*: of all outputs of
sessions, the largest difference over the largest number that the output has in a unit of work; up to {TOLERANCE:g}
is right. *load*: making all sessions, of programs that were compiled before; models with open shapes load theirs
in the first run, which is not in it. Falling back to ONNX Runtime is off."""


def install() -> None:
    """Into a virtual environment of their own."""
    venv.create(HOME / "venv", with_pip=True)
    pip = [str(HOME / "venv" / "bin" / "python"), "-m", "pip", "install", "-q"]
    subprocess.run([*pip, *NEEDED, *WITH], check=True)
    subprocess.run([*pip, "--no-deps", *(a.package for a in APPLICATIONS)], check=True)
    subprocess.run([*pip, *WITH_SOUND], check=False)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([a.name for a in APPLICATIONS]))
@click.option("--install", "is_installing", is_flag=True, help="Install the applications first.")
@click.option("--threads", "thread_counts", type=int, multiple=True, callback=parse_thread_counts)
@click.option("--rounds", default=5, show_default=True, help="Processes of each engine.")
@click.option("--times", default=9, show_default=True, help="Units of work that are timed in each.")
@click.option("--warm", default=2, show_default=True, help="Units of work before.")
@click.option("--quick", is_flag=True, help="One round of three units.")
@click.option("--save/--no-save", default=True, help="Write docs/results/applications.md.")
@click.option("--keep", type=click.Path(path_type=Path), help="Write what was measured as JSON, too.")
def main(
    names: tuple[str, ...],
    is_installing: bool,
    thread_counts: tuple[int, ...],
    rounds: int,
    times: int,
    warm: int,
    quick: bool,
    save: bool,
    keep: Path | None,
) -> None:
    """Compare applications."""
    if is_installing:
        install()
    if not (HOME / "venv").exists():
        raise click.ClickException("the applications are not installed: add --install")
    if quick:
        rounds, times, warm = 1, 3, 1
    found: list[Compared] = []
    failed: list[str] = []
    for application in [a for a in APPLICATIONS if not names or a.name in names]:
        for threads in thread_counts:
            try:
                found.append(compare(application, threads, rounds, warm, times))
            except click.ClickException as e:
                failed.append(
                    f"- {application.name} with {threads} threads: {e.message.strip().splitlines()[-1]}"
                )
                click.echo(e.message, err=True)
                continue
            click.echo(" | ".join(row(found[-1])))
    if keep is not None:
        kept = [
            {
                "application": c.application.name,
                "threads": c.threads,
                "error": c.error,
                "runs": r.found,
                "engine": e,
            }
            for c in found
            for e, r in c.runs.items()
        ]
        keep.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    if not found:
        sys.exit(1)
    parts = [table(COLUMNS, [row(c) for c in found])]
    if failed:
        parts.append("Not measured:\n\n" + "\n".join(failed))
    click.echo(summary(found))
    if save:
        write("applications", "Applications that use ONNX Runtime, unedited", summary(found), METHOD, *parts)
    if any(not c.is_same or c.error > TOLERANCE for c in found) or failed:
        sys.exit(1)


if __name__ == "__main__":
    main()

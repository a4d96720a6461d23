"""`tilewright corpus`: build a corpus of timed schedules, look into it, and merge others into it."""

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tilewright.cli.command import check_exists
from tilewright.cli.machine import check_cores
from tilewright.cli.options import PROGRAM
from tilewright.cli.output import note, print_json, print_table
from tilewright.cli.status import ExitStatus
from tilewright.support.budget import parse_budget
from tilewright.support.errors import UserError
from tilewright.target.target import native
from tilewright.training.collect import Collector, CollectProgress, SourceProgram
from tilewright.training.corpus import Corpus
from tilewright.training.programs import GeneratedProgram
from tilewright.training.rows import TrialRow
from tilewright.tuning.candidate import DEFAULT
from tilewright.tuning.trial import TrialStatus
from tilewright.tuning.workplace import check_place

T = TypeVar("T")

_QUANTILES = (0.1, 0.5, 0.9, 0.99)


def build_corpus(
    folder: Path,
    models: tuple[Path, ...],
    generated: int,
    per_kernel: int,
    structures: int,
    threads: int,
    budget: str | None,
    seed: int,
    on: str | None,
    address: str | None,
    as_json: bool,
) -> int:
    programs = _programs(models, generated, seed)
    seconds = math.inf if budget is None else parse_budget(budget)
    check_place(on, address)
    if on is None:
        check_cores(threads)
    corpus = Corpus(folder)
    is_interrupted = False
    with (
        corpus.writing(),
        _progress_line(len(programs)) as progress,
        Collector(
            corpus,
            native(),
            threads=threads,
            per_kernel=per_kernel,
            structures=structures,
            seed=seed,
            budget=seconds,
            on=on,
            address=address,
            progress=progress,
        ) as collector,
    ):
        progress.collector = collector
        try:
            collector.run(programs)
        except KeyboardInterrupt:
            is_interrupted = True
            note("interrupted: what was measured is kept, and the same command goes on")
        corpus.compact()
        now, elapsed = collector.now, collector.elapsed
    for program, why in now.problems:
        note(f"{program} has no part in it: {why}")
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "programs": len(programs),
                "complete_programs": now.programs,
                "kernels": now.kernels,
                "trials": now.trials,
                "failures": now.failures,
                "problems": [{"program": p, "problem": why} for p, why in now.problems],
                "elapsed_seconds": elapsed,
                "interrupted": is_interrupted,
            }
        )
    else:
        failed = "".join(f", {n} {status.replace('_', ' ')}" for status, n in sorted(now.failures.items()))
        click.echo(
            f"{now.trials} trials of {now.kernels} kernels in {elapsed:.0f} s{failed};"
            f" {now.programs} of {len(programs)} programs are complete"
        )
        click.echo(f"kept in {folder}")
    return ExitStatus.INTERRUPTED if is_interrupted else ExitStatus.OK


def _programs(models: Sequence[Path], generated: int, seed: int) -> list[SourceProgram]:
    if not models and not generated:
        raise UserError(
            "there are no programs to take kernels from", hint="name models, or give --generated 100"
        )
    for model in models:
        if model.suffix == PROGRAM:
            raise UserError(
                "a compiled program holds machine code only", where=str(model), hint="name the .onnx file"
            )
        check_exists(model)
    names = Counter(m.stem for m in models)
    twice = next((m for m in models if names[m.stem] > 1), None)
    if twice is not None:
        raise UserError(
            f"two models are called {twice.stem}",
            where=str(twice),
            hint="rename one: kernels are told apart by it",
        )
    made = (GeneratedProgram(seed, n) for n in range(generated))
    return [*map(SourceProgram.of_file, models), *(SourceProgram(p.name, p.family, p.make) for p in made)]


class _Line:
    """What is shown while a corpus is built."""

    def __init__(self, bars: Progress | None, programs: int) -> None:
        self.collector: Collector | None = None
        self._bars, self._programs = bars, programs
        self._bar = None if bars is None else bars.add_task("starting", total=programs)
        self._shown = 0.0

    def __call__(self, now: CollectProgress) -> None:
        if self.collector is None:
            return
        elapsed = self.collector.elapsed
        text = (
            f"{now.programs} of {self._programs} programs, {now.kernels} kernels, {now.trials} trials,"
            f" {now.trials / max(elapsed, 1e-9):.1f}/s"
        )
        if self._bars is not None and self._bar is not None:
            failed = sum(now.failures.values())
            told = f"{text}{f', {failed} failed' if failed else ''} [{now.program}]"
            if math.isfinite(self.collector.budget):
                self._bars.update(self._bar, description=told, completed=elapsed, total=self.collector.budget)
            else:
                self._bars.update(self._bar, description=told, completed=now.programs)
        elif elapsed - self._shown > _QUIET_SECONDS:
            self._shown = elapsed
            note(f"{elapsed:.0f} s: {text} [{now.program}]")


_QUIET_SECONDS = 60.0  # between two lines where nobody watches, given


@contextmanager
def _progress_line(programs: int) -> Generator[_Line]:
    """A bar on stderr, of time if it is limited and otherwise of programs; a line now and then if nobody watches."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Line(None, programs)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        yield _Line(bars, programs)


# ------------------------------------------------------------------------------------------------------------ contents


def show_corpus(folder: Path, as_json: bool) -> None:
    corpus = Corpus(folder)
    corpus.check_exists()
    found = _contents(corpus)
    if as_json:
        print_json(found)
        return
    click.echo(
        f"{folder}: {found['kernels']} kernels, {found['trials']} trials, {found['programs']} programs"
    )
    for path in found["damaged"]:
        note(f"{path} cannot be read, and is left out")
    for title, rows in found["by"].items():
        if rows:
            click.echo()
            columns = (title, "kernels", "trials", "failed", "noise")
            print_table(columns, [_cells(name, row) for name, row in rows.items()])
    if found["statuses"]:
        click.echo()
        print_table(("status", "trials"), list(found["statuses"].items()))
    if found["noise"]:
        click.echo()
        told = ", ".join(f"{q} %: {v:.2%}" for q, v in found["noise"].items())
        click.echo(f"noise of times, relative, by quantile: {told}")


def _contents(corpus: Corpus) -> dict[str, Any]:
    kernels = corpus.kernels()
    trials = [t for t in corpus.trials() if t.family != DEFAULT]
    unknown = "unknown"  # of a kernel that is not in the table

    def source(t: TrialRow) -> str:
        return kernels[t.kernel].source if t.kernel in kernels else unknown

    return {
        "folder": str(corpus.folder),
        "kernels": len(kernels),
        "trials": len(trials),
        "programs": len(corpus.programs()),
        "damaged": [str(p) for p in corpus.damaged],
        "statuses": dict(sorted(Counter(t.status for t in trials).items())),
        "noise": _noise(trials),
        "by": {
            "source": _grouped(trials, source),
            "family": _grouped(trials, lambda t: t.family),
            "threads": _grouped(trials, lambda t: str(t.threads)),
            "machine": _grouped(trials, lambda t: t.machine),
        },
    }


def _grouped(trials: Iterable[TrialRow], key: Callable[[TrialRow], str]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[TrialRow]] = {}
    for t in trials:
        groups.setdefault(key(t), []).append(t)
    return {
        name: {
            "kernels": len({t.kernel for t in rows}),
            "trials": len(rows),
            "failed": sum(t.status != TrialStatus.OK.value for t in rows),
            "noise": _noise(rows).get("50"),
        }
        for name, rows in sorted(groups.items())
    }


def _noise(trials: Iterable[TrialRow]) -> dict[str, float]:
    """Quantiles, by per cent."""
    found = [t.noise for t in trials if len(t.ratios) > 1]
    return {f"{100 * q:g}": float(np.quantile(found, q)) for q in _QUANTILES} if found else {}


def _cells(name: str, row: dict[str, Any]) -> tuple[str | int, ...]:
    noise = "-" if row["noise"] is None else f"{row['noise']:.2%}"
    return name, row["kernels"], row["trials"], row["failed"], noise


def merge_corpora(folder: Path, others: tuple[Path, ...], as_json: bool) -> None:
    for other in others:
        Corpus(other).check_exists()
    corpus = Corpus(folder)
    kernels = trials = 0
    with corpus.writing():
        for other in others:
            added = corpus.merge(Corpus(other))
            kernels, trials = kernels + added[0], trials + added[1]
        corpus.compact()
    if as_json:
        print_json({"folder": str(folder), "added": {"kernels": kernels, "trials": trials}})
    else:
        click.echo(f"{folder}: added {kernels} kernels, {trials} trials")

"""`tilewright tune`: measure until the kernels of a model are better, and remember what was found."""

import math
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from tilewright.cli.dims import DimOption, ranges_of
from tilewright.cli.machine import machine, versions
from tilewright.cli.options import PROGRAM
from tilewright.cli.output import milliseconds, note, print_json, print_table
from tilewright.cli.status import ExitStatus
from tilewright.ops.accuracy import Accuracy
from tilewright.search.database import database_path
from tilewright.support.errors import UserError
from tilewright.tuning.failures import Failure
from tilewright.tuning.tune import open_tuning
from tilewright.tuning.tune_result import OnTuningProgress, ProgramResult, TaskResult, TuneResult
from tilewright.tuning.tune_result import TuningProgress as Now


def tune_model(
    model: Path,
    budget: str | None,
    trials: int | None,
    threads: int,
    seed: int,
    shapes: dict[str, tuple[int, ...]],
    dims: dict[str, DimOption],
    target: str,
    accuracy: Accuracy | None,
    db: Path | None,
    resume: bool,
    on: str | None,
    address: str | None,
    as_json: bool,
) -> int:
    if model.suffix == PROGRAM:
        raise UserError(
            "a compiled program holds machine code only", where=str(model), hint="tune the .onnx file"
        )
    with (
        _progress_line() as progress,
        open_tuning(
            *(model, budget, trials, threads, seed, shapes, target),
            accuracy=accuracy,
            progress=progress,
            database=db,
            dims=ranges_of(dims),
            resume=resume,
            on=on,
            address=address,
        ) as tuning,
    ):
        account = tuning.account
        if resume:
            note(
                f"resumed: {account.used:.0f} s of {account.budget:.0f} s are used, {account.trials} trials were made"
            )
        try:
            tuning.run()
        except KeyboardInterrupt:
            note("interrupted: what was measured is kept")
        result = tuning.result()
    if as_json:
        resumed = {"used_seconds": account.used, "trials": account.trials} if resume else None
        about = {"resumed": resumed, "machine": machine().summary(), "versions": versions()}
        print_json({**_as_json(result), **about})
    else:
        _show(result, database_path() if db is None else db)
    return ExitStatus.INTERRUPTED if result.is_interrupted else ExitStatus.OK


@contextmanager
def _progress_line() -> Generator[OnTuningProgress | None]:
    """A bar of time on stderr, with what was found so far, if somebody watches; None otherwise."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        bar = bars.add_task("starting", total=None)

        def on_progress(now: Now) -> None:
            text = f"{now.trials} trials, best {milliseconds(now.best_seconds)} of {milliseconds(now.default_seconds)}"
            failures = failures_text(now.failures)
            bars.update(
                bar,
                description=f"{text}{f', {failures}' if failures else ''} [{now.task}]",
                completed=min(now.elapsed, now.budget),
                total=now.budget,
            )

        yield on_progress


def failures_text(failures: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(failures.items()))


def _show(result: TuneResult, where: Path | None) -> None:
    measured = [t for t in result.tasks if math.isfinite(t.default_seconds)]
    print_table(
        ("kernel", "calls", "default", "tuned", "speedup", "trials", "choice"),
        [
            (
                t.name,
                t.calls,
                milliseconds(t.default_seconds),
                milliseconds(t.best_seconds),
                f"{t.speedup:.2f}",
                t.trials,
                _choice(t),
            )
            for t in measured
        ],
    )
    for t in result.tasks:
        if t.problem:
            note(f"{t.name}: {t.problem}")
    better = sum(t.chosen is not None for t in measured)
    click.echo()
    click.echo(
        f"{better} of {len(result.tasks)} kernels are better; {'all' if result.program else 'those measured'} take"
        f" {milliseconds(result.best_seconds)} in a run, {milliseconds(result.default_seconds)} by default"
    )
    if result.program is not None:
        _show_program(result.program)
    failures = failures_text(result.failures)
    click.echo(f"{result.trials} trials in {result.elapsed:.0f} s{f', {failures}' if failures else ''}")
    for f in result.failed:
        click.echo(f"  {f}")
    click.echo(f"kept in {where}" if where is not None else "not kept: TILEWRIGHT_DB is off")


def _show_program(program: ProgramResult) -> None:
    if program.speedup is not None:
        kept = "it is used from now on" if program.trace else "the untuned one stays"
        click.echo(f"the tuned program in turns with the untuned one: {program.speedup}; {kept}")
    for why, seconds in program.structures:
        click.echo(f"  structure tried: {why}, {milliseconds(seconds)}")
    if program.problem:
        note(program.problem)


def _program_as_json(program: ProgramResult) -> dict[str, Any]:
    return {
        "untuned_seconds": program.untuned_seconds,
        "seconds": program.seconds,
        "speedup": None if program.speedup is None else program.speedup.as_json(),
        "is_kept": bool(program.trace),
        "structures": [{"why": why, "seconds": seconds} for why, seconds in program.structures],
        "problem": program.problem,
    }


def _choice(t: TaskResult) -> str:
    if t.chosen is None:
        return "default"
    rule, decisions = t.chosen
    return f"{rule}: {', '.join(f'{k} {v}' for k, v in decisions.items())}"


def _as_json(result: TuneResult) -> dict[str, Any]:
    return {
        "default_seconds": result.default_seconds,
        "best_seconds": result.best_seconds,
        "trials": result.trials,
        "failures": result.failures,
        "failed": [_failure_as_json(f) for f in result.failed],
        "elapsed_seconds": result.elapsed,
        "interrupted": result.is_interrupted,
        "history": result.history,
        "program": None if result.program is None else _program_as_json(result.program),
        "tasks": [_task_as_json(t) for t in result.tasks],
    }


def _task_as_json(t: TaskResult) -> dict[str, Any]:
    """None stands for the times of a task that was not measured."""

    def number(seconds: float) -> float | None:
        return seconds if math.isfinite(seconds) else None

    return {
        "name": t.name,
        "key": t.key,
        "calls": t.calls,
        "default_seconds": number(t.default_seconds),
        "best_seconds": number(t.best_seconds),
        "choice": None if t.chosen is None else {"rule": t.chosen[0], "decisions": t.chosen[1]},
        "trials": t.trials,
        "points": t.points,
        "failures": t.failures,
        "failed": [_failure_as_json(f) for f in t.failed],
        "problem": t.problem,
    }


def _failure_as_json(f: Failure) -> dict[str, Any]:
    example = {"kernel": f.task, "rule": f.rule, "decisions": dict(f.decisions), "message": f.message}
    return {"status": f.status, "count": f.count, "reason": f.reason, "example": example}

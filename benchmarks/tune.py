"""What tuning gains on single operators, and how soon: a table, the curve and the schedules found."""

import tempfile
from pathlib import Path

import click

from benchmarks.operator_cases import CASES, Case
from benchmarks.results import FOLDER, table, write
from benchmarks.svg import step_chart
from tilewright.cli.output import milliseconds, note
from tilewright.cli.tune import failures_text
from tilewright.search.database import Database
from tilewright.tuning.tune import Tuning
from tilewright.tuning.tune_result import TaskResult, TuneResult

SHOWS = (
    """What a short search finds beyond the default schedule of single operators, and how fast it tries."""
)

METHOD = """One operator as an ONNX model, float32, tuned for {budget} on {threads} thread(s) with an empty database.
*default* and *tuned* are medians of the last comparison, in which the default schedule and the best candidates take
turns; where nothing was better beyond doubt, the default stays and both are the same. *trials* is the number of
distinct candidates that were built, run (once to warm up, then three times) and compared with the right result;
*a second* is that over the whole time, start and last comparison included. The curve is the best sample so far over
the default's, as measured in passing; the schedules that were chosen are in [schedules/](schedules/)."""


def tune_case(name: str, case: Case, budget: str, threads: int, seed: int) -> TuneResult:
    with (
        tempfile.TemporaryDirectory() as folder,
        Tuning(
            case.build(),
            budget,
            threads=threads,
            seed=seed,
            database=Database(Path(folder) / "tuning.db"),
            progress=lambda p: note(
                f"{name}: {p.elapsed:5.1f} s, {p.trials} trials,"
                f" best {milliseconds(p.best_seconds)} of {milliseconds(p.default_seconds)}"
            ),
        ) as tuning,
    ):
        tuning.run()
        return tuning.result()


def main_task(result: TuneResult) -> TaskResult:
    """The one that takes most of the time."""
    return max(result.tasks, key=lambda t: t.calls * t.default_seconds if t.trials else 0.0)


def row(name: str, result: TuneResult) -> list[str]:
    task = main_task(result)
    rule = "default" if task.chosen is None else task.chosen[0]
    return [
        name,
        f"{result.default_seconds * 1e3:.3f}",
        f"{result.best_seconds * 1e3:.3f}",
        f"{result.default_seconds / result.best_seconds:.2f}",
        str(task.points),
        str(result.trials),
        f"{result.trials / result.elapsed:.1f}",
        failures_text(result.failures) or "0",
        rule,
    ]


def schedule_text(name: str, task: TaskResult) -> str:
    rule, decisions = task.chosen or ("default", {})
    knobs = ", ".join(f"{k}={v}" for k, v in decisions.items())
    return f"# {name}: {rule} {knobs}\n{task.trace}"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--budget", default="60s", show_default=True, help="For each operator.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True)
@click.option("--save/--no-save", default=True, show_default=True, help="Write docs/results/tuning.md.")
def main(names: tuple[str, ...], budget: str, threads: int, seed: int, save: bool) -> None:
    """Tune NAMES (all unless given)."""
    found = {n: tune_case(n, CASES[n], budget, threads, seed) for n in names or tuple(CASES)}
    columns = (
        "operator",
        "default ms",
        "tuned ms",
        "speedup",
        "points",
        "trials",
        "a second",
        "failed",
        "rule",
    )
    text = table(columns, [row(name, result) for name, result in found.items()])
    click.echo(text)
    if not save:
        return
    curves = {
        name: [(at, seconds / result.history[0][1]) for at, seconds in result.history]
        for name, result in found.items()
        if result.history
    }
    end = max(result.elapsed for result in found.values())
    chart = step_chart("Tuning", "seconds", "best so far, of the default's time", curves, end)
    schedules = FOLDER / "schedules"
    schedules.mkdir(parents=True, exist_ok=True)
    for name, result in found.items():
        (schedules / f"{name}.txt").write_text(schedule_text(name, main_task(result)), encoding="utf-8")
    (FOLDER / "tuning.svg").write_text(chart, encoding="utf-8")
    method = METHOD.format(budget=budget, threads=threads)
    path = write("tuning", "Tuning of single operators", SHOWS, method, text, "![Tuning](tuning.svg)")
    click.echo(f"\nwritten to {path}")


if __name__ == "__main__":
    main()

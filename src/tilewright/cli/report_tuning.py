"""What tuning has tried for the kernels of a model, out of the database."""

from collections.abc import Iterator, Sequence

from tilewright.driver.tuned import tuning_scope
from tilewright.report.data import BoxFacts, TuningCurve
from tilewright.search.database import DEFAULT_RULE, OK, Database, Measurement
from tilewright.stages import Stages

MOST_TRIALS = 2000  # of a curve


def tuning_curves(
    found: Stages, boxes: Sequence[BoxFacts], threads: int, database: Database
) -> list[TuningCurve]:
    """A curve for each Func that was tuned, those with the most trials first; for this number of threads if there are
    some, else for the number that most trials were for.
    """
    return sorted(_curves(found, boxes, threads, database), key=lambda c: -len(c.trials))


def _curves(
    found: Stages, boxes: Sequence[BoxFacts], threads: int, database: Database
) -> Iterator[TuningCurve]:
    scope, seen = tuning_scope(found.target), set[str]()
    for box in boxes:
        task = found.tasks.get(box.name)
        if task is None or task in seen:
            continue
        seen.add(task)
        rows = _for_threads(database.measurements(scope, task), threads)
        trials = [m for m in rows if m.purpose == "trial"][-MOST_TRIALS:]
        if not trials:
            continue
        defaults = [m.seconds for m in rows if m.purpose == "default" and m.seconds is not None]
        choice = next((m for m in reversed(rows) if m.purpose == "choice"), None)
        yield TuningCurve(
            box.name,
            box.kernels,
            min(defaults, default=None),
            tuple(m.seconds if m.status == OK else None for m in trials),
            _chosen(choice),
        )


def _for_threads(rows: Sequence[Measurement], threads: int) -> list[Measurement]:
    if not any(m.threads == threads for m in rows):
        counts = [m.threads for m in rows if m.purpose == "trial"]
        threads = max(set(counts), key=counts.count, default=threads)
    return [m for m in rows if m.threads == threads]


def _chosen(choice: Measurement | None) -> str:
    if choice is None:
        return "nothing yet: the tuning was not finished"
    if choice.rule == DEFAULT_RULE:
        return "what compilation does by itself"
    return ", ".join([choice.rule, *(f"{name} = {value}" for name, value in choice.decisions.items())])

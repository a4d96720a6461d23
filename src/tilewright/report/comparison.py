"""The difference between two runs: totals, and each node of the model by its name."""

from dataclasses import dataclass

from tilewright.report.data import ReportData

_MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """Seconds before and now; None where there is no such node."""

    name: str
    what: str
    before: float | None
    now: float | None

    @property
    def difference(self) -> float:
        return (self.now or 0.0) - (self.before or 0.0)


@dataclass(frozen=True, slots=True)
class RunComparison:
    """`rows` are those that differ most, of `count`. `cautions` are differences of the circumstances."""

    title: str
    before_seconds: float
    seconds: float
    kind: str
    rows: tuple[ComparedRow, ...]
    count: int
    cautions: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """How many times as fast it is now."""
        return self.before_seconds / self.seconds if self.seconds else 0.0


def compare_runs(before: ReportData, now: ReportData) -> RunComparison:
    """By nodes where both have them, else by kernels."""
    if before.nodes and now.nodes:
        kind = "node"
        old = {n.name: (n.op, n.seconds) for n in before.nodes}
        new = {n.name: (n.op, n.seconds) for n in now.nodes}
    else:
        kind = "kernel"
        old = {k.name: (k.what, k.seconds) for k in before.kernels}
        new = {k.name: (k.what, k.seconds) for k in now.kernels}
    rows = [
        ComparedRow(
            name,
            (new.get(name) or old[name])[0],
            old[name][1] if name in old else None,
            new[name][1] if name in new else None,
        )
        for name in dict.fromkeys((*new, *old))
    ]
    rows.sort(key=lambda r: -abs(r.difference))
    title = f"{before.model.name}, {before.run.date}"
    return RunComparison(
        *(title, before.run.seconds, now.run.seconds, kind, tuple(rows[:_MOST_ROWS]), len(rows)),
        tuple(_cautions(before, now)),
    )


def _cautions(before: ReportData, now: ReportData) -> list[str]:
    found: list[str] = []
    for what, old, new in (
        ("The model", before.model.name, now.model.name),
        ("The machine", before.machine.summary, now.machine.summary),
        ("The number of threads", str(before.run.threads), str(now.run.threads)),
        ("The size of open dimensions", str(before.run.sizes), str(now.run.sizes)),
    ):
        if old != new:
            found.append(f"{what} was another: {old} before, {new} now.")
    if before.run.is_disturbed or now.run.is_disturbed:
        found.append("Other programs took the cores during one of the runs: differences may be theirs.")
    return found

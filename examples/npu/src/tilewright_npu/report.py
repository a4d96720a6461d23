"""What the runs of a program took, for those who ask afterwards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright_npu.machine import Machine, Unit
from tilewright_npu.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Report:
    """One run of one region."""

    region: str
    machine: Machine
    cycles: int
    busy: Mapping[Unit, int]
    bytes_in: int
    bytes_out: int
    multiplications: int
    instructions: int

    @staticmethod
    def of(region: str, timeline: Timeline, instructions: int) -> "Report":
        return Report(
            region,
            timeline.machine,
            timeline.cycles,
            dict(timeline.busy),
            timeline.bytes_in,
            timeline.bytes_out,
            timeline.multiplications,
            instructions,
        )

    @property
    def milliseconds(self) -> float:
        return 1e3 * self.cycles / self.machine.hertz

    @property
    def utilisation(self) -> float:
        """The share of what the array could have multiplied."""
        return self.multiplications / (self.machine.peak * self.cycles) if self.cycles else 0.0

    def as_json(self) -> dict[str, float | int | str]:
        return {
            "region": self.region,
            "cycles": self.cycles,
            "milliseconds": self.milliseconds,
            "utilisation": self.utilisation,
            "dma_bytes_in": self.bytes_in,
            "dma_bytes_out": self.bytes_out,
            "multiplications": self.multiplications,
            "instructions": self.instructions,
            **{f"busy_{u.name.lower()}": n for u, n in self.busy.items()},
        }


def total(reports: Sequence[Report]) -> Report:
    """All of them, one after the other."""
    return Report(
        "all",
        reports[0].machine,
        sum(r.cycles for r in reports),
        {u: sum(r.busy[u] for r in reports) for u in Unit},
        sum(r.bytes_in for r in reports),
        sum(r.bytes_out for r in reports),
        sum(r.multiplications for r in reports),
        sum(r.instructions for r in reports),
    )


def report_table(reports: Sequence[Report]) -> str:
    """A line for each region, and one for all."""
    head = ("region", "instructions", "cycles", "ms", "array busy", "utilisation", "DMA in", "DMA out")
    rows: list[tuple[str, ...]] = [head]
    for r in (*reports, total(reports)) if len(reports) > 1 else reports:
        rows.append(
            (
                r.region,
                f"{r.instructions:,}",
                f"{r.cycles:,}",
                f"{r.milliseconds:.3f}",
                f"{r.busy[Unit.ARRAY] / max(1, r.cycles):.0%}",
                f"{r.utilisation:.0%}",
                f"{r.bytes_in:,}",
                f"{r.bytes_out:,}",
            )
        )
    widths = [max(len(row[n]) for row in rows) for n in range(len(head))]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)


_latest: dict[str, Report] = {}


def note_report(report: Report) -> None:
    _latest[report.region] = report


def reports() -> tuple[Report, ...]:
    """Of the last run of each region in this process."""
    return tuple(_latest.values())


def forget_reports() -> None:
    _latest.clear()

"""What TVM's MetaSchedule has written while it tuned: pure functions of its records.

A line is `[workload, [trace, [seconds, …], target, arguments]]`; the last may be cut short if the process was killed. A
candidate that failed has no seconds, or such as nothing takes.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_FAILED = 1e9  # seconds: what stands for a failure is larger


@dataclass(slots=True)
class Records:
    """Candidates that were tried, and the quickest of each workload."""

    candidates: int = 0
    failed: int = 0
    best: dict[int, float] = field(default_factory=dict[int, float])

    @property
    def seconds(self) -> float:
        """Of all workloads together, each once."""
        return sum(self.best.values())


def read_records(lines: Iterable[str]) -> Records:
    found = Records()
    for line in lines:
        try:
            workload, (_, seconds, *_) = json.loads(line)
        except ValueError:  # cut short
            continue
        found.candidates += 1
        usual = min(seconds or [_FAILED])
        if usual >= _FAILED:
            found.failed += 1
        else:
            found.best[workload] = min(usual, found.best.get(workload, _FAILED))
    return found


def drop_cut_line(path: Path) -> None:
    """So that TVM can read the file of a process that was killed while it wrote."""
    text = path.read_text()
    path.write_text(text[: text.rfind("\n") + 1])

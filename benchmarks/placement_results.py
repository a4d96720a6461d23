"""What is known of programs of one model that differ in who runs what: times by round, and all that a page tells.

Everything is plain data, so that it can be kept in a file and shown again. Ratios are those of rounds side by side.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.support.turns import Ratio, median_of_rounds

NATIVE, MEASURED = "native", "measured"
ALLOWED = 1.02  # of the time of native code, or of a plugin alone, beyond what measurements differ
CLEARLY = 1.3  # times quicker: what parts of a composed model must be, one with a plugin and one without


@dataclass(frozen=True, slots=True)
class Program:
    """One program of a model. `rounds` are the medians of rounds in milliseconds, `runs_it` are the plugins and native
    code that have a part in it, `error` is against native code. `failure` says why there are no times.
    """

    rounds: tuple[float, ...] = ()
    runs_it: tuple[str, ...] = ()
    regions: int = 0
    compile_seconds: float = 0.0
    error: float = 0.0
    code: str = ""  # a digest of native code and of what plugins compiled
    failure: str = ""

    @property
    def median(self) -> float:
        return float(np.median(self.rounds))


@dataclass(frozen=True, slots=True)
class Row:
    """Programs of one model, which took turns: native code, each plugin alone, and by measurement of all of them."""

    programs: Mapping[str, Program]

    @property
    def times(self) -> dict[str, Program]:
        """Those that ran."""
        return {name: p for name, p in self.programs.items() if p.rounds}

    @property
    def singles(self) -> dict[str, Program]:
        return {name: p for name, p in self.times.items() if name != MEASURED}

    @property
    def best_single(self) -> str:
        return min(self.singles, key=lambda name: self.singles[name].median)

    def ratio(self, name: str, to: str) -> Ratio:
        """The time of one over that of another."""
        return median_of_rounds(np.asarray(self.times[name].rounds) / np.asarray(self.times[to].rounds))

    @property
    def broken_promises(self) -> list[str]:
        """What placement by measurement is slower than, by more than is allowed and beyond doubt."""
        if MEASURED not in self.times:
            return [f"no program: {self.programs[MEASURED].failure}"] if MEASURED in self.programs else []
        found = {name: self.ratio(MEASURED, name) for name in self.singles}
        return [f"{r.value:.3f} of the time of {name}" for name, r in found.items() if r.low > ALLOWED]


@dataclass(frozen=True, slots=True)
class Composed:
    """A model of two parts: `theirs` is quicker with the plugin, `ours` is quicker without."""

    plugin: str
    theirs: str
    ours: str
    row: Row

    @property
    def broken_promises(self) -> list[str]:
        """Whom placement by measurement does not beat."""
        if MEASURED not in self.row.times:
            return [f"no program: {self.row.programs[MEASURED].failure}"]
        found = {name: self.row.ratio(name, MEASURED) for name in self.row.singles}
        return [f"does not beat {name}: {r}" for name, r in found.items() if r.low <= 1]


@dataclass(slots=True)
class Results:
    """`origins` says of each part of the page where it comes from: its command, commit and date. `parts` are operators
    measured alone, with each plugin, from which composed models are made.
    """

    threads: int = 0
    plugins: dict[str, str] = field(default_factory=dict[str, str])  # versions
    origins: dict[str, str] = field(default_factory=dict[str, str])
    networks: dict[str, Row] = field(default_factory=dict[str, Row])
    claims_nothing: dict[str, Row] = field(default_factory=dict[str, Row])
    parts: dict[str, Row] = field(default_factory=dict[str, Row])
    composed: list[Composed] = field(default_factory=list[Composed])

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Results":
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for table in ("networks", "claims_nothing", "parts"):
            raw[table] = {name: _row(row) for name, row in raw[table].items()}
        raw["composed"] = [
            Composed(c["plugin"], c["theirs"], c["ours"], _row(c["row"])) for c in raw["composed"]
        ]
        return cls(**raw)


def _row(raw: Mapping[str, Any]) -> Row:
    programs: Mapping[str, Mapping[str, Any]] = raw["programs"]
    return Row({name: Program(**_with_tuples(p)) for name, p in programs.items()})


def _with_tuples(raw: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists only."""
    return {**raw, "rounds": tuple(raw["rounds"]), "runs_it": tuple(raw["runs_it"])}

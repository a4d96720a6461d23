"""Runs of published networks, read and compared.

A time is the median of its runs' medians; a ratio is that of two engines in one run, so its median is over as many
runs, and its range is that of the runs.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.real_models import PublishedModel
from benchmarks.suite_results import OURS, PEER_ERROR
from tilewright.support.turns import Ratio

Run: TypeAlias = Mapping[str, Mapping[str, Any]]  # by engine


@dataclass(frozen=True, slots=True)
class Entry:
    """One network with one number of threads."""

    model: PublishedModel
    threads: int
    runs: tuple[Run, ...]
    fresh: Run | None = None  # in which nothing was compiled or converted before

    @property
    def engines(self) -> list[str]:
        return list(dict.fromkeys(e for run in self.runs for e in run))

    def failure(self, engine: str) -> str | None:
        """Why it has no figures, if it has none."""
        cells = [run.get(engine, {"failed": "was not run"}) for run in self.runs]
        return next((str(c["failed"]) for c in cells if "failed" in c), None)

    def is_missing(self, engine: str) -> bool:
        return any(run.get(engine, {}).get("is_missing") for run in self.runs)

    def times(self, engine: str) -> list[float]:
        """Seconds, one of each run."""
        return [run[engine]["seconds"] for run in self.runs if "seconds" in run.get(engine, {})]

    def seconds(self, engine: str) -> float:
        return statistics.median(self.times(engine))

    def spread(self, engine: str) -> float:
        """Noise: how much slower the slowest run was than the quickest, as a fraction."""
        times = self.times(engine)
        return max(times) / min(times) - 1

    def error(self, engine: str) -> float:
        """The largest of all runs; 0 where there was nothing to compare with."""
        return max((run[engine].get("error") or 0.0 for run in self.runs if engine in run), default=0.0)

    def is_right(self, engine: str) -> bool:
        allowed = self.model.tolerance if engine == OURS else max(self.model.tolerance, PEER_ERROR)
        return self.error(engine) <= allowed

    def counts(self, engine: str) -> bool:
        return engine in self.engines and self.failure(engine) is None and self.is_right(engine)

    def ratio(self, engine: str) -> Ratio | None:
        """Its time over ours: above 1, ours is quicker. None unless both have right results."""
        if not (self.counts(engine) and self.counts(OURS)):
            return None
        found = [a / b for a, b in zip(self.times(engine), self.times(OURS), strict=True)]
        return Ratio(statistics.median(found), min(found), max(found))

    def best(self) -> str | None:
        """The quickest of the others."""
        ratios = {e: r.value for e in self.engines if e != OURS and (r := self.ratio(e)) is not None}
        return min(ratios, key=lambda e: ratios[e], default=None)

    def best_ratio(self) -> Ratio | None:
        best = self.best()
        return None if best is None else self.ratio(best)


@dataclass(frozen=True, slots=True)
class Opened:
    """One network at one of several sizes, as it was published."""

    model: PublishedModel
    threads: int
    sizes: Mapping[str, int]
    run: Run

    def ratio(self, engine: str) -> float | None:
        cells = [self.run.get(e, {}) for e in (engine, OURS)]
        return cells[0]["seconds"] / cells[1]["seconds"] if all("seconds" in c for c in cells) else None


@dataclass(frozen=True, slots=True)
class Found:
    entries: tuple[Entry, ...]
    opened: tuple[Opened, ...]
    commits: tuple[str, ...]

    @property
    def thread_counts(self) -> list[int]:
        return sorted({e.threads for e in self.entries})

    def at(self, threads: int) -> list[Entry]:
        return [e for e in self.entries if e.threads == threads]


def read_runs(store: Path, models: Sequence[PublishedModel]) -> Found:
    """What is stored of these networks."""
    entries: list[Entry] = []
    opened: list[Opened] = []
    commits: set[str] = set()
    for model in models:
        by_threads: dict[int, list[dict[str, Any]]] = {}
        for path in sorted(store.glob(f"{model.name}.[0-9]*.[0-9]*.json")):
            run = json.loads(path.read_text(encoding="utf-8"))
            by_threads.setdefault(int(path.name.split(".")[1]), []).append(run)
            commits.add(run["commit"])
        fresh = next((r["engines"] for rs in by_threads.values() for r in rs if r["is_fresh"]), None)
        for threads, runs in sorted(by_threads.items()):
            entries.append(Entry(model, threads, tuple(r["engines"] for r in runs), fresh))
        path = store / f"{model.name}.open.json"
        if path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
            commits.add(stored["commit"])
            opened += [Opened(model, stored["threads"], s["sizes"], s["engines"]) for s in stored["sizes"]]
    return Found(tuple(entries), tuple(opened), tuple(sorted(commits)))

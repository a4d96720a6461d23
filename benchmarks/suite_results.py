"""Times of networks and operators in several engines, as the benchmark suite writes them: read, merged, compared.

    {"resnet18": {"1": {"ort": {"median_ms": …, "round_medians_ms": […], "rel_err": …, "version": …}, …}}}

by model, number of threads and engine. An engine that failed has `error` and no median. `NAME_batch8` is a network on
batches of 8. `gflop` is what a run computes; `peak`, a loop of multiply-adds, has it too. Figures of different runs are
not neighbours: a ratio is always that of one file.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tilewright.support.turns import Ratio, bootstrap_medians

OURS, PEAK = "tilewright", "peak"
SUITE_NAMES = {"inductor": "inductor_fz", "xla": "jax"}  # of engines that `tilewright bench` calls otherwise
OUR_ERROR = 1e-4  # of the largest output: beyond it a result of ours does not count
PEER_ERROR = 2e-3  # the same for others
_OUR_NAMES = {**{theirs: ours for ours, theirs in SUITE_NAMES.items()}, "inductor": "inductor, not frozen"}
_FOLDERS = re.compile(r"(?<![\w.])~?(?:/[^\s/:'\"]+)+/")
_FAILURE_LENGTH = 160
_BATCH = re.compile(r"(.+)_batch(\d+)")


@dataclass(frozen=True, slots=True)
class Cell:
    """One engine on one model; `failure` says why there is no median. `ours` is our own cell in the same run."""

    median: float = math.nan  # milliseconds
    rounds: tuple[float, ...] = ()  # the medians of each
    error: float = 0.0
    version: str = ""
    failure: str = ""
    of_peak: float = math.nan  # the rate over that of multiply-adds in the same run
    ours: "Cell | None" = None

    @property
    def is_there(self) -> bool:
        return not self.failure


Row: TypeAlias = Mapping[str, Cell]  # by engine, as `tilewright bench` calls it
Results: TypeAlias = dict[str, dict[int, dict[str, Cell]]]


def read_results(paths: Iterable[Path]) -> Results:
    """All files together; where two have the same engine on the same model, the later file counts."""
    found: Results = {}
    for path in paths:
        for model, by_threads in json.loads(path.read_text(encoding="utf-8")).items():
            for threads, raw in by_threads.items():
                rate = _rate(raw.get(PEAK, {}))
                cells = {
                    _OUR_NAMES.get(str(e), str(e)): replace(_cell(c), of_peak=_rate(c) / rate)
                    for e, c in raw.items()
                    if e != PEAK
                }
                row = found.setdefault(model, {}).setdefault(int(threads), {})
                row.update({e: replace(c, ours=cells.get(OURS)) for e, c in cells.items()})
    return found


def _rate(raw: Mapping[str, Any]) -> float:
    """Operations in a time; not a number if they were not counted."""
    return raw["gflop"] / raw["median_ms"] if raw.get("gflop") and "median_ms" in raw else math.nan


def _cell(raw: Mapping[str, Any]) -> Cell:
    if "median_ms" not in raw or "error" in raw:
        return Cell(failure=failure_text(str(raw.get("error", "no result"))))
    error = float(raw.get("rel_err", 0.0))
    return Cell(
        raw["median_ms"], tuple(raw["round_medians_ms"]), error, str(raw.get("version", "")), failure=""
    )


def failure_text(message: str) -> str:
    """The first line, without the folders of somebody's machine."""
    line = next((line.strip() for line in message.splitlines() if line.strip()), "failed")
    return _FOLDERS.sub("", line)[:_FAILURE_LENGTH]


def split_batch(network: str) -> tuple[str, int]:
    """("resnet50", 8) of "resnet50_batch8"; a network without a number has batch 1."""
    match = _BATCH.fullmatch(network)
    return (network, 1) if match is None else (match[1], int(match[2]))


def counts(cell: Cell, engine: str) -> bool:
    """Is the result there, and right? (An error that is not a number is not.)"""
    return cell.is_there and cell.error <= (OUR_ERROR if engine == OURS else PEER_ERROR)


def best_peer(row: Row) -> str | None:
    """The quickest of the others, as far as runs can be compared: by its time over ours in its own run."""
    ratios = {e: r for e in row if e != OURS and (r := against(row, e)) is not None}
    return min(ratios, key=lambda e: (ratios[e].value, row[e].median), default=None)


def against(row: Row, engine: str) -> Ratio | None:
    """The engine's time over ours, with a 95 % interval over rounds; 0 if ours has no right result, None if the engine
    has none.
    """
    if engine not in row or not counts(row[engine], engine):
        return None
    theirs = row[engine]
    ours = theirs.ours or row.get(OURS)
    if ours is None or not counts(ours, OURS):
        return Ratio(0.0, 0.0, 0.0)
    rng = np.random.default_rng(0)
    draws = [bootstrap_medians(c.rounds or (c.median,), rng) for c in (theirs, ours)]
    low, high = np.percentile(draws[0] / draws[1], (2.5, 97.5))
    return Ratio(theirs.median / ours.median, float(low), float(high))


def geometric_mean(values: Iterable[float]) -> float:
    """A ratio of 0 (a wrong result of ours) counts as a thousandth."""
    found = [math.log(max(v, 1e-3)) for v in values]
    return math.exp(sum(found) / len(found)) if found else math.nan

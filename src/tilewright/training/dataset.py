"""The rows of a corpus as samples: timed schedules with their features.

Features are computed when they are needed, by the compiler as it is now: schedules that no family offers any more are
left out, and counted. What was computed is kept in the folder of the corpus, under a digest of the sources that it
depends on, so that only what is new takes time.
"""

import json
import logging
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from tilewright import cost
from tilewright.driver.keys import rules_digest, source_digest, target_digest
from tilewright.learned.candidates import KernelCandidates, KernelGraph
from tilewright.learned.features import FEATURES
from tilewright.learned.guard import FAMILY_COLUMNS
from tilewright.support.arrays import FloatArray
from tilewright.support.pool import Pool, module_command
from tilewright.target.target import Target
from tilewright.training.corpus import Corpus
from tilewright.training.rows import KernelKey, KernelRow, TrialRow
from tilewright.training.sampler import Sampled, read_answer, request_packet
from tilewright.training.samples import KernelSamples
from tilewright.training.table import part_of
from tilewright.tuning.candidate import DEFAULT
from tilewright.tuning.trial import TrialStatus

_log = logging.getLogger("tilewright")

_TIMEOUT = 120.0  # seconds for a kernel, on a busy machine: most take less than one
# Beside the rules: what features are made of, and how they are stored.
_SOURCES = (
    *(f"cost/{p.name}" for p in sorted(Path(cost.__path__[0]).glob("*.py"))),
    *("learned/features.py", "learned/kernel_graph.py", "tir/parser.py"),
    *("training/kinds.py", "training/sampler.py", "training/dataset.py"),
)
_LEAST_NOISE = 1e-3  # relative, given: a few ratios that agree by luck say no more


class _Group(NamedTuple):
    """What becomes one `KernelSamples`."""

    kernel: KernelKey
    program: str
    machine: str
    threads: int


@dataclass(slots=True)
class LeftOut:
    """Rows that have no part in the samples, and why."""

    failed: int = 0  # trials that did
    gone: int = 0  # schedules that no family offers any more
    unreadable: int = 0  # trials of kernels whose text is missing, or not understood
    handed_on: int = 0  # trials whose time is not all of what they cost: `at_one_place`


def samples(
    corpus: Corpus,
    target: Target,
    *,
    threads: int | None = None,
    machine: str | None = None,
    with_graphs: bool = False,
    processes: int = 2,
    left_out: LeftOut | None = None,
) -> list[KernelSamples]:
    """Of all kernels, or of the trials with this number of threads, on this machine (as rows name it). `target` is the
    one that features are computed for. `left_out` is told what is missing.
    """
    counted = LeftOut() if left_out is None else left_out
    kernels = corpus.kernels()
    groups = _grouped(corpus.trials(), kernels, threads, machine, counted)
    cache = _SampleCache(corpus.folder, target, with_graphs)
    made = cache.read(groups)
    missing = [g for g in groups if g not in made]
    if missing:
        made |= _computed({g: groups[g] for g in missing}, kernels, target, with_graphs, processes)
        cache.write(groups, made)
    found: list[KernelSamples] = []
    for group, rows in groups.items():
        one = made.get(group)
        if one is None:
            counted.unreadable += len(rows)
            continue
        counted.gone += len(rows) - len(one.kept)
        kept = [rows[int(n)] for n in one.kept.tolist()]
        if kept:
            every = _samples(kernels[group.kernel], group, one, kept)
            comparable = at_one_place(every)
            counted.handed_on += len(every) - len(comparable)
            found.append(comparable)
    return found


def at_one_place(samples: KernelSamples) -> KernelSamples:
    """Those that leave results where the cheapest schedule of the family does. Results that go past the caches are
    quicker stored, and the kernel that reads them next waits for them: of the time of one kernel alone, a model would
    learn to hand the cost on. (Stored so from 1 to 3 MiB on, programs that memory bounds ran at 0.69 to 1.5 times the
    speed, where their kernels alone took half of the time.)
    """
    features, costs = samples.candidates.features, samples.candidates.costs
    kept = np.ones(len(samples), np.bool_)
    family = features[:, FAMILY_COLUMNS].argmax(axis=1)
    for one in np.unique(family):
        rows = np.flatnonzero(family == one)
        cheapest = rows[np.argmin(costs[rows])]
        kept[rows] = features[rows, _STREAMS] == features[cheapest, _STREAMS]
    return samples if kept.all() else part_of(samples, np.flatnonzero(kept))


_STREAMS = FEATURES.index("knob_streams")


def _grouped(
    trials: Iterable[TrialRow],
    kernels: Mapping[KernelKey, KernelRow],
    threads: int | None,
    machine: str | None,
    counted: LeftOut,
) -> dict[_Group, list[TrialRow]]:
    """Trials that went well."""
    found: dict[_Group, list[TrialRow]] = {}
    for t in trials:
        if t.family == DEFAULT or threads not in (None, t.threads) or machine not in (None, t.machine):
            continue
        if t.status != TrialStatus.OK.value:
            counted.failed += 1
        elif t.kernel not in kernels:
            counted.unreadable += 1
        else:
            found.setdefault(_Group(t.kernel, t.program, t.machine, t.threads), []).append(t)
    return found


def _samples(kernel: KernelRow, group: _Group, one: Sampled, kept: Sequence[TrialRow]) -> KernelSamples:
    noise = np.array([t.noise for t in kept])
    return KernelSamples(
        *(group.kernel, group.program, kernel.source, one.kind, group.threads, one.candidates),
        np.array([t.seconds for t in kept]),
        np.maximum(np.nan_to_num(noise, nan=1.0), _LEAST_NOISE),
    )


def _computed(
    groups: Mapping[_Group, Sequence[TrialRow]],
    kernels: Mapping[KernelKey, KernelRow],
    target: Target,
    with_graphs: bool,
    processes: int,
) -> dict[_Group, Sampled]:
    """Of those whose kernels are understood."""
    found: dict[_Group, Sampled] = {}
    with Pool(module_command("tilewright.training.sampler"), max(1, min(processes, len(groups)))) as pool:
        requests = {
            group: pool.submit(
                request_packet(
                    kernels[group.kernel],
                    [(t.family, t.decisions) for t in rows],
                    target.for_threads(group.threads),
                    with_graph=with_graphs,
                ),
                _TIMEOUT,
            )
            for group, rows in groups.items()
        }
        pool.wait(*requests.values())
    for group, request in requests.items():
        said = str(request.failure) if request.answer is None else read_answer(*request.answer)
        if isinstance(said, str):
            _log.warning("the kernel %s of %s is left out: %s", group.kernel[:12], group.program, said)
        else:
            found[group] = said
    return found


# --------------------------------------------------------------------------------------------------------------- cache


class _SampleCache:
    """Features that were computed, in one file: arrays of all groups one after the other, and a table of where each
    begins.
    """

    def __init__(self, folder: Path, target: Target, with_graphs: bool) -> None:
        sources = "".join(map(source_digest, _SOURCES))
        about = f"{rules_digest()} {sources} {target_digest(target)} {target.machine!r} {with_graphs}"
        self._path = folder / f"samples-{sha256(about.encode()).hexdigest()[:16]}.npz"
        self._folder = folder

    def read(self, groups: Mapping[_Group, Sequence[TrialRow]]) -> dict[_Group, Sampled]:
        """Of groups that have the same trials as when they were written."""
        try:
            with open(self._path, "rb") as source, np.load(source, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            table: list[dict[str, Any]] = json.loads(bytes(arrays["table"]).decode())
        except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error):
            return {}
        found: dict[_Group, Sampled] = {}
        for row in table:
            group = _Group(KernelKey(row["kernel"]), row["program"], row["machine"], row["threads"])
            if group in groups and row["trials"] == _digest(groups[group]):
                found[group] = _taken(arrays, row)
        return found

    def write(self, groups: Mapping[_Group, Sequence[TrialRow]], made: Mapping[_Group, Sampled]) -> None:
        """What cannot be written is computed again."""
        table: list[dict[str, Any]] = []
        parts: dict[str, list[Any]] = {}
        ends: dict[str, int] = {}
        for group, one in made.items():
            spans: dict[str, tuple[int, int]] = {}
            for name, array in _arrays(one).items():
                begin = ends.get(name, 0)
                ends[name] = begin + len(array)
                spans[name] = begin, ends[name]
                parts.setdefault(name, []).append(array)
            about = {"trials": _digest(groups[group]), "kind": one.kind, "spans": spans}
            table.append(group._asdict() | about)
        joined: dict[str, Any] = {name: np.concatenate(every) for name, every in parts.items()}
        joined["table"] = np.frombuffer(json.dumps(table).encode(), np.uint8)
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            with open(temporary, "wb") as out:
                np.savez(out, allow_pickle=False, **joined)
            os.replace(temporary, self._path)
            for path in self._folder.glob("samples-*.npz"):  # of other sources: nobody reads them again
                if path != self._path and path.stat().st_mtime < self._path.stat().st_mtime - _KEPT_SECONDS:
                    path.unlink()


_KEPT_SECONDS = 7 * 86400.0  # given: somebody may compare two versions


def _digest(rows: Sequence[TrialRow]) -> str:
    h = sha256()
    for t in rows:
        h.update(f"{t.family} {t.decisions}\n".encode())
    return h.hexdigest()


def _arrays(one: Sampled) -> dict[str, Any]:
    c = one.candidates
    found: dict[str, Any] = {"kept": one.kept, "features": c.features, "costs": c.costs}
    if c.graph is not None:
        found |= {"opcodes": c.graph.opcodes, "nodes": c.graph.nodes, "edges": c.graph.edges}
    return found


def _taken(arrays: Mapping[str, Any], row: Mapping[str, Any]) -> Sampled:
    parts = {name: arrays[name][begin:end] for name, (begin, end) in row["spans"].items()}
    graph = KernelGraph(parts["opcodes"], parts["nodes"], parts["edges"]) if "nodes" in parts else None
    features: FloatArray = parts["features"]
    return Sampled(row["kind"], parts["kept"], KernelCandidates(features, parts["costs"], graph))

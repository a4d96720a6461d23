"""Where placements are timed: graphs are compiled with plugins and run on made-up inputs, in turns."""

import hashlib
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.graph.graph import Graph
from tilewright.measured import Assignment
from tilewright.ops.opdef import Array, TensorType
from tilewright.runtime.session import Session
from tilewright.search.database import OK, Database, Measurement, Scope

_ROUNDS = 9
_ROUND_SECONDS = 0.02  # that one takes its turn for, at least
_RULE = "placement"


class Workbench:
    """`build` makes a session of a graph, of which plugins run what is assigned to them; None if they take nothing.
    Times of parts are looked up in the database, and kept there.
    """

    def __init__(
        self,
        build: Callable[[Graph, Assignment], Session | None],
        database: Database,
        scope: Scope,
        threads: int,
        versions: dict[str, str],
    ) -> None:
        self._build, self._database, self._scope = build, database, scope
        self._threads, self._versions = threads, versions

    def seconds(self, part: Graph, plugin: str) -> float | None:
        key = f"{digest(part)} {plugin} {self._versions.get(plugin, '')} {self._threads}"
        for m in reversed(self._database.measurements(self._scope, key)):
            if m.purpose == _RULE:
                return m.seconds
        session = self._build(part, dict.fromkeys(part.nodes, plugin) if plugin else {})
        taken = None if session is None else _in_turns([session], part)[0]
        self._database.record(
            self._scope, Measurement(key, _RULE, plugin or "native", {}, OK, taken, self._threads)
        )
        return taken

    def compare(self, graph: Graph, choices: Sequence[Assignment]) -> list[float]:
        sessions = [self._build(graph, choice) for choice in choices]
        times = iter(_in_turns([s for s in sessions if s is not None], graph))
        return [math.inf if s is None else next(times) for s in sessions]


def digest(graph: Graph) -> str:
    """Of what a part of a model computes, whatever its values are called and weights are."""
    numbers = {v: i for i, v in enumerate((*graph.inputs, *graph.constants))}
    h = hashlib.sha256(repr([v.type for v in numbers]).encode())
    for n in graph.nodes:
        h.update(f"{n.op!r} {[numbers[v] for v in n.inputs]}".encode())
        for v in n.outputs:
            numbers[v] = len(numbers)
    h.update(repr([numbers[v] for v in graph.outputs]).encode())
    return h.hexdigest()


def made_up(type: TensorType, rng: np.random.Generator) -> Array:
    """Floats around zero; integers are zero, which is an index of anything."""
    if type.dtype.is_float:
        return rng.standard_normal(type.shape).astype(type.dtype.numpy)
    return np.zeros(type.shape, type.dtype.numpy)


def _in_turns(sessions: Sequence[Session], graph: Graph) -> list[float]:
    """The median time of each over rounds in which they take turns."""
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {v.name: made_up(v.type, rng) for v in graph.inputs}
    runs = [session.bind(feeds).run for session in sessions]
    samples: list[list[float]] = [[] for _ in runs]
    for number in range(_ROUNDS):
        order = range(len(runs)) if number % 2 == 0 else reversed(range(len(runs)))
        for i in order:
            runs[i]()  # what others have pushed out of the caches
            samples[i].append(_typical(runs[i]))
    return [statistics.median(s) for s in samples]


def _typical(run: Callable[[], object]) -> float:
    times: list[float] = []
    end = time.perf_counter() + _ROUND_SECONDS
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)

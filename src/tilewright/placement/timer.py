"""Where placements are timed: graphs are compiled with plugins and run on made-up inputs, in turns.

What cannot be built or fails while it runs drops out, and the others go on; if plugins must not fail, it is an error.
Times are kept in the database: a layer that comes again, in this model or another, is timed once.
"""

import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from tilewright.graph.graph import Graph
from tilewright.ops.opdef import TensorType
from tilewright.placement.measured import MEASURED_PIECES, NATIVE_NAME, Assignment
from tilewright.runtime.session import Session
from tilewright.search.database import OK, Database, Measurement, RecordScope
from tilewright.support.arrays import Array
from tilewright.support.turns import brief_turn, quickest

_log = logging.getLogger("tilewright")

_PART_SECONDS = 0.6  # to time a part for, with all that take some of it
_WHOLE_SECONDS = 5.0
_RULE = "placement"


class PlacementTimer:
    """`build` makes a session of a graph, of which plugins run what is assigned to them; None if they take nothing, or
    leave something that native code does not know. `versions` are those of the plugins, by name.
    """

    pieces = MEASURED_PIECES

    def __init__(
        self,
        build: Callable[[Graph, Assignment], Session | None],
        database: Database,
        scope: RecordScope,
        threads: int,
        versions: Mapping[str, str],
        *,
        strict: bool = False,
    ) -> None:
        self._build, self._database, self._scope = build, database, scope
        self._threads, self._versions, self._strict = threads, versions, strict

    def seconds(self, part: Graph, plugins: Sequence[str]) -> dict[str, float]:
        names = (NATIVE_NAME, *plugins)
        keys = {name: self._key(graph_digest(part), name) for name in names}
        known = {name: self._recorded(key) for name, key in keys.items()}
        if None in known.values():
            choices = {name: dict.fromkeys(part.nodes, name) if name else {} for name in names}
            known = self._timed(part, choices, _PART_SECONDS)
            for name, taken in known.items():
                self._record(keys[name], name, taken)
        return {name: taken for name, taken in known.items() if taken is not None and taken < math.inf}

    def compare(self, graph: Graph, choices: Mapping[str, Assignment]) -> dict[str, float]:
        found = self._timed(graph, choices, _WHOLE_SECONDS)
        text = graph_digest(graph)
        for name, taken in found.items():
            hands = set(choices[name].values())
            alone = len(hands) <= 1 and len(choices[name]) in (0, len(graph.nodes))
            who = next(iter(hands), NATIVE_NAME) if alone else f"{name} {_mixture(graph, choices[name])}"
            self._record(self._key(text, who), name, taken)
        return found

    def why_not(self, plugin: str) -> str:
        return "by measurement, others are quicker with it, or no slower"

    def known(self, part: Graph, plugin: str) -> float | None:
        """The time of a part that was measured before, natively or with a plugin; None if it was not."""
        found = self._recorded(self._key(graph_digest(part), plugin))
        return None if found is None or found == math.inf else found

    # ------------------------------------------------------------------------------------------------ the database

    def _key(self, text: str, who: str) -> str:
        return f"{text} {who} {self._versions.get(who, '')} {self._threads}"

    def _recorded(self, key: str) -> float | None:
        """Infinite if it cannot run; None if nobody has tried."""
        for m in reversed(self._database.measurements(self._scope, key)):
            if m.purpose == _RULE:
                return math.inf if m.seconds is None else m.seconds
        return None

    def _record(self, key: str, name: str, taken: float) -> None:
        seconds = taken if taken < math.inf else None
        m = Measurement(key, _RULE, name or "native", {}, OK, seconds, self._threads)
        self._database.record(self._scope, m)

    # ------------------------------------------------------------------------------------------------------- timing

    def _timed(self, graph: Graph, choices: Mapping[str, Assignment], seconds: float) -> dict[str, float]:
        """All of them in turns, for `seconds` or a little longer."""
        with ExitStack() as stack:
            rng = np.random.default_rng(0)
            feeds: dict[str, Any] = {v.name: made_up(v.type, rng) for v in graph.inputs}
            runs: dict[str, Callable[[], object]] = {}
            for name, choice in choices.items():
                run = self._run_of(graph, choice, feeds, stack)
                if run is not None:
                    runs[name] = run
            end = time.perf_counter() + seconds
            turns = {name: partial(self._turn, name, run) for name, run in runs.items()}
            times = quickest(turns, lambda: time.perf_counter() > end)
        return {name: times.get(name, math.inf) for name in choices}

    def _run_of(
        self, graph: Graph, choice: Assignment, feeds: Mapping[str, Any], stack: ExitStack
    ) -> Callable[[], object] | None:
        try:
            session = self._build(graph, choice)
            if session is None:
                return None
            return stack.enter_context(session).bind(feeds).run
        except Exception as e:
            self._lost(", ".join(sorted(set(choice.values()))), e)
            return None

    def _turn(self, name: str, run: Callable[[], object]) -> list[float]:
        try:
            return brief_turn(run)
        except Exception as e:
            self._lost(name, e)
            return []

    def _lost(self, name: str, e: Exception) -> None:
        if self._strict or not name:
            raise e
        _log.warning("placement without %s: %s: %s", name, type(e).__name__, e)


def graph_digest(graph: Graph) -> str:
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


def _mixture(graph: Graph, choice: Assignment) -> str:
    """A digest of who has which node."""
    hands = "\n".join(choice.get(n, NATIVE_NAME) for n in graph.nodes)
    return hashlib.sha256(hands.encode()).hexdigest()[:16]

"""Placement by measurement.

1. The graph is cut into segments (`graph.segments`). Each is timed as native code, and with each plugin that takes some
   of it.
2. Who runs which segment is a shortest path: times of segments, and what it costs to change hands between two.
3. What came of it is measured as a whole, in turns with native code alone and with each plugin alone, and the fastest
   wins. So the result is never slower than any of these, but for what measurements differ.

Times of segments are kept in the database: a layer that comes again, in this model or another, is timed once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tilewright.graph.graph import Graph, Node
from tilewright.graph.segments import segments, subgraph
from tilewright.graph.surroundings import Surroundings

Assignment: TypeAlias = Mapping[Node, str]
"""The plugin that may have a node; one that is not there is native."""

NATIVE_NAME = ""
_SEGMENTS = 12
_SWITCH_SECONDS = 1e-5  # to leave native code for a plugin and come back
_BYTES_PER_SECOND = 1e10  # of what changes hands
_CLEARLY = 0.99  # of the time of native code: for less, it is not worth to depend on others


class Lab(Protocol):
    """Where things are timed."""

    def seconds(self, part: Graph, plugin: str) -> float | None:
        """The time of a graph of which a plugin runs what it takes; None if it takes nothing, or native code does not
        know the rest. Plugin "" is none.
        """
        ...

    def compare(self, graph: Graph, choices: Sequence[Assignment]) -> list[float]:
        """The times of the graph with these assignments, measured in turns; infinite for what cannot run."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What was chosen, and the times of all that were compared, by name."""

    assignment: Assignment
    seconds: Mapping[str, float]
    chosen: str


def choose(graph: Graph, plugins: Sequence[str], lab: Lab) -> Measured:
    """Who runs what, by time."""
    around = Surroundings(graph)
    pieces = segments(graph, _SEGMENTS)
    names = [NATIVE_NAME, *plugins]
    times: list[dict[str, float]] = []
    across: list[int] = []
    for i, nodes in enumerate(pieces):
        part = subgraph(around, f"segment {i}", nodes)
        found = {name: lab.seconds(part, name) for name in names}
        times.append({name: t for name, t in found.items() if t is not None})
        across.append(sum(v.bytes for v in part.inputs))
    candidates: dict[str, Assignment] = {"native": {}}
    candidates |= {
        name: dict.fromkeys(graph.nodes, name) for name in plugins if any(name in t for t in times)
    }
    path = _shortest(times, across) if all(times) else []  # a segment may be too much for each of them alone
    if len(set(path)) > 1:
        candidates["mixed"] = {
            n: name for name, nodes in zip(path, pieces, strict=True) for n in nodes if name
        }
    seconds = dict(zip(candidates, lab.compare(graph, list(candidates.values())), strict=True))
    best = min(seconds, key=seconds.__getitem__)
    if seconds[best] > _CLEARLY * seconds["native"]:
        best = "native"
    return Measured(candidates[best], seconds, best)


def _shortest(times: Sequence[Mapping[str, float]], across: Sequence[int]) -> list[str]:
    """The cheapest sequence of hands. `across` is how many bytes come into each segment."""
    best: dict[str, tuple[float, list[str]]] = {name: (t, [name]) for name, t in times[0].items()}
    for choices, nbytes in zip(times[1:], across[1:], strict=True):
        switch = _SWITCH_SECONDS + nbytes / _BYTES_PER_SECOND
        after: dict[str, tuple[float, list[str]]] = {}
        for name, seconds in choices.items():
            cost, way = min(
                ((c + switch * (last != name), w) for last, (c, w) in best.items()), key=lambda x: x[0]
            )
            after[name] = (cost + seconds, [*way, name])
        best = after
    return min(best.values(), key=lambda x: x[0])[1]

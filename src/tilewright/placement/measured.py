"""Placement by time: who runs which part of a model.

1. The graph is cut into pieces (`graph.segments`), none of them through what a plugin takes as one. How long each takes
   as native code, and with each plugin that takes some of it, a `Lab` says.
2. Who runs which piece is a shortest path: times of pieces, and what it costs to change hands between two.
3. What came of it is compared as a whole with native code alone and with each plugin alone, and the quickest wins.
   Native code wins where nobody else is clearly quicker.

A lab measures (`timer.PlacementTimer`), or goes by estimates (`modelled.Modelled`). Where it measures, the result is
never slower than native code or any plugin alone, but for what measurements differ.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tilewright.graph.border import crossing_seconds
from tilewright.graph.external import Unit
from tilewright.graph.graph import Graph, Node
from tilewright.graph.segments import segments, subgraph
from tilewright.graph.surroundings import Surroundings

Assignment: TypeAlias = Mapping[Node, str]
"""The plugin that may have a node; one that is not there is native."""

Claims: TypeAlias = Mapping[str, Sequence[Unit]]
"""What plugins would take, by their names."""

Tell: TypeAlias = Callable[[int, int], None]
"""How much is done, and how much there is to do."""

NATIVE_NAME = ""
MEASURED_PIECES = 12  # each is compiled and timed with each plugin
_CLEARLY = 0.99  # of the time of native code: for less, it is not worth to depend on others


class Lab(Protocol):
    """Who knows how long things take."""

    @property
    def pieces(self) -> int:
        """How many it is worth to ask about, at most."""
        ...

    def seconds(self, part: Graph, plugins: Sequence[str]) -> Mapping[str, float]:
        """The time of a part, natively (name "") and with each of the plugins running what it takes. Who cannot is not
        there: one that takes nothing, or leaves something to native code that this does not know.
        """
        ...

    def compare(self, graph: Graph, choices: Mapping[str, Assignment]) -> Mapping[str, float]:
        """The times of the graph with these assignments, to be compared with each other; infinite for what fails."""
        ...

    def why_not(self, plugin: str) -> str:
        """Why a plugin does not get all that it would take."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredChoice:
    """What was chosen, by name, and the times of all that were compared. If nothing can run that one of them does
    alone, the assignment is None: let plugins take what they want, in order.
    """

    assignment: Assignment | None
    seconds: Mapping[str, float]
    name: str


def choose(graph: Graph, claims: Claims, lab: Lab, tell: Tell = lambda done, total: None) -> MeasuredChoice:
    """Who runs what, by time."""
    claims = {plugin: units for plugin, units in claims.items() if units}
    if not claims:
        return MeasuredChoice({}, {}, "native")
    pieces = segments(graph, lab.pieces, [u.nodes for units in claims.values() for u in units])
    claimants = [_claimants(piece, claims) for piece in pieces]
    total = sum(map(bool, claimants)) + 1
    around = Surroundings(graph)
    times: list[Mapping[str, float]] = []
    across: list[int] = []
    done = 0
    for i, (nodes, plugins) in enumerate(zip(pieces, claimants, strict=True)):
        part = subgraph(around, f"segment {i}", nodes)
        across.append(sum(v.bytes for v in part.inputs))
        if plugins:
            tell(done, total)
            times.append(lab.seconds(part, plugins))
            done += 1
        else:  # however long it takes, it does so on each path
            times.append({NATIVE_NAME: 0.0})
    candidates: dict[str, Assignment] = {"native": {}}
    candidates |= {name: dict.fromkeys(graph.nodes, name) for name in claims}
    path = shortest_path(times, across)
    if len({name for name, plugins in zip(path, claimants, strict=False) if plugins}) > 1:
        candidates["mixed"] = {
            n: name for name, nodes in zip(path, pieces, strict=True) for n in nodes if name
        }
    tell(done, total)
    seconds = lab.compare(graph, candidates)
    tell(total, total)
    best = min(seconds, key=seconds.__getitem__)
    if seconds[best] == math.inf:
        return MeasuredChoice(None, seconds, "greedy")
    if seconds[best] > _CLEARLY * seconds["native"]:
        best = "native"
    return MeasuredChoice(candidates[best], seconds, best)


def _claimants(piece: Sequence[Node], claims: Claims) -> list[str]:
    """Who would take something of a piece."""
    inside = set(piece)
    return [plugin for plugin, units in claims.items() if any(u.nodes[0] in inside for u in units)]


def shortest_path(times: Sequence[Mapping[str, float]], across: Sequence[int]) -> list[str]:
    """The cheapest sequence of hands; empty if nobody can run one of the pieces. `across` is how many bytes come into
    each.
    """
    best: dict[str, tuple[float, list[str]]] = {NATIVE_NAME: (0.0, [])}  # whoever calls is no plugin
    for choices, nbytes in zip(times, across, strict=True):
        change = crossing_seconds(nbytes)
        after: dict[str, tuple[float, list[str]]] = {}
        for name, seconds in choices.items():
            cost, way = min(
                ((c + change * (last != name), w) for last, (c, w) in best.items()), key=lambda x: x[0]
            )
            after[name] = (cost + seconds, [*way, name])
        if not after:
            return []
        best = after
    return min(best.values(), key=lambda x: x[0])[1]

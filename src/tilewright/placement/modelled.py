"""Times of placements without running anything: what plugins say of themselves, and our own estimate of native code.

A plugin that does not say how long it takes is judged by what was measured before, if there is anything; otherwise it
gets nothing but what native code does not know.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from tilewright.graph.border import border_seconds, crossing_seconds
from tilewright.graph.external import Plugin, Region
from tilewright.graph.graph import Graph, Node
from tilewright.graph.passes.partition import Offer, make_region, offer
from tilewright.graph.passes.prune import NativeSeconds, has_custom_op, prune, stated_seconds
from tilewright.graph.segments import segments, subgraph
from tilewright.graph.surroundings import Surroundings
from tilewright.ops.outside import Outside
from tilewright.placement.measured import MEASURED_PIECES, NATIVE_NAME, Assignment

_FINE = 400  # pieces: estimates cost little
_UNSAID = 2.0  # times as long as native code


class Modelled:
    """`offers` are what plugins would take of the graph; `known` has times of parts that were measured before, natively
    or with a plugin.
    """

    def __init__(
        self,
        graph: Graph,
        offers: Iterable[Offer],
        threads: int,
        native: NativeSeconds,
        known: Callable[[Graph, str], float | None],
    ) -> None:
        self._around = Surroundings(graph)
        self._offers = {o.plugin.name: o for o in offers}
        self._threads, self._native, self._known = threads, native, known
        self._is_measured = self._was_measured()
        self._unknown: set[str] = set()
        self._asked: list[tuple[Graph, Sequence[str], Mapping[str, float]]] = []

    def _was_measured(self) -> bool:
        """Is there a plugin that does not say how long it takes, but was measured?"""
        silent = [
            name
            for name, o in self._offers.items()
            if any(self._stated(o.plugin, r) is None for r in o.regions)
        ]
        if not silent:
            return False
        units = [u.nodes for o in self._offers.values() for r in o.regions for u in r.units]
        pieces = segments(self._around.graph, MEASURED_PIECES, units)
        parts = [subgraph(self._around, "segment", nodes) for nodes in pieces]
        return any(self._known(part, name) is not None for part in parts for name in silent)

    @property
    def pieces(self) -> int:
        return MEASURED_PIECES if self._is_measured else _FINE

    def seconds(self, part: Graph, plugins: Sequence[str]) -> dict[str, float]:
        found = {name: self._part(part, self._offers[name]) for name in plugins}
        found[NATIVE_NAME] = None if _has_custom_op(part.nodes) else self._native_part(part)
        times = {name: t for name, t in found.items() if t is not None}
        self._asked.append((part, plugins, times))
        return times

    def compare(self, graph: Graph, choices: Mapping[str, Assignment]) -> dict[str, float]:
        time = self._by_pieces if self._is_measured else self._by_regions
        return {name: time(graph, choice) for name, choice in choices.items()}

    def why_not(self, plugin: str) -> str:
        if plugin in self._unknown:
            return "it does not say how long it takes, and was not measured"
        return "by estimate, others are quicker with it, or no slower"

    def _stated(self, plugin: Plugin, region: Region) -> float | None:
        """What the plugin says. Of what only a plugin can run it has to say nothing: then what is around that counts as
        slower than native code, so that the plugin gets no more than it must.
        """
        stated = stated_seconds(plugin, region, self._threads)
        if stated is None and has_custom_op(region):
            return _UNSAID * self._native(region.graph.nodes)
        return stated

    def _native_part(self, part: Graph) -> float:
        measured = self._known(part, NATIVE_NAME) if self._is_measured else None
        return self._native(part.nodes) if measured is None else measured

    def _part(self, part: Graph, found: Offer) -> float | None:
        """The time of a part of which a plugin runs what it takes."""
        inside, plugin = set(part.nodes), found.plugin
        regions: list[Region] = []
        for region in found.regions:
            units = [u for u in region.units if u.nodes[0] in inside]
            if units:
                regions.append(make_region(self._around, region.key, units, plugin))
        rest = inside.difference(n for r in regions for n in r.graph.nodes)
        if _has_custom_op(rest):
            return None
        stated = [self._stated(plugin, r) for r in regions]
        if None in stated:
            measured = self._known(part, plugin.name)
            if measured is None:
                self._unknown.add(plugin.name)
            return measured
        borders = sum(map(border_seconds, regions)) if rest or len(regions) > 1 else 0.0
        return sum(t for t in stated if t is not None) + borders + self._native(rest)

    def regions(self, graph: Graph, choice: Assignment) -> list[tuple[Plugin, Region]]:
        """What plugins would run."""
        out: list[tuple[Plugin, Region]] = []
        for plugin in (o.plugin for o in self._offers.values()):
            mine = {n for n, name in choice.items() if name == plugin.name}
            if mine:
                found = offer(graph, plugin, [r for _, r in out], mine)
                out += [(plugin, r) for r in prune(found, self._threads, self._native).regions]
        return out

    def _by_regions(self, graph: Graph, choice: Assignment) -> float:
        """The time of the graph with the regions that plugins would get."""
        placed = self.regions(graph, choice)
        stated = [self._stated(plugin, r) for plugin, r in placed]
        rest = set(graph.nodes).difference(n for _, r in placed for n in r.graph.nodes)
        if None in stated or _has_custom_op(rest):
            return math.inf
        borders = sum(border_seconds(r) for _, r in placed)
        return sum(t for t in stated if t is not None) + borders + self._native(rest)

    def _by_pieces(self, graph: Graph, choice: Assignment) -> float:
        """The time of the graph as the sum of its pieces, as they were asked about: what was measured is among them."""
        total, before = 0.0, NATIVE_NAME
        rest = set(graph.nodes)
        for part, plugins, times in self._asked:
            hand = choice.get(part.nodes[0], NATIVE_NAME)
            hand = hand if hand in plugins else NATIVE_NAME
            if hand != before:
                total += crossing_seconds(sum(v.bytes for v in part.inputs))
            total += times.get(hand, math.inf)
            before = hand
            rest.difference_update(part.nodes)
        return math.inf if _has_custom_op(rest) else total + self._native(rest)


def _has_custom_op(nodes: Iterable[Node]) -> bool:
    return any(isinstance(n.op, Outside) for n in nodes)

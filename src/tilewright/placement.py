"""Who runs which part of a model: native code, or a plugin.

`place` asks the plugins (`graph.passes.partition`), decides, and lets them compile what they got. A plugin whose
compiler fails loses the region: it is native then. Everything that was refused or lost is in the report, with the
reason.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.graph.external import No, Plugin, Region, Unit
from tilewright.graph.graph import Graph
from tilewright.graph.passes.partition import offer
from tilewright.plugins.isolation import compile_region
from tilewright.support.errors import UserError
from tilewright.wish import Wish

_log = logging.getLogger("tilewright")


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What became of a unit that a plugin was asked about. `reason` is empty if the plugin runs it."""

    plugin: str
    unit: Unit
    region: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A region that a plugin has compiled."""

    plugin: Plugin
    region: Region
    blob: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    regions: tuple[Placed, ...]
    verdicts: tuple[Verdict, ...]


NOTHING_PLACED = Placement((), ())


def place(graph: Graph, plugins: Sequence[Plugin], wish: Wish) -> Placement:
    """Decide, and compile what goes to plugins."""
    placed: list[Placed] = []
    verdicts: list[Verdict] = []
    for plugin in plugins:
        found = offer(graph, plugin, [p.region for p in placed])
        verdicts += [Verdict(plugin.name, r.unit, "", r.reason) for r in found.refusals]
        for region in found.regions:
            made = compile_region(plugin, region)
            reason = made.reason if isinstance(made, No) else ""
            if isinstance(made, No):
                if wish.strict:
                    raise UserError(
                        f"the plugin {plugin.name} took a region and could not compile it: {reason}"
                    )
                _log.warning("%s: native code instead: %s", region.key, reason)
            else:
                placed.append(Placed(plugin, region, made))
            verdicts += [Verdict(plugin.name, u, region.key, reason) for u in region.units]
    return Placement(tuple(placed), tuple(verdicts))

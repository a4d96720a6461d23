"""Who runs which part of a model: native code, or a plugin.

`place` asks the plugins (`graph.passes.partition`), decides, and lets them compile what they got. A plugin whose
compiler fails loses the region: it is native then. Everything that was refused or lost is in the report, with the
reason.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.frontend.onnx_export import to_model
from tilewright.graph.external import No, Order, Plugin, Region, Unit
from tilewright.graph.graph import Graph
from tilewright.graph.passes.partition import Offer, offer
from tilewright.measured import Assignment
from tilewright.observed import Observed
from tilewright.ops.opdef import Array
from tilewright.ops.outside import Outside
from tilewright.plugins.isolation import RegionCompiler
from tilewright.support.artifact import RegionCode
from tilewright.support.errors import UserError
from tilewright.wish import Wish

_log = logging.getLogger("tilewright")


class RegionLost(UserError):
    """A plugin failed to compile what it had taken, and must not fail."""


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


def place(
    graph: Graph,
    plugins: Sequence[Plugin],
    wish: Wish,
    assignment: Assignment | None = None,
    observed: Observed | None = None,
    pruned: Callable[[Offer], Offer] = lambda found: found,
) -> Placement:
    """Let plugins take what is assigned to them (None: what they want, in order) and what of that is left when it was
    `pruned`, and compile it. They calibrate with what was `observed`.
    """
    placed: list[Placed] = []
    verdicts: list[Verdict] = []
    with RegionCompiler() as compiler:
        for plugin in plugins:
            mine = (
                None if assignment is None else {n for n, name in assignment.items() if name == plugin.name}
            )
            found = pruned(offer(graph, plugin, [p.region for p in placed], mine))
            verdicts += [Verdict(plugin.name, r.unit, "", r.reason) for r in found.refusals]
            for region in found.regions:
                made = compiler.compile(
                    plugin, region, observed.inputs_of(region) if observed is not None else ()
                )
                reason = ""
                if isinstance(made, No):
                    reason = made.reason
                    _give_up(plugin, region, reason, wish)
                else:
                    placed.append(Placed(plugin, region, made))
                verdicts += [Verdict(plugin.name, u, region.key, reason) for u in region.units]
    return Placement(tuple(placed), tuple(verdicts))


def with_passed_over(placement: Placement, offers: Sequence[Offer], why_not: Callable[[str], str]) -> Placement:
    """The placement with a word about what plugins would have taken, and did not get."""
    judged = {(v.plugin, v.unit.nodes) for v in placement.verdicts}
    refused = [(o.plugin.name, r.unit, r.reason) for o in offers for r in o.refusals]
    wanted = [
        (o.plugin.name, u, why_not(o.plugin.name)) for o in offers for r in o.regions for u in r.units
    ]
    more = [
        Verdict(name, unit, "", reason)
        for name, unit, reason in (*refused, *wanted)
        if (name, unit.nodes) not in judged
    ]
    return replace(placement, verdicts=(*placement.verdicts, *more))


def _give_up(plugin: Plugin, region: Region, reason: str, wish: Wish) -> None:
    if wish.strict:
        raise RegionLost(f"the plugin {plugin.name} took a region and could not compile it: {reason}")
    _log.warning("%s: native code instead: %s", region.key, reason)


def region_codes(placement: Placement, arrays: list[Array]) -> tuple[RegionCode, ...]:
    """What plugins have compiled. Their constants are added to `arrays`, each once."""
    places: dict[str, int] = {}
    out: list[RegionCode] = []
    for placed in placement.regions:
        region = placed.region
        for name, array in region.constants.items():
            if name not in places:
                places[name] = len(arrays)
                arrays.append(array)
        is_native = not any(isinstance(n.op, Outside) for n in region.graph.nodes)
        out.append(
            RegionCode(
                region.key,
                placed.plugin.name,
                placed.plugin.version,
                placed.blob,
                to_model(region.graph, weights=False).SerializeToString() if is_native else b"",
                tuple((name, places[name]) for name in region.constants),
                region.order is Order.CHANNELS_LAST,
            )
        )
    return tuple(out)

"""Who runs which part of a model: native code, or a plugin.

`place` asks the plugins (`graph.passes.partition`), decides, and lets them compile what they got. A plugin whose
compiler fails loses the region: it is native then. Everything that was refused or lost is in the report, with the
reason.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from tilewright.frontend.onnx.export import to_model
from tilewright.graph.appends import find_appends
from tilewright.graph.external import No, Order, Plugin, Region, Unit
from tilewright.graph.graph import Graph
from tilewright.graph.passes.partition import Offer, offer, unit_of
from tilewright.graph.passes.prune import NativeSeconds, prune
from tilewright.ops.outside import Outside
from tilewright.placement.measured import Assignment
from tilewright.placement.observed import Observed
from tilewright.placement.options import PluginOptions
from tilewright.plugins.isolation import RegionCompiler
from tilewright.support.arrays import Array
from tilewright.support.artifact import RegionCode
from tilewright.support.errors import UserError
from tilewright.support.policy import Policy

_log = logging.getLogger("tilewright")

# A plugin would copy all that is there, and a state would have to hand it on.
_APPENDED = "native code appends to an input in place"


class RegionLost(UserError):
    """A plugin failed to compile what it had taken, and must not fail."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitVerdict:
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
    verdicts: tuple[UnitVerdict, ...]


NOTHING_PLACED = Placement((), ())


class Placing:
    """What all placements that are tried for a model have in common: how long native code takes for its nodes with so
    many threads, what was observed when it ran, and what plugins have compiled so far.
    """

    def __init__(
        self,
        options: PluginOptions,
        threads: int,
        native: NativeSeconds,
        observed: Observed | None = None,
    ) -> None:
        self.native, self.threads = native, threads
        self._by_hints = options.policy is not Policy.MEASURED  # what can be measured need not be believed
        self._observed = observed
        self._compiler = RegionCompiler()
        self._made: dict[tuple[object, ...], bytes | No] = {}

    def pruned(self, found: Offer) -> Offer:
        return prune(found, self.threads, self.native, by_hints=self._by_hints)

    def look(self, regions: Sequence[Region]) -> None:
        """What flows into all of these will be asked for."""
        if self._observed is not None:
            self._observed.look(regions)

    def compiled(self, plugin: Plugin, region: Region) -> bytes | No:
        """What the plugin makes of a region, or why it made nothing; once for each."""
        key = (plugin.name, region.key, region.graph.nodes, region.graph.outputs)
        if key not in self._made:
            samples = () if self._observed is None else self._observed.inputs_of(region)
            self._made[key] = self._compiler.compile(plugin, region, samples)
        return self._made[key]

    def __enter__(self) -> "Placing":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._compiler.close()


def place(
    graph: Graph,
    plugins: Sequence[Plugin],
    options: PluginOptions,
    placing: Placing,
    assignment: Assignment | None = None,
) -> Placement:
    """Let plugins take what is assigned to them (None: what they want, in order), as far as it pays, and compile it."""
    placed: list[Placed] = []
    verdicts: list[UnitVerdict] = []
    appends = frozenset(find_appends(graph))
    for plugin in plugins:
        hands = dict.fromkeys(graph.nodes, plugin.name) if assignment is None else assignment
        mine = {n for n, name in hands.items() if name == plugin.name and n not in appends}
        verdicts += [
            UnitVerdict(plugin.name, unit_of(graph, n), "", _APPENDED) for n in appends if n in hands
        ]
        found = placing.pruned(offer(graph, plugin, [p.region for p in placed], mine))
        verdicts += [UnitVerdict(plugin.name, r.unit, "", r.reason) for r in found.refusals]
        placing.look(found.regions)
        for region in found.regions:
            made = placing.compiled(plugin, region)
            reason = ""
            if isinstance(made, No):
                reason = made.reason
                _give_up(plugin, region, reason, options)
            else:
                placed.append(Placed(plugin, region, made))
            verdicts += [UnitVerdict(plugin.name, u, region.key, reason) for u in region.units]
    return Placement(tuple(placed), tuple(verdicts))


def with_passed_over(
    placement: Placement, offers: Sequence[Offer], why_not: Callable[[str], str]
) -> Placement:
    """The placement with a word about what plugins would have taken, and did not get."""
    judged = {(v.plugin, v.unit.nodes) for v in placement.verdicts}
    refused = [(o.plugin.name, r.unit, r.reason) for o in offers for r in o.refusals]
    wanted = [(o.plugin.name, u, why_not(o.plugin.name)) for o in offers for r in o.regions for u in r.units]
    more = [
        UnitVerdict(name, unit, "", reason)
        for name, unit, reason in (*refused, *wanted)
        if (name, unit.nodes) not in judged
    ]
    return replace(placement, verdicts=(*placement.verdicts, *more))


def _give_up(plugin: Plugin, region: Region, reason: str, options: PluginOptions) -> None:
    if options.strict:
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

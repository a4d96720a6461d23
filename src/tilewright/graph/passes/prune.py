"""Regions that do not pay are given back, and a plugin that takes a little everywhere does not tear the model apart.

1. A few regions stay as they are: who asks for a plugin gets it, and a few borders hurt nobody.
2. Where there are more, each has to pay: what native code is estimated to take for it must be more than its border
   costs, and what the plugin takes, if that says so (`Plugin.seconds`).
3. However many are left, those with the most work stay. More than `MOST` are borne only of a plugin that says it is
   much quicker with each.

Where placements are measured, only the clock counts, and not what plugins say.

What native code does not know stays in any case, and does not count. Every region that is given back has a reason.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from tilewright.graph.border import border_seconds
from tilewright.graph.external import Plugin, Region
from tilewright.graph.graph import Node, Value
from tilewright.graph.passes.partition import Offer, Refusal
from tilewright.ops.opdef import TensorType
from tilewright.ops.outside import Outside
from tilewright.support.sizes import capacity

NativeSeconds: TypeAlias = Callable[[Iterable[Node]], float]
"""An estimate of how long native code takes for these nodes. Costly when it is asked first."""

FEW = 4
MOST = 8
_MUCH = 2.0  # times as quick


def prune(found: Offer, threads: int, native: NativeSeconds, *, by_hints: bool = True) -> Offer:
    """The offer without the regions that do not pay. Not `by_hints`: what plugins say of themselves does not count."""
    known = [r for r in found.regions if not has_custom_op(r)]
    if len(known) <= FEW:
        return found
    judged = [
        _Judged(
            r,
            stated_seconds(found.plugin, r, threads) if by_hints else None,
            native(r.graph.nodes),
            border_seconds(r),
        )
        for r in known
    ]
    reasons = {j.region: j.loss for j in judged if j.native <= j.cost}
    kept = sorted((j for j in judged if j.region not in reasons), key=lambda j: -j.native)
    for j in kept[MOST:]:
        if j.stated is None or j.native < _MUCH * j.cost:
            reasons[j.region] = (
                f"of {len(kept)} regions that it would get, the {MOST} with the most work are enough"
            )
    refusals = [Refusal(u, reason) for region, reason in reasons.items() for u in region.units]
    return replace(
        found,
        regions=tuple(r for r in found.regions if r not in reasons),
        refusals=(*found.refusals, *refusals),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    region: Region
    stated: float | None
    native: float
    border: float

    @property
    def cost(self) -> float:
        """At least, if the plugin does not say."""
        return self.border + (self.stated or 0.0)

    @property
    def loss(self) -> str:
        """Why native code has it."""
        ours, border = f"{1e6 * self.native:.3g} µs", f"{1e6 * self.border:.3g} µs"
        if self.stated is None:
            return f"its border costs {border}, and native code takes {ours} for all of it (estimates)"
        stated = f"{1e6 * self.stated:.3g} µs"
        return f"native code takes {ours}, the plugin {stated} and {border} for its border (estimates)"


def stated_seconds(plugin: Plugin, region: Region, threads: int) -> float | None:
    """How long the plugin says it takes, at the largest sizes if some are open; None if it does not say, or nothing
    that makes sense.
    """
    region = _at_most(region) if region.is_open else region
    try:
        stated = plugin.seconds(region, threads if plugin.capabilities.threads else 1)
    except Exception:  # whatever a plugin does, the compiler goes on
        return None
    return stated if stated is not None and math.isfinite(stated) and stated >= 0 else None


def _at_most(region: Region) -> Region:
    """The region with values of plain shapes: it is computed with them."""
    known: dict[Value, Value] = {}

    def value(v: Value) -> Value:
        if v not in known:
            known[v] = Value(v.name, TensorType(v.type.dtype, tuple(map(capacity, v.shape))))
        return known[v]

    def values(vs: Iterable[Value]) -> tuple[Value, ...]:
        return tuple(map(value, vs))

    old = region.graph
    nodes = {n: Node(n.op, values(n.inputs), values(n.outputs), n.name) for n in old.nodes}
    graph = replace(
        old,
        inputs=values(old.inputs),
        outputs=values(old.outputs),
        nodes=tuple(nodes.values()),
        constants={value(v): a for v, a in old.constants.items()},
        origins={nodes[n]: origin for n, origin in old.origins.items()},
    )
    units = [
        replace(
            u,
            graph=graph,
            nodes=tuple(nodes[n] for n in u.nodes),
            inputs=values(u.inputs),
            outputs=values(u.outputs),
        )
        for u in region.units
    ]
    return replace(region, graph=graph, units=tuple(units))


def has_custom_op(region: Region) -> bool:
    """Is there something in the region that native code does not know?"""
    return any(isinstance(n.op, Outside) for n in region.graph.nodes)

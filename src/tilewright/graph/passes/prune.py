"""Regions that do not pay are given back, and a plugin that takes a little everywhere does not tear the model apart.

1. A plugin that says how long a region takes (`Plugin.seconds`) loses it where native code is estimated to be quicker
   than that and the border of the region. Where placements are measured, only the clock counts.
2. Of one that does not say, a few regions stay as they are: who asks for a plugin gets it, and a few borders hurt
   nobody. Where there are more, each has to have more work than its border costs.
3. However many are left, those with the most work stay. More than `MOST` are borne only of a plugin that says it is
   much quicker with each.

What native code does not know stays in any case, and does not count. Every region that is given back has a reason.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from tilewright.graph.border import border_seconds
from tilewright.graph.external import Plugin, Region
from tilewright.graph.graph import Node
from tilewright.graph.passes.partition import Offer, Refusal
from tilewright.ops.outside import Outside

NativeSeconds: TypeAlias = Callable[[Iterable[Node]], float]
"""An estimate of how long native code takes for these nodes. Costly when it is asked first."""

FEW = 4
MOST = 8
_MUCH = 2.0  # times as quick


def prune(found: Offer, threads: int, native: NativeSeconds, *, by_hints: bool = True) -> Offer:
    """The offer without the regions that do not pay. Not `by_hints`: what plugins say of themselves does not count."""
    known = [
        _Judged(r, stated_seconds(found.plugin, r, threads) if by_hints else None)
        for r in found.regions
        if not has_stranger(r)
    ]
    if len(known) <= FEW and all(j.stated is None for j in known):
        return found
    for j in known:
        j.native, j.border = native(j.region.graph.nodes), border_seconds(j.region)
    reasons = {
        j.region: j.loss for j in known if j.native <= j.cost and (j.stated is not None or len(known) > FEW)
    }
    kept = sorted((j for j in known if j.region not in reasons), key=lambda j: -j.native)
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


@dataclass(slots=True, eq=False)
class _Judged:
    region: Region
    stated: float | None
    native: float = 0.0
    border: float = 0.0

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
    """How long the plugin says it takes; None if it does not say, or nothing that makes sense."""
    try:
        told = plugin.seconds(region, threads if plugin.capabilities.threads else 1)
    except Exception:  # whatever a plugin does, the compiler goes on
        return None
    return told if told is not None and math.isfinite(told) and told >= 0 else None


def has_stranger(region: Region) -> bool:
    """Is there something in the region that native code does not know?"""
    return any(isinstance(n.op, Outside) for n in region.graph.nodes)

"""Who runs what, decided by the policy that the user chose: the policies, and what comes of them."""

import logging
from collections.abc import Sequence

from tilewright.graph.external import Plugin
from tilewright.graph.graph import Graph
from tilewright.graph.passes.partition import offer
from tilewright.placement.measured import Lab, Tell, choose
from tilewright.placement.modelled import Modelled
from tilewright.placement.options import PluginOptions
from tilewright.placement.place import Placement, Placing, place, with_passed_over
from tilewright.placement.timer import PlacementTimer
from tilewright.support.policy import Policy

_log = logging.getLogger("tilewright")


def decide_placement(
    graph: Graph,
    plugins: Sequence[Plugin],
    options: PluginOptions,
    placing: Placing,
    bench: PlacementTimer,
    tell: Tell,
) -> Placement:
    """What plugins run of a graph. Something is timed on the `bench` only if the policy says so."""
    if options.policy is Policy.GREEDY:
        return place(graph, plugins, options, placing)
    offers = [offer(graph, p) for p in plugins]
    lab: Lab = bench
    if options.policy is Policy.MODEL:
        lab = Modelled(graph, offers, placing.threads, placing.native, bench.known)
    claims = {o.plugin.name: [u for r in o.regions for u in r.units] for o in offers}
    chosen = choose(graph, claims, lab, tell)
    times = ", ".join(f"{name} {1e3 * s:.3f} ms" for name, s in chosen.seconds.items())
    _log.info("placement: %s (%s)", chosen.name, times)
    placement = place(graph, plugins, options, placing, chosen.assignment)
    return with_passed_over(placement, offers, lab.why_not)

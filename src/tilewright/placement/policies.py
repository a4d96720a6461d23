"""Who runs what, decided by the policy that the user chose: the policies, and what comes of them."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from tilewright.frontend.onnx.open_import import NotFollowed
from tilewright.graph.external import Plugin
from tilewright.graph.graph import Graph
from tilewright.graph.passes.partition import offer
from tilewright.placement.measured import Assignment, Lab, Tell, choose
from tilewright.placement.modelled import Modelled
from tilewright.placement.options import PluginOptions
from tilewright.placement.place import Placement, Placing, place, with_passed_over
from tilewright.placement.timer import PlacementTimer
from tilewright.plugins.registry import find_plugins
from tilewright.support.policy import Policy

_log = logging.getLogger("tilewright")


def for_ranges(options: PluginOptions) -> PluginOptions:
    """What is asked of plugins in a program for ranges of dimensions: those that do not compile for such get nothing.
    NotFollowed if nobody has asked for ranges, and one of them compiles for each shape.
    """
    rest = [p for p in find_plugins(options.plugins) if not p.capabilities.open_sizes]
    each = [p.name for p in rest if p.capabilities.dynamic_shapes]
    if options.is_open and each:
        raise NotFollowed(
            f"{', '.join(each)} compiles parts of a model for given shapes, not for ranges of dimensions"
        )
    for p in rest:
        which = "ranges of dimensions" if p.name in each else "shapes that are left open"
        _log.warning("%s gets nothing: it does not compile for %s", p.name, which)
    able = [name for name in options.plugins if name not in {p.name for p in rest}]
    return replace(options, plugins=tuple(able), is_open=False)


def decide_placement(
    graph: Graph,
    plugins: Sequence[Plugin],
    options: PluginOptions,
    placing: Placing,
    bench: PlacementTimer,
    tell: Tell,
    at_most: tuple[Graph, Placing] | None = None,
) -> Placement:
    """What plugins run of a graph. Something is timed on the `bench` only if the policy says so. A graph with open
    sizes is decided about as it is `at_most`: the graph of the largest sizes, with what it is placed with.
    """
    if options.policy is Policy.GREEDY:
        return place(graph, plugins, options, placing)
    asked, asking = (graph, placing) if at_most is None else at_most
    offers = [offer(asked, p) for p in plugins]
    lab: Lab = bench
    if options.policy is Policy.MODEL:
        lab = Modelled(asked, offers, asking.threads, asking.native, bench.known)
    claims = {o.plugin.name: [u for r in o.regions for u in r.units] for o in offers}
    chosen = choose(asked, claims, lab, tell)
    times = ", ".join(f"{name} {1e3 * s:.3f} ms" for name, s in chosen.seconds.items())
    _log.info("placement: %s (%s)", chosen.name, times)
    if asked is graph:
        placement = place(graph, plugins, options, placing, chosen.assignment)
    else:
        assignment = None if chosen.assignment is None else _by_name(chosen.assignment, graph)
        placement = place(graph, plugins, options, placing, assignment)
        offers = [offer(graph, p) for p in plugins]
    return with_passed_over(placement, offers, lab.why_not)


def _by_name(assignment: Assignment, graph: Graph) -> Assignment:
    """The assignment for a graph with nodes of the same results."""
    hands = {n.outputs[0].name: hand for n, hand in assignment.items()}
    return {n: hands[n.outputs[0].name] for n in graph.nodes if n.outputs[0].name in hands}

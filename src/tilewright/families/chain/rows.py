"""Rows of what is between contractions, a block of them at a time: one sweep after the other, by flow graphs."""

from tilewright.families.chain.cost import quickest_rows
from tilewright.families.stream.elements import schedule_elements
from tilewright.gir.flow_graph import FlowGraph
from tilewright.gir.from_nests import nested_graph_of
from tilewright.gir.from_scan import reads_own
from tilewright.gir.plan import find_lanes
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block, loops_above
from tilewright.schedule.nests import find_run, shared_buffers
from tilewright.schedule.steps.loop_kind import Vectorize
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.stream_rows import StreamRows
from tilewright.support.errors import ScheduleError
from tilewright.target.machine import SHIPPED
from tilewright.target.target import Target
from tilewright.tir.stmt import Block


def schedule_rows(s: Draft, run: list[str], target: Target) -> None:
    """Schedule blocks that have a nest each, side by side: as few flow graphs as they are, and elements."""
    while run:
        count = next((n for n in range(len(run), 0, -1) if _stream(s, run[:n], target)), 0)
        if not count:
            _schedule_alone(s, run[0], target)
        run = run[max(count, 1) :]


def _schedule_alone(s: Draft, name: str, target: Target) -> None:
    """Schedule a block that is no flow graph with a fold."""
    block = find_block(s.func, name)
    if reads_own(block.store):
        _vectorize(s, block, target.lanes(4))
    elif not block.is_reduction:
        schedule_elements(s, name, target, is_shared=False)


def _vectorize(s: Draft, block: Block, lanes: int) -> None:
    """Put rows into lanes, of a block that changes one value of each."""
    inner = loops_above(s.func, block)[-1]
    if inner.extent % lanes == 0:
        s.attempt(Vectorize(s.apply(Split(inner.var.name, (None, lanes))).names[1]))


def _stream(s: Draft, run: list[str], target: Target) -> bool:
    """Run the blocks as one flow graph, if they are one."""
    try:
        found = find_run(s.func, run)
        graph = nested_graph_of(found.nests, shared_buffers(s.func, found), found.around).graph
    except ScheduleError:
        return False
    lanes = find_lanes(graph)
    return bool(lanes) and s.attempt(_quickest(run, graph, target))


def _quickest(run: list[str], graph: FlowGraph, target: Target) -> StreamRows:
    cost, plan = quickest_rows(graph, target.lanes(4), SHIPPED)
    kept = tuple(n.name for n in cost.kept(plan.keep))
    return StreamRows(tuple(run), plan.width, graph.size(graph.rows), kept)

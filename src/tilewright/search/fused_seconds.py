"""What a memory-bound Func takes if it is one kernel, in closed form: what fusion is decided by."""

from tilewright.families.elementwise.space import elementwise_space
from tilewright.families.reduce.space import reduce_space
from tilewright.families.stream.match import try_flow_graph
from tilewright.families.stream.space import stream_space
from tilewright.gir.flow_graph import FlowGraph
from tilewright.gir.plan import find_lanes, memory_accesses, strides
from tilewright.search.default import make_request
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import blocks

# Times as long as estimated: flow graphs that go through memory in several directions. GELU, a transpose and the layer
# norm of 512 x 3199 as one kernel took 0.86 of the speed of two, where 1.04 was estimated; powers of 1024 x 1024 and
# their sums over the first axis 0.92 instead of 1.20.
_ACROSS = 1.25


def try_fused_seconds(func: Func, target: Target, constants: frozenset[str]) -> float | None:
    """Seconds on one core; None if its blocks do not become one kernel, or no family of ours knows them. `constants`
    names the params whose values are known at compile time.
    """
    try:
        request = make_request(func, target, constants)
        start = request.plain
        if start is None:
            return None
        found = [stream_space(request)]
        if len(list(blocks(start.func.body))) == 1:  # nothing is left between kernels
            found += [reduce_space(request), elementwise_space(request)]
        costs = [space.ranked()[1] for space in found if space is not None]
    except ScheduleError:
        return None
    least = min((float(c[0]) for c in costs if len(c)), default=None)
    graph = try_flow_graph(start.func)
    return least if least is None or graph is None or _is_in_order(graph) else _ACROSS * least


def _is_in_order(graph: FlowGraph) -> bool:
    """Do all accesses go through memory in the order of the lanes?"""
    lane = find_lanes(graph)[-1]
    steps = [strides(graph, b, indices) for b, indices, _ in memory_accesses(graph)]
    return lane not in graph.rows and all(s is not None and s.get(lane, 0) in (0, 1) for s in steps)

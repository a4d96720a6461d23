"""What a memory-bound Func takes if it is one kernel, in closed form: what fusion is decided by."""

from math import gcd

from tilewright.cost.caches import SET_BYTES
from tilewright.families.stream.map_space import map_space
from tilewright.families.stream.match import try_flow_graph
from tilewright.families.stream.space import stream_space
from tilewright.gir.flow_graph import FlowGraph
from tilewright.gir.plan import find_lanes, memory_accesses, stride_along
from tilewright.ir.expr import Var
from tilewright.search.default import Refine, as_stated, make_request
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import blocks

# Times as long as estimated: flow graphs that go through memory in several directions. Measured: GELU, a transpose and
# the layer norm of 512 x 3199 as one kernel took 0.86 of the speed of two, where 1.04 was estimated; powers of
# 1024 x 1024 and their sums over the first axis 0.92 instead of 1.20.
_ACROSS = 1.25
# Cycles of an element whose neighbours in a vector lie elsewhere, beside what is estimated. By layer norms, softmax and
# sums of transposed 96 x 3136, 768 x 49, 512 x 500 and squares of 64 to 1024 elements.
_SCATTERED = 2.0
_EVICTED = 10.0  # likewise, if its line leaves the first-level cache before the next element
_LINES = 64  # that are written in turns: of vectors as wide as they are taken
_WAYS = 8  # lines of a set of a first-level cache


def try_fused_seconds(
    func: Func,
    target: Target,
    constants: frozenset[str],
    *,
    several: bool = False,
    refine: Refine = as_stated,
) -> float | None:
    """Seconds on one core; None if its blocks do not become one kernel, or no family of ours knows them. `constants`
    names the params whose values are known at compile time. `several`: they may become several kernels. `refine` has
    seconds that are nearer to the truth than closed forms.
    """
    try:
        request = make_request(func, target, constants)
        start = request.plain
        if start is None:
            return None
        graph = try_flow_graph(start.func)
        is_one = len(list(blocks(start.func.body))) == 1  # nothing is left between kernels
        found = [stream_space(request)] if is_one or graph is not None else []
        if is_one or several:
            found.append(map_space(request))
        known = [refine(space, func, target, constants) for space in found if space is not None]
        costs = [space.ranked()[1] for space in known]
    except ScheduleError:
        return None
    least = min((float(c[0]) for c in costs if len(c)), default=None)
    if least is None or graph is None:
        return least
    lane = find_lanes(graph)[-1]
    scattered = _scattered_cycles(graph, lane)
    is_in_order = lane not in graph.rows and not scattered
    return least if is_in_order else _ACROSS * least + scattered / target.machine.hertz


def _scattered_cycles(graph: FlowGraph, lane: Var) -> float:
    """Of all accesses that do not go through memory in the order of the lanes."""
    total = 0.0
    for buffer, indices, axes in memory_accesses(graph):
        step = stride_along(graph, buffer, indices, lane)
        if step is None:
            total += graph.size(axes) * _SCATTERED
        elif step not in (0, 1):
            sets = SET_BYTES // gcd(step * buffer.dtype.bytes, SET_BYTES)
            total += graph.size(axes) * (_SCATTERED if sets * _WAYS >= _LINES else _EVICTED)
    return total

"""Plans: how a graph runs. Rows are divided among workers; lanes are elements that lie side by side.

A worker takes a part of the rows and goes over the other axes of a row in *sweeps*: a node that needs a fold of the
whole row is computed in the sweep after it. Where lanes are elements of a row, each sweep has vectors of partial
results, which are combined at its end; where lanes are rows (what lies side by side is not reduced), as many rows
run at a time. A scan is a fold whose results so far are read: it runs in the order of its axis, and is done when its
sweep is. With a `depth`, workers meet after as many elements of all rows: they divide memory that lies side by side,
and go through it in order all the same.

What a sweep computes and a later one needs is computed again, unless it is `kept` in scratch, which holds a row.
With a `chunk`, sweeps of folds go over as many elements at a time, all of them, before the next: then a row comes
from memory once for all of them, and results so far are repaired when what they depend on changes (`gir/repair.py`).
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.printer import print_plan
from tilewright.ir.expr import Buffer, Indices, Var, free_vars
from tilewright.ir.simplify import Interval, Simplifier


@dataclass(frozen=True, slots=True)
class Plan:
    lanes: tuple[Var, ...]  # axes that are fused into vectors: some of the inner ones, or one of the rows
    width: int  # elements of a vector loop
    grain: int  # rows, or vectors of rows, in a part
    kept: frozenset[str] = frozenset()  # nodes whose values stay in scratch from one sweep to the next
    chunk: int = 0  # elements of a row that all folds take up before the next; 0: all
    split: int = 1  # parts of a row that are folded apart
    panel: int = 1  # vectors of rows taken together, if lanes are rows: so more of memory is read in order
    in_place: bool = False  # are kept values where the result will be (`result_place`), not in scratch?
    ahead: int = 0  # the sweep in which what the next row reads is asked for; 0: none
    streams: bool = False  # do results that no later sweep reads go to memory past the caches?
    depth: int = 0  # elements that all rows take up before the next, if lanes are rows and scan; 0: all

    def __str__(self) -> str:
        return print_plan(self)


def result_place(graph: FlowGraph) -> tuple[FlowNode, FlowNode] | None:
    """A value that may wait where a result is stored at the same element in the last sweep, and that result: the only
    one, so that nothing overwrites what another is still to be computed from. None with an exclusive scan, which takes
    an element up after the result is stored there.
    """
    if any(n.is_scan and n.exclusive for n in graph.nodes):
        return None
    maps = [n for n in graph.outputs if not n.is_fold and not graph.is_scalar(n)]
    if len(maps) != 1 or graph.sweeps[maps[0]] < max(graph.sweeps.values()):
        return None
    (result,) = maps
    found = [
        n for n in graph.read_later
        if n.out.dtype is result.out.dtype and set(n.axes) == set(result.axes)
        and graph.sweeps[n] < graph.sweeps[result]
    ]  # fmt: skip
    return (found[-1], result) if found else None


def strides(graph: FlowGraph, buffer: Buffer, indices: Indices) -> dict[Var, int] | None:
    """How far the address of an element moves with each axis; None if that is not a number."""
    found: dict[Var, int] = {}
    for atom, k in _simplifier_of(graph).weighted(indices, buffer.strides).terms:
        if free_vars(atom) <= graph.around.keys():
            continue
        if not isinstance(atom, Var):
            return None
        found[atom] = k
    return found


def stride_along(graph: FlowGraph, buffer: Buffer, indices: Indices, axis: Var) -> int | None:
    """How far it moves with one axis, whatever chooses the place along others, as data does for rows of a table."""
    step = 0
    for atom, k in _simplifier_of(graph).weighted(indices, buffer.strides).terms:
        if atom is axis:
            step = k
        elif axis in free_vars(atom):
            return None
    return step


def _simplifier_of(graph: FlowGraph) -> Simplifier:
    return _simplifier((*graph.extents.items(), *graph.around.items()))


@lru_cache(maxsize=64)
def _simplifier(extents: tuple[tuple[Var, int], ...]) -> Simplifier:
    return Simplifier({a: Interval(0, e - 1) for a, e in extents})


def memory_accesses(graph: FlowGraph) -> list[tuple[Buffer, Indices, tuple[Var, ...]]]:
    """What is read and written in memory, and over which axes."""
    found: list[tuple[Buffer, Indices, tuple[Var, ...]]] = []
    for n in graph.nodes:
        axes = (*n.axes, *n.over)
        found += [(ld.buffer, ld.indices, axes) for ld in graph.reads(n)]
        if n in graph.outputs:
            found.append((n.out, n.indices, n.axes))
    return found


@lru_cache(maxsize=64)
def find_lanes(graph: FlowGraph) -> tuple[Var, ...]:
    """The axes along which most of memory lies side by side: several inner ones that follow each other, or one."""
    weights: dict[Var, float] = {}
    for buffer, indices, _ in memory_accesses(graph):
        # What does not vary with an axis is read once for all of it, such as the number of a row.
        used = [a for a in graph.extents if any(a in free_vars(i) for i in indices)]
        for a in used:
            if graph.extents[a] > 1 and stride_along(graph, buffer, indices, a) == 1:
                weights[a] = weights.get(a, 0.0) + graph.size(used) * buffer.dtype.bytes
    if not weights:
        return ()
    last = max(weights, key=lambda a: weights[a])
    return _fused(graph, last) if last in graph.inner else (last,)


def sweeping(graph: FlowGraph) -> FlowGraph:
    """A graph without folds, with the axes as inner ones along which memory lies side by side."""
    return replace(graph, swept=find_lanes(replace(graph, swept=graph.nodes[-1].axes)))


def _fused(graph: FlowGraph, last: Var) -> tuple[Var, ...]:
    """The inner axes that lie one after the other in all of memory that has any of them, the last included."""
    taken = [last]
    others = [a for a in graph.inner if a is not last]
    while True:
        extent = graph.size(taken)
        following = next(
            (a for a in others if all(_follows(graph, a, taken, extent, x) for x in memory_accesses(graph))),
            None,
        )
        if following is None:
            return tuple(reversed(taken))
        taken.append(following)
        others.remove(following)


def _follows(
    graph: FlowGraph,
    axis: Var,
    taken: list[Var],
    extent: int,
    access: tuple[Buffer, Indices, tuple[Var, ...]],
) -> bool:
    buffer, indices, axes = access
    if axis not in axes:
        return not set(taken) & set(axes)
    steps = strides(graph, buffer, indices)
    if steps is None:
        return False
    if axis not in steps and not set(taken) & set(steps):
        return True
    return steps.get(axis) == extent and steps.get(taken[0]) == 1

"""Features of schedules in closed form: of a Func and the points of a space, without building anything.

A row has, in the order of `FEATURES`,

    what the kernel is       arithmetic, bytes by role, extents of the block that works most
    where it runs            lanes, caches, rates, threads
    what the family is       one column each
    the knobs                by name: a name has one meaning in all families
    what the cost says       the closed form, over the cheapest point of the space, and the terms that it is made of

Counts, bytes and seconds are base-2 logarithms; what a family does not have is `ABSENT`, which lies outside of all
values, so that trees can tell it.
"""

import math
from collections.abc import Mapping

import numpy as np

from tilewright.cost.work import domain, instructions
from tilewright.families.space import TERMS, Costs, Points, Space
from tilewright.support.arrays import FloatArray
from tilewright.target.machine import Machine
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, IterKind, Store, blocks, stmt_exprs, walk_stmts

ABSENT = -64.0  # below any logarithm of a count, a number of bytes or seconds; given

FAMILY_NAMES = (
    *("apart", "bands", "chain", "gemm", "ordered", "recurrent"),
    *("split_k", "stream", "tensor", "window", "winograd"),
)
KNOB_NAMES = (
    *("ahead", "assignment", "block", "channels", "chunk", "chunks", "column_part", "columns_outside"),
    *("depth", "expand_outside", "expand_rows", "expand_vectors", "first_columns_outside", "first_pack"),
    *("first_rows", "first_vectors", "fuse_cols", "fuse_rows", "grain", "group_0", "group_1", "group_2"),
    *("group_3", "halve", "inside", "intrinsic", "keep", "keys", "next_panel", "order", "pack_a"),
    *("pack_b", "panel", "parts", "prefetch", "project_rows", "project_vectors", "row_part", "rows"),
    *("second_columns_outside", "second_pack", "second_rows", "second_vectors", "separate", "split"),
    *("streams", "swap", "tile", "unroll", "vectors", "width", "window_rows", "window_unroll"),
    *("window_vectors",),
)
# Which of several things is taken: their numbers have no order, and mean something else for another kernel.
_NUMBERS = frozenset({"assignment", "group_0", "group_1", "group_2", "group_3", "intrinsic"})
_ORDERED_KNOBS = tuple(k for k in KNOB_NAMES if k not in _NUMBERS)
_EXTENTS = 6  # of iterators of either kind, the innermost last; bound
_KERNEL = (
    *("work", "arithmetic", "input_bytes", "constant_bytes", "output_bytes", "local_bytes"),
    *("blocks", "reductions", "element_bytes"),
    *(f"space_{n}" for n in range(_EXTENTS)),
    *("space_product", "space_count"),
    *(f"reduce_{n}" for n in range(_EXTENTS)),
    *("reduce_product", "reduce_count"),
)
_PLACE = ("lanes", "l1", "l2", "l3", "hertz", "fma", "memory_rate", "threads")
_COST = ("cost", "over_cheapest")

FEATURES: tuple[str, ...] = (
    *_KERNEL,
    *_PLACE,
    *(f"is_{f}" for f in FAMILY_NAMES),
    *(f"knob_{k}" for k in _ORDERED_KNOBS),
    *_COST,
    *(f"term_{t}" for t in TERMS),
)
_AT: Mapping[str, int] = {name: n for n, name in enumerate(FEATURES)}


def kernel_features(func: Func, target: Target, constants: frozenset[str]) -> dict[str, float]:
    """What is the same for all schedules of a Func: `target` is for the threads that it runs on."""
    every = list(blocks(func.body))
    main = max(every, key=_work, default=None)
    given = [p for p in func.params if p not in func.outputs]
    sizes = {
        "work": sum(map(domain, every)),
        "arithmetic": sum(map(_work, every)),
        "input_bytes": sum(p.bytes for p in given if p.name not in constants),
        "constant_bytes": sum(p.bytes for p in given if p.name in constants),
        "output_bytes": sum(p.bytes for p in func.outputs),
        "local_bytes": sum(b.bytes for b in func.locals),
    }
    found = {name: _log(value) for name, value in sizes.items()}
    found["blocks"] = float(len(every))
    found["reductions"] = float(sum(b.is_reduction for b in every))
    found["element_bytes"] = float(max((p.dtype.bytes for p in func.outputs), default=0))
    for kind, name in ((IterKind.SPATIAL, "space"), (IterKind.REDUCE, "reduce")):
        extents = [i.extent for i in main.iters if i.kind is kind and i.extent > 1] if main else []
        for n, extent in enumerate(reversed(extents[-_EXTENTS:])):
            found[f"{name}_{n}"] = _log(extent)
        found[f"{name}_product"], found[f"{name}_count"] = _log(math.prod(extents)), float(len(extents))
    return found | _place(target)


def _place(target: Target) -> dict[str, float]:
    m: Machine = target.machine
    return {
        "lanes": float(target.lanes(4)),
        "l1": _log(m.l1_bytes),
        "l2": _log(m.l2_bytes),
        "l3": _log(m.l3_bytes),
        "hertz": m.hertz / 1e9,
        "fma": m.fma_per_cycle,
        "memory_rate": _log(m.memory_rate),
        "threads": float(m.threads),
    }


def _work(block: Block) -> float:
    """Instructions of all iterations, lane by lane."""
    stored = [n for n in walk_stmts(block.body) if isinstance(n, Store)]
    each = sum(instructions(e) for s in stored for e in stmt_exprs(s))
    return domain(block) * max(each, 1.0)


def _log(value: float) -> float:
    return math.log2(value) if value > 0 else ABSENT


class SpaceFeatures:
    """Features of the points of one space, whose kernel has these of its own."""

    def __init__(self, kernel: Mapping[str, float], space: Space, cheapest: float | None = None) -> None:
        """`cheapest` is the least cost of all points of the space, if it is known."""
        self._space = space
        self._cheapest = float(np.min(space.ranked()[1], initial=math.inf)) if cheapest is None else cheapest
        self._same = np.full(len(FEATURES), ABSENT)  # of all points
        for name, value in kernel.items():
            self._same[_AT[name]] = value
        for family in FAMILY_NAMES:
            self._same[_AT[f"is_{family}"]] = float(space.family == family)

    def rows(self, points: Points, costs: Costs) -> FloatArray:
        """A row for each point; `costs` are theirs by the closed form."""
        out = np.tile(self._same, (len(points), 1))
        for n, knob in enumerate(self._space.knobs):
            if knob.name in _ORDERED_KNOBS:  # others are numbers, or of families of other packages
                out[:, _AT[f"knob_{knob.name}"]] = np.log2(2.0 + np.maximum(points[:, n], -1))
        with np.errstate(divide="ignore", invalid="ignore"):
            out[:, _AT["cost"]] = _logs(costs)
            out[:, _AT["over_cheapest"]] = _logs(costs / self._cheapest)
            for name, seconds in self._space.terms(points).items():
                out[:, _AT[f"term_{name}"]] = np.where(seconds > 0, _logs(seconds / costs), ABSENT)
        return out


def _logs(values: Costs) -> FloatArray:
    return np.nan_to_num(np.log2(values), nan=ABSENT, posinf=-ABSENT, neginf=ABSENT)

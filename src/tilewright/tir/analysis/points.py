"""Index expressions taken point by point: the exact answer, where a domain is small.

Analyses of index expressions recognise patterns; what they do not recognise can be counted. Each function takes loops
with their extents, evaluates expressions on every combination at once, and gives up above `MAX_POINTS`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.evaluate import Evaluated, evaluate
from tilewright.ir.expr import Expr, Load, Var, free_vars, loads
from tilewright.ir.traits import SIZES, traits

MAX_POINTS = 1 << 16  # a millisecond or two

PointValues: TypeAlias = Mapping[Var, Evaluated]
Integers: TypeAlias = NDArray[np.int64]


def try_grid(ranging: Mapping[Var, int], used: Sequence[Expr]) -> dict[Var, Evaluated] | None:
    """Every combination of the loops' values, in the order of a nest of them; None if there are too many, or if `used`
    mentions other variables, memory, or sizes of open dimensions.
    """
    mentioned = set[Var]().union(*(free_vars(e) for e in used))
    if not mentioned <= ranging.keys() or any(loads(e) or traits(e) & SIZES for e in used):
        return None
    if math.prod(ranging.values()) > MAX_POINTS:
        return None
    if not ranging:
        return {}
    axes = np.unravel_index(np.arange(math.prod(ranging.values())), tuple(ranging.values()))
    return dict(zip(ranging, axes, strict=True))


def values(e: Expr, points: PointValues, size: int) -> Integers:
    """An integer expression on all points."""
    return np.broadcast_to(np.asarray(evaluate(e, points, _no_loads), np.int64), (size,))


def where_all_hold(conditions: Sequence[Expr], points: PointValues, size: int) -> NDArray[np.bool_]:
    """Where all the conditions hold."""
    here = np.ones(size, np.bool_)
    for c in conditions:
        here &= np.asarray(evaluate(c, points, _no_loads), np.bool_)
    return here


def _no_loads(load: Load, indices: tuple[Evaluated, ...]) -> Evaluated:
    raise AssertionError(f"{load.buffer.name} is read by a binding or a predicate")


class Counted(NamedTuple):
    """How often the points of a domain are run: an example of each thing that is wrong, in words."""

    outside: str | None
    repeated: str | None
    missing: str | None

    @property
    def reason(self) -> str | None:
        return self.outside or self.repeated or self.missing


def count_instances(
    bindings: Sequence[Expr], domain: Sequence[int], conditions: Sequence[Expr], ranging: Mapping[Var, int]
) -> Counted | None:
    """How `bindings` run over 0 … extent-1 of each extent of `domain`; None if that is too much to count."""
    points = try_grid(ranging, (*bindings, *conditions))
    total = math.prod(domain)
    if points is None or total > MAX_POINTS:
        return None
    size = math.prod(ranging.values())
    here = where_all_hold(conditions, points, size)
    at = [values(v, points, size)[here] for v in bindings]
    inside = np.ones(int(here.sum()), np.bool_)
    for v, extent in zip(at, domain, strict=True):
        inside &= (v >= 0) & (v < extent)
    outside = None
    if not inside.all():
        first = int(np.argmin(inside))
        outside = f"instance {_point([v[first] for v in at])} is outside of the domain {_point(domain)}"
    flat = np.zeros(int(inside.sum()), np.int64)
    for v, extent in zip(at, domain, strict=True):
        flat = flat * extent + v[inside]
    counts = np.bincount(flat, minlength=total)
    missing, repeated = None, None
    if total and counts.min() == 0:
        missing = (
            f"instance {_place(int(np.argmin(counts)), domain)} of the domain {_point(domain)} is never run"
        )
    if total and counts.max() > 1:
        repeated = f"instance {_place(int(np.argmax(counts)), domain)} is run {counts.max()} times"
    return Counted(outside, repeated, missing)


def _place(flat: int, domain: Sequence[int]) -> str:
    return _point(np.unravel_index(flat, tuple(domain)) if domain else ())


def _point(where: Sequence[object]) -> str:
    return f"({', '.join(str(v) for v in where)})"

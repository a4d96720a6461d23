"""The rule for tensor intrinsics: which intrinsic computes a reduction, and how its iterators are mapped to it.

A point is a mapping: the intrinsic, the assignment of operands, and the group of each role, all by number. The numbers
count what `intrinsics_of` and `mappings` give, in their order, which does not depend on costs.
"""

from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.parallel import ranked_seconds, ranked_terms
from tilewright.cost.stream import pass_seconds, pass_term
from tilewright.cost.terms import Amounts, TermName, Terms, added, gathered, spread_terms
from tilewright.families.elementwise.cost import around_seconds, block_bytes
from tilewright.families.family import ScheduleRequest
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.families.tensor.cost import BEST_TILE, RoleCycles, floor_seconds, mapping_terms
from tilewright.families.tensor.mapping import MappingChoice, Mappings, mappings
from tilewright.families.tensor.materialize import apply_mapping
from tilewright.ir.expr import free_vars
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.support.arrays import IntArray
from tilewright.support.errors import ScheduleError
from tilewright.target.intrinsic import Intrinsic
from tilewright.target.intrinsics import intrinsics_of
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, blocks

_LEAST_GAIN = 1.02  # of what an intrinsic takes at least, for another family to take longer; bound
_KEPT = 64  # mappings of one assignment of operands to one intrinsic that are ranked against others; bound


class TensorSpace(Space):
    family = "tensor"

    def __init__(
        self,
        start: Draft,
        block: Block,
        found: dict[int, Mappings],
        target: Target,
        constants: frozenset[str],
    ) -> None:
        self._start, self._block, self._target = start, block.name, target
        self._constants = constants
        self._names = {b.name for b in blocks(start.func.body)}
        self._choices: dict[tuple[int, int], tuple[Intrinsic, MappingChoice]] = {
            (n, a): (m.intrinsic, choice) for n, m in found.items() for a, choice in enumerate(m.choices)
        }
        self._cycles = {
            key: mapping_terms(choice, intrinsic, target, constants)
            for key, (intrinsic, choice) in self._choices.items()
        }
        self._seconds = {key: _seconds(self._choices[key][1], cycles) for key, cycles in self._cycles.items()}
        roles = max(s.ndim for s in self._seconds.values())
        rows: list[tuple[int, ...]] = []
        for key, seconds in self._seconds.items():
            best = np.sort(np.argsort(seconds, axis=None, kind="stable")[:_KEPT])
            for at in zip(*np.unravel_index(best, seconds.shape), strict=True):
                if np.isfinite(seconds[at]):
                    rows.append((*key, *(int(i) for i in at), *[0] * (roles - seconds.ndim)))
        self._points = np.array(rows, np.int64).reshape(-1, 2 + roles)
        names = ("intrinsic", "assignment", *(f"group_{r}" for r in range(roles)))
        self.knobs = tuple(
            Knob(name, tuple(int(v) for v in np.unique(self._points[:, n]))) for n, name in enumerate(names)
        )

    def points(self) -> Points:
        return self._points

    def has_point(self, point: NDArray[np.int64]) -> bool:
        return bool(np.isfinite(self._mapping_seconds(point[None, :]))[0])

    def cost(self, points: Points) -> Costs:
        alone = self._mapping_seconds(points) + self._beside
        return ranked_seconds(alone, self._tiles, self._target.machine)

    def terms(self, points: Points) -> Terms:
        m, found = self._target.machine, list[tuple[IntArray, Amounts]]()
        for key, cycles in self._cycles.items():
            here, at = self._places(key, points)
            if here.size:
                found.append((here, cycles.at(at)))
        alone = added(gathered(len(points), found), self._around, {"team": m.meeting_seconds})
        return spread_terms(ranked_terms(alone, self._tiles, m), len(points))

    @cached_property
    def _beside(self) -> float:
        """What does not depend on the mapping."""
        beside = self._target.machine.meeting_seconds
        for seconds in self._around.values():
            beside += seconds
        return beside

    @cached_property
    def _around(self) -> dict[TermName, float]:
        """The other blocks, and what streams while nothing else is done."""
        func, m = self._start.func, self._target.machine
        around = around_seconds(func, self._block, self._target, self._constants)
        least = min(float(s.min(initial=np.inf)) for s in self._seconds.values())
        nbytes = block_bytes([find_block(func, self._block)])
        return {"beside": around, pass_term(nbytes, m): max(pass_seconds(nbytes, m) - around - least, 0.0)}

    @property
    def _tiles(self) -> float:
        """Register tiles of the result, about: a team has no more parts to share."""
        made = find_block(self._start.func, self._block).store.buffer
        return max(made.size / (prod(BEST_TILE) * self._target.lanes(made.dtype.bytes)), 1.0)

    def _mapping_seconds(self, points: Points) -> Costs:
        out = np.full(len(points), np.inf)
        for key, seconds in self._seconds.items():
            here, at = self._places(key, points)
            out[here] = seconds[at]
        return out

    def _places(self, key: tuple[int, int], points: Points) -> tuple[IntArray, tuple[IntArray, ...]]:
        """Which points there are of an assignment of operands to an intrinsic, and the groups of each role."""
        shape = self._seconds[key].shape
        at = points[:, 2 : 2 + len(shape)]
        is_here = (points[:, :2] == key).all(axis=1) & (at >= 0).all(axis=1) & (at < shape).all(axis=1)
        here = np.flatnonzero(is_here)
        return here, tuple(at[here].T)

    def build(self, decisions: KnobValues) -> Draft:
        key = decisions["intrinsic"], decisions["assignment"]
        if key not in self._choices:
            raise ScheduleError(f"intrinsic number {key[0]} has no assignment {key[1]} of operands here")
        intrinsic, choice = self._choices[key]
        at = [decisions[f"group_{r}"] for r in range(len(choice.groups))]
        if any(not 0 <= n < len(groups) for n, groups in zip(at, choice.groups, strict=True)):
            raise ScheduleError(f"{intrinsic.name} has no groups {at} here")
        s = self._start.branch()
        apply_mapping(s, self._block, choice.mapping(at), intrinsic)
        schedule_rest(s, self._names, self._target)
        return s


def tensor_space(request: ScheduleRequest) -> TensorSpace | None:
    """The space of a Func with one reduction, if an intrinsic of the target can compute it."""
    start = request.plain
    reductions = [] if start is None else [b for b in blocks(start.func.body) if b.is_reduction]
    if start is None or len(reductions) != 1:
        return None
    (block,) = reductions
    # Most intrinsics are multiply-adds of vectors, and mapping them takes long.
    ways = {
        n: mappings(block, i)
        for n, i in enumerate(intrinsics_of(request.target))
        if _LEAST_GAIN * floor_seconds(block, i, request.target) < request.limit
    }
    found = {n: m for n, m in ways.items() if isinstance(m, Mappings)}
    space = TensorSpace(start, block, found, request.target, request.constants) if found else None
    return None if space is None or not len(space.points()) else space


def _seconds(choice: MappingChoice, terms: RoleCycles) -> NDArray[np.float64]:
    """Infinite where an operand is copied of which each element is used once, as the image of a depthwise convolution:
    to bring it in order takes as long as to compute.
    """
    seconds = terms.seconds
    every = {it.var for it in choice.block.iters if it.extent > 1}
    for e, copy in zip(choice.match.operands[1:], terms.copies[1:], strict=True):
        if every <= free_vars(e):
            seconds = np.where(copy > 0, np.inf, seconds)
    return seconds

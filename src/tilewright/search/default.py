"""The schedule of any Func, without measuring anything: the cheapest point of all families that fit it.

Families assume more of a Func than that it is correct, and a step refuses what it cannot prove. So there is a ladder:
where one meets a refusal, the next starts over from the Func as it was given. The last takes no step at all.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np

from tilewright.families.families import all_families
from tilewright.families.family import ScheduleRequest
from tilewright.families.ordered.recipe import is_ordered, schedule_each
from tilewright.families.prepare import prepared
from tilewright.families.space import KnobValues, Space
from tilewright.families.stream.row_space import schedule_fold
from tilewright.schedule.draft import Draft
from tilewright.schedule.schedule import Schedule
from tilewright.search.grain import build_with_grain, without_grain
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.func import Func, single
from tilewright.tir.stmt import blocks

_log = logging.getLogger(__name__)


class ChosenSchedule(NamedTuple):
    """How a Func is run: a family of schedules, the values of its knobs, and the schedule that these make."""

    family: str
    decisions: KnobValues
    draft: Draft


Spaces: TypeAlias = Callable[[Func, Target, frozenset[str]], Sequence[Space]]
# A space of a Func with better costs than its closed form, such as those of a learned model; or as it is.
Refine: TypeAlias = Callable[[Space, Func, Target, frozenset[str]], Space]
Recipe: TypeAlias = Callable[[Func, Target, frozenset[str], Refine], ChosenSchedule]

_TRIED = 4  # points of a space that may be built, the cheapest of all families first; bound


def make_request(func: Func, target: Target, constants: frozenset[str] = frozenset()) -> ScheduleRequest:
    """What families are asked; parts of `func` are scheduled like any other Func."""
    return ScheduleRequest(func, target, constants, lambda part: schedule_func(part, target, constants))


def spaces(func: Func, target: Target, constants: frozenset[str] = frozenset()) -> tuple[Space, ...]:
    """All design spaces of `func`; `constants` names the params whose values are known at compile time."""
    return tuple(_spaces(make_request(func, target, constants)))


def _spaces(request: ScheduleRequest) -> Iterator[Space]:
    for family in all_families():
        found = family(request)
        if found is not None:
            yield found


def find_space(
    func: Func, target: Target, constants: frozenset[str], family: str, offered: Spaces = spaces
) -> Space | None:
    """The space of this family; None if it does not fit. Of our own families, those after it are not asked: some take
    long.
    """
    known = (
        _spaces(make_request(func, target, constants))
        if offered is spaces
        else offered(func, target, constants)
    )
    return next((s for s in known if s.family == family), None)


def schedule_func(func: Func, target: Target, constants: frozenset[str] = frozenset()) -> Draft:
    """Schedule `func` for `target`; `constants` names the params whose values are known at compile time."""
    return choose_schedule(func, target, constants).draft


def as_stated(space: Space, func: Func, target: Target, constants: frozenset[str]) -> Space:
    """With the costs of its closed form."""
    return space


def choose_schedule(
    func: Func, target: Target, constants: frozenset[str] = frozenset(), refine: Refine = as_stated
) -> ChosenSchedule:
    """The same, with what was chosen; points are ranked by the costs of refined spaces."""
    for recipe in LADDER:
        try:
            return recipe(func, target, constants, refine)
        except ScheduleError as e:
            _log.debug("%s: %s is not for it: %s", func.name, recipe.__name__, e)
    return unscheduled(func, target, constants)


def schedule_as(
    func: Func,
    target: Target,
    constants: frozenset[str],
    family: str,
    decisions: KnobValues,
    offered: Spaces = spaces,
) -> Schedule:
    """The schedule that a family makes of `func` with these values of its knobs; ScheduleError if it makes none.
    Spaces may be `offered` by others than our families.
    """
    fallback = _FALLBACKS.get(family)
    if fallback is not None:
        if decisions:
            raise ScheduleError(f"{family} has no knobs", hint=f"{', '.join(decisions)} cannot be chosen")
        return fallback(func, target, constants, as_stated).draft
    space = find_space(func, target, constants, family, offered)
    if space is None:
        fitting = ", ".join((*(s.family for s in offered(func, target, constants)), *_FALLBACKS))
        raise ScheduleError(f"{family} does not fit {func.name}", hint=f"what fits is: {fitting}")
    names, decisions = [k.name for k in space.knobs], space.completed(decisions)
    if set(names) != set(without_grain(decisions)):
        raise ScheduleError(
            f"{family} has other knobs than {', '.join(decisions) or 'none'}",
            hint=f"its knobs are: {', '.join(names) or 'none'}",
        )
    if not space.has_point(np.array([decisions[n] for n in names], np.int64)):
        choices = "; ".join(f"{k.name} of {', '.join(map(str, k.choices))}" for k in space.knobs)
        raise ScheduleError(f"{family} has no such point for {func.name}", hint=f"there are: {choices}")
    return build_with_grain(space, decisions)


def by_family(
    func: Func, target: Target, constants: frozenset[str], refine: Refine = as_stated
) -> ChosenSchedule:
    """The cheapest point of all families that no step refuses."""
    request = make_request(func, target, constants)
    found: list[tuple[float, Space, KnobValues]] = []
    for stated in _spaces(request):
        space = refine(stated, func, target, constants)
        points, costs = space.ranked()
        best = zip(costs[:_TRIED], points, strict=False)
        found += [(float(cost), space, space.decisions(point)) for cost, point in best]
        request.limit = min((cost for cost, _, _ in found), default=inf)
    for _, space, decisions in sorted(found, key=lambda f: f[0]):
        try:
            return ChosenSchedule(space.family, decisions, _built(space, decisions))
        except ScheduleError as e:
            _log.debug("%s: %s cannot be %s: %s", func.name, space.family, decisions, e)
    raise ScheduleError("no family has a schedule for it")


def block_by_block(
    func: Func, target: Target, constants: frozenset[str], refine: Refine = as_stated
) -> ChosenSchedule:
    """Every block stays in its own nest: a reduction as a flow graph of its own, if it is one, and otherwise as it is
    written.
    """
    s = prepared(func)
    every = list(blocks(s.func.body))
    folds = [b.name for b in every if b.is_reduction and not is_ordered(b)]
    for name in folds:
        try:
            with s.transaction():
                schedule_fold(s, name, target)
        except ScheduleError as e:
            _log.debug("%s stays as it is written: %s", name, e)
    schedule_each(s, [b.name for b in every if b.name not in folds], target)
    return ChosenSchedule("block_by_block", {}, s)


def unscheduled(
    func: Func, target: Target, constants: frozenset[str], refine: Refine = as_stated
) -> ChosenSchedule:
    """As it is written."""
    return ChosenSchedule("unscheduled", {}, Draft(single(func)))


def _built(space: Space, decisions: KnobValues) -> Draft:
    s = space.build(decisions)
    assert isinstance(s, Draft)
    return s


LADDER: tuple[Recipe, ...] = (by_family, block_by_block)
_FALLBACKS: dict[str, Recipe] = {r.__name__: r for r in (block_by_block, unscheduled)}

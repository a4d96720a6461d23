"""The schedule of any Func, without measuring anything: the cheapest point of the first rule that fits it.

Rules assume more of a Func than that it is correct, and a step refuses what it cannot prove. So there is a ladder:
where one rule meets a refusal, the next starts over from the Func as it was given. The last takes no step at all.
"""

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from tilewright.families.attention.space import attention_space
from tilewright.families.bands.apart import apart_space
from tilewright.families.bands.space import bands_space
from tilewright.families.elementwise.recipe import schedule_spatial
from tilewright.families.gemm.space import contraction_space
from tilewright.families.ordered.recipe import is_ordered, schedule_ordered
from tilewright.families.prepare import prepared, schedule_rest
from tilewright.families.recurrent.recipe import carried_nests
from tilewright.families.recurrent.space import schedule_around_carried
from tilewright.families.reduce.space import rows_space
from tilewright.families.space import Decisions, Space
from tilewright.families.split_k.space import divided_space
from tilewright.families.tensor.space import tensor_space
from tilewright.families.window.space import lanes_space
from tilewright.families.winograd.recipe import find_stages
from tilewright.families.winograd.space import schedule_stages
from tilewright.schedule.draft import Draft
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.func import Func, single
from tilewright.tir.stmt import blocks

_log = logging.getLogger(__name__)


class Chosen(NamedTuple):
    """How a Func is run: a family of schedules, the values of its knobs, and the schedule that these make."""

    family: str
    decisions: Decisions
    draft: Draft


Recipe: TypeAlias = Callable[[Func, Target, frozenset[str]], Chosen]

Rule: TypeAlias = Callable[[Draft, Target, frozenset[str]], Space | None]

RULES: tuple[Rule, ...] = (contraction_space, tensor_space, lanes_space, rows_space)
_TRIED = 4  # points of a space that are built before another rule has its turn


def spaces(func: Func, target: Target, constants: frozenset[str] = frozenset()) -> tuple[Space, ...]:
    """All design spaces of `func`; `constants` names the params whose values are known at compile time."""
    if carried_nests(func):
        return ()
    return tuple(_spaces(prepared(func), target, constants))


def _spaces(start: Draft, target: Target, constants: frozenset[str]) -> Iterator[Space]:
    if any(is_ordered(b) for b in blocks(start.func.body)) or find_stages(start.func) is not None:
        return
    bands = bands_space(start, target, constants)
    if bands is not None:
        yield bands
    # Windows between two products go in bands, or apart; what else is between two may be attention.
    for rule in (apart_space, attention_space, divided_space):
        found = rule(start, target, constants, lambda part: schedule_func(part, target, constants))
        if found is not None:
            yield found
    for rule in RULES:
        found = rule(start, target, constants)
        if found is not None:
            yield found


def schedule_func(func: Func, target: Target, constants: frozenset[str] = frozenset()) -> Draft:
    """Schedule `func` for `target`; `constants` names the params whose values are known at compile time."""
    return choose_schedule(func, target, constants).draft


def choose_schedule(func: Func, target: Target, constants: frozenset[str] = frozenset()) -> Chosen:
    """The same, with what was chosen."""
    for recipe in LADDER:
        try:
            return recipe(func, target, constants)
        except ScheduleError as e:
            _log.debug("%s: %s is not for it: %s", func.name, recipe.__name__, e)
    return unscheduled(func, target, constants)


def schedule_as(
    func: Func, target: Target, constants: frozenset[str], family: str, decisions: Decisions
) -> Draft:
    """The schedule that a family makes of `func` with these values of its knobs; ScheduleError if it makes none."""
    plain = _WITHOUT_KNOBS.get(family)
    if plain is not None:
        if decisions:
            raise ScheduleError(f"{family} has no knobs", hint=f"{', '.join(decisions)} cannot be chosen")
        return plain(func, target, constants).draft
    known: dict[str, Space] = {}
    for space in spaces(func, target, constants):
        known.setdefault(space.rule, space)
    if family not in known:
        offered = ", ".join((*known, *_WITHOUT_KNOBS))
        raise ScheduleError(f"{family} does not fit {func.name}", hint=f"what fits is: {offered}")
    names = [k.name for k in known[family].knobs]
    if set(names) != set(decisions):
        raise ScheduleError(
            f"{family} has other knobs than {', '.join(decisions) or 'none'}",
            hint=f"its knobs are: {', '.join(names)}",
        )
    return _built(known[family], decisions)


def by_structure(func: Func, target: Target, constants: frozenset[str]) -> Chosen:
    """The cheapest point of a design space, or what a family makes that has none."""
    if carried_nests(func):
        return recurrent(func, target, constants)
    s = prepared(func)
    if find_stages(s.func) is not None:
        return _winograd(s, target)
    for space in _spaces(s, target, constants):
        for point in space.ranked()[0][:_TRIED]:
            decisions = space.decisions(point)
            try:
                return Chosen(space.rule, decisions, _built(space, decisions))
            except ScheduleError as e:
                _log.debug("%s: %s cannot be %s: %s", func.name, space.rule, decisions, e)
    return _elementwise(s, target)


def recurrent(func: Func, target: Target, constants: frozenset[str]) -> Chosen:
    """Loops that depend on their own earlier iterations; the nests around them are scheduled as Funcs of their own."""
    if not carried_nests(func):
        raise ScheduleError("no loop depends on its own earlier iterations")
    draft = schedule_around_carried(func, target, lambda part: schedule_func(part, target, constants))
    return Chosen("recurrent", {}, draft)


def winograd(func: Func, target: Target, constants: frozenset[str]) -> Chosen:
    """A contraction of transformed operands, in stages."""
    return _winograd(prepared(func), target)


def _winograd(s: Draft, target: Target) -> Chosen:
    if not schedule_stages(s, target):
        raise ScheduleError("no operand of a contraction is transformed")
    return Chosen("winograd", {}, s)


def elementwise(func: Func, target: Target, constants: frozenset[str]) -> Chosen:
    """Without a reduction: all blocks in memory order."""
    return _elementwise(prepared(func), target)


def _elementwise(s: Draft, target: Target) -> Chosen:
    if any(b.is_reduction for b in blocks(s.func.body)):
        raise ScheduleError("no rule has a schedule for its reductions")
    schedule_rest(s, {b.name for b in blocks(s.func.body)}, target)
    return Chosen("elementwise", {}, s)


def block_by_block(func: Func, target: Target, constants: frozenset[str]) -> Chosen:
    """Every block stays in its own nest: without a reduction in memory order, with one nearly as it is written."""
    s = prepared(func)
    for block in list(blocks(s.func.body)):
        if not block.is_reduction or is_ordered(block):
            try:
                with s.transaction():
                    (schedule_ordered if block.is_reduction else schedule_spatial)(s, block.name, target)
            except ScheduleError as e:
                _log.debug("%s stays as it is: %s", block.name, e)
    return Chosen("block_by_block", {}, s)


def unscheduled(func: Func, target: Target, constants: frozenset[str]) -> Chosen:
    """As it is written."""
    return Chosen("unscheduled", {}, Draft(single(func)))


def _built(space: Space, decisions: Decisions) -> Draft:
    s = space.build(decisions)
    assert isinstance(s, Draft)
    return s


LADDER: tuple[Recipe, ...] = (by_structure, block_by_block)
_WITHOUT_KNOBS: dict[str, Recipe] = {
    r.__name__: r for r in (recurrent, winograd, elementwise, block_by_block, unscheduled)
}

"""The schedule of any Func, without measuring anything: the cheapest point of the first rule that fits it.

Rules assume more of a Func than that it is correct, and a step refuses what it cannot prove. So there is a ladder:
where one rule meets a refusal, the next starts over from the Func as it was given. The last takes no step at all.
"""

import logging
from collections.abc import Callable, Iterator
from typing import TypeAlias

from tilewright.schedule.recipes.carried import carried_nests
from tilewright.schedule.recipes.draft import Draft
from tilewright.schedule.recipes.ordered import is_ordered, schedule_ordered
from tilewright.schedule.recipes.spatial import schedule_spatial
from tilewright.schedule.recipes.transformed import find_stages
from tilewright.search.apart_space import apart_space
from tilewright.search.attention_space import attention_space
from tilewright.search.bands_space import bands_space
from tilewright.search.carried import schedule_around_carried
from tilewright.search.contraction_space import contraction_space
from tilewright.search.divided_space import divided_space
from tilewright.search.lanes_space import lanes_space
from tilewright.search.prepare import prepared, schedule_rest
from tilewright.search.rows_space import rows_space
from tilewright.search.space import Decisions, Space
from tilewright.search.tensor_space import tensor_space
from tilewright.search.transformed import schedule_stages
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.func import Func, single
from tilewright.tir.stmt import blocks

_log = logging.getLogger(__name__)

Recipe: TypeAlias = Callable[[Func, Target, frozenset[str]], Draft]

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
    for recipe in LADDER:
        try:
            return recipe(func, target, constants)
        except ScheduleError as e:
            _log.debug("%s: %s is not for it: %s", func.name, recipe.__name__, e)
    return Draft(single(func))


def by_structure(func: Func, target: Target, constants: frozenset[str]) -> Draft:
    """The cheapest point of a design space; without a reduction, all blocks in memory order. Loops that depend on their
    own earlier iterations divide the Func into parts that are scheduled apart.
    """
    if carried_nests(func):
        return schedule_around_carried(func, target, lambda part: schedule_func(part, target, constants))
    s = prepared(func)
    if schedule_stages(s, target):
        return s
    for space in _spaces(s, target, constants):
        for point in space.ranked()[0][:_TRIED]:
            try:
                return _built(space, space.decisions(point))
            except ScheduleError as e:
                _log.debug("%s: %s cannot be %s: %s", func.name, space.rule, space.decisions(point), e)
    if any(b.is_reduction for b in blocks(s.func.body)):
        raise ScheduleError("no rule has a schedule for its reductions")
    schedule_rest(s, {b.name for b in blocks(s.func.body)}, target)
    return s


def _built(space: Space, decisions: Decisions) -> Draft:
    s = space.build(decisions)
    assert isinstance(s, Draft)
    return s


def block_by_block(func: Func, target: Target, constants: frozenset[str]) -> Draft:
    """Every block stays in its own nest: without a reduction in memory order, with one nearly as it is written."""
    s = prepared(func)
    for block in list(blocks(s.func.body)):
        if not block.is_reduction or is_ordered(block):
            kept = s.module, s.trace
            try:
                (schedule_ordered if block.is_reduction else schedule_spatial)(s, block.name, target)
            except ScheduleError as e:
                s.module, s.trace = kept
                _log.debug("%s stays as it is: %s", block.name, e)
    return s


LADDER: tuple[Recipe, ...] = (by_structure, block_by_block)

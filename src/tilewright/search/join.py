"""Which Funcs of a Module become one: those whose blocks a schedule brings together in bands, where that saves time.

It is decided before layouts are chosen: what stays inside a Func gets the layout that its blocks want, and a padding
that is computed band by band is not folded into a buffer between kernels.
"""

from itertools import pairwise

from tilewright.cost.bands import gain
from tilewright.cost.machine import machine_of
from tilewright.schedule.recipes.bands import is_padding, try_chain
from tilewright.schedule.step import Step
from tilewright.schedule.steps.join_funcs import JoinFuncs
from tilewright.search.bands_space import try_form
from tilewright.search.prepare import prepared
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.func import Call, Func, Module, calls
from tilewright.tir.stmt import blocks

_LEAST_GAIN = 0.0  # of the time of the product


def join_funcs(module: Module, target: Target) -> tuple[Module, tuple[Step, ...]]:
    """Join what is worth it; the module and the steps taken."""
    steps: list[Step] = []
    taken: set[str] = set()
    order = [c.func for c in calls(module.program) if isinstance(c, Call)]
    for first, second in pairwise(order):
        if taken & {first, second} or not _may_pay(module, first, second):
            continue
        step = JoinFuncs(first, second)
        try:
            joined = step.apply(module)
        except ScheduleError:
            continue
        if _pays(joined.func(step.name), target):
            module = joined
            steps.append(step)
            taken |= {first, second}
    return module, tuple(steps)


def _may_pay(module: Module, first: str, second: str) -> bool:
    """A quick look: does the second pad the only result of the first, and has each of them one reduction?"""
    f, g = module.func(first), module.func(second)
    if not any(is_padding(b) for b in blocks(g.body)):
        return False
    if len(f.outputs) != 1 or f.outputs[0] not in g.params or f.outputs[0] not in module.temps:
        return False
    readers = [h for h in module.funcs if f.outputs[0] in h.params]
    return len(readers) == 2 and all(sum(b.is_reduction for b in blocks(h.body)) == 1 for h in (f, g))


def _pays(func: Func, target: Target) -> bool:
    chain = try_chain(prepared(func).func)
    form = None if chain is None else try_form(chain)
    return form is not None and gain(form, machine_of(target)) > _LEAST_GAIN

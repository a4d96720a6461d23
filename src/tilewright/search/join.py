"""Which Funcs of a Module become one: those whose blocks a schedule brings together in bands, where that saves time.

Depthwise convolutions are joined to the convolution before them, and a pointwise convolution to the depthwise one
before it, or to both of these. It is decided before layouts are chosen: what stays inside a Func gets the layout that
its blocks want, and a padding that is computed band by band is not folded into a buffer between kernels. Algorithms are
chosen before: a contraction that is computed in stages stays as it is.
"""

from tilewright.families.bands.cost import gain
from tilewright.families.bands.match import try_band_chain
from tilewright.families.bands.space import try_form
from tilewright.families.gemm.recipe import try_contraction
from tilewright.families.prepare import prepared
from tilewright.families.recurrent.match import recurrent_nests
from tilewright.families.window.recipe import operand_loads
from tilewright.schedule.steps.join_funcs import JoinFuncs
from tilewright.support.errors import ScheduleError
from tilewright.support.program import leaves
from tilewright.target.target import Target
from tilewright.tir.func import Call, Func, Module
from tilewright.tir.stmt import Block, blocks


def join_funcs(module: Module, target: Target) -> tuple[Module, tuple[JoinFuncs, ...]]:
    """Join what is worth it; the module and the steps taken."""
    steps: list[JoinFuncs] = []
    order = [c.func for c in leaves(module.program) if isinstance(c, Call)]
    at = 0
    while at + 1 < len(order):
        step = JoinFuncs(order[at], order[at + 1])
        joined = _try_join(module, step, target)
        if joined is None:
            at += 1
            continue
        module = joined
        steps.append(step)
        order[at : at + 2] = [step.name]  # to which the next may be joined too
    return module, tuple(steps)


def _try_join(module: Module, step: JoinFuncs, target: Target) -> Module | None:
    """The module with the two as one, if that saves time."""
    if not _may_pay(module, module.func(step.first), module.func(step.second)):
        return None
    try:
        joined = step.apply(module)
        chain = try_band_chain(prepared(joined.func(step.name)).func)
    except ScheduleError:
        return None
    form = None if chain is None else try_form(chain)
    return joined if form is not None and gain(form, target) > 0.0 else None


def _may_pay(module: Module, f: Func, g: Func) -> bool:
    """A quick look: is one a contraction and the other one not, and what the first stores for the second alone?"""
    if len(f.outputs) != 1 or f.outputs[0] not in g.params or f.outputs[0] not in module.temps:
        return False
    if f.algorithm or g.algorithm or len(module.users(f.outputs[0])) != 2:
        return False
    first, second = ([b for b in blocks(h.body) if b.is_reduction] for h in (f, g))
    if len(first) not in (1, 2) or len(second) != 1:
        return False
    if recurrent_nests(f) or recurrent_nests(g):  # each is scheduled around its own
        return False
    ends = (first[-1], second[0])
    return all(_has_pixels(b) for b in ends) and len({try_contraction(b) is None for b in ends}) == 2


def _has_pixels(block: Block) -> bool:
    """A block of several statements, such as a sort, has none."""
    return block.try_store is not None and any(len(ld.indices) > 3 for ld in operand_loads(block))

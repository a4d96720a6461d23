"""Which Funcs of a Module become one: those whose contractions a schedule brings together with what follows them, where
that saves time.

Depthwise convolutions are joined to the convolution before them, and a pointwise convolution to the depthwise one
before it, or to both of these (`families/bands`). A contraction is joined to the next one that reads its rows, or to
what folds these (`families/chain`). It is decided before layouts are chosen: what stays inside a Func gets the layout
that its blocks want, and a padding that is computed band by band is not folded into a buffer between kernels.
Algorithms are chosen before: a contraction that is computed in stages stays as it is.
"""

from math import inf, prod

import numpy as np

from tilewright.cost.stream import pass_seconds
from tilewright.families.bands.cost import gain
from tilewright.families.bands.match import try_band_chain
from tilewright.families.bands.space import try_form
from tilewright.families.chain.space import chain_space
from tilewright.families.gemm.recipe import try_contraction
from tilewright.families.prepare import prepared
from tilewright.families.recurrent.match import recurrent_nests
from tilewright.families.window.recipe import operand_loads
from tilewright.schedule.steps.join_funcs import JoinFuncs
from tilewright.search.default import make_request
from tilewright.support.errors import ScheduleError
from tilewright.support.program import leaves
from tilewright.target.target import Target
from tilewright.tir.func import Call, Func, Module
from tilewright.tir.stmt import Block, blocks

# Of the time apart, what a chain must save by estimate. Measured on MLPs of two layers, one and two threads with
# AVX-512: joined, 16384 x 64 x 64 takes 0.90 of the time, 3136 x 96 x 384 0.94 and 1.01, 784 x 192 x 768 1.04 and 1.16;
# all are estimated at 1.01 to 1.02. So what is estimated below that by more than this is a gain.
_LEAST_SAVED = 0.03


def join_funcs(module: Module, target: Target) -> tuple[Module, tuple[JoinFuncs, ...]]:
    """Join what is worth it; the module and the steps taken."""
    return _joined(module, target, must_pay=True)


def join_all(module: Module, target: Target) -> tuple[JoinFuncs, ...]:
    """The steps that join all that a schedule may bring together, whether that is estimated to save time or not."""
    _, steps = _joined(module, target, must_pay=False)
    return steps


def _joined(module: Module, target: Target, *, must_pay: bool) -> tuple[Module, tuple[JoinFuncs, ...]]:
    steps: list[JoinFuncs] = []
    order = [c.func for c in leaves(module.program) if isinstance(c, Call)]
    at = 0
    while at + 1 < len(order):
        step = JoinFuncs(order[at], order[at + 1])
        joined = _try_join(module, step, target, must_pay=must_pay)
        if joined is None:
            at += 1
            continue
        module = joined
        steps.append(step)
        order[at : at + 2] = [step.name]  # to which the next may be joined too
    return module, tuple(steps)


def _try_join(module: Module, step: JoinFuncs, target: Target, *, must_pay: bool) -> Module | None:
    """The module with the two as one, if that is possible, and saves time if it must."""
    f, g = module.func(step.first), module.func(step.second)
    if not _is_between(module, f, g):
        return None
    gain_of = _bands_gain if _may_be_bands(f, g) else _chain_gain if _may_be_chain(f, g, target) else None
    if gain_of is None:
        return None
    try:
        joined = step.apply(module)
        found = gain_of(joined, joined.func(step.name), target)
    except ScheduleError:
        return None
    return joined if found > (0.0 if must_pay else -inf) else None


def _is_between(module: Module, f: Func, g: Func) -> bool:
    """Does the first store one thing, for the second alone?"""
    if len(f.outputs) != 1 or f.outputs[0] not in g.params or f.outputs[0] not in module.temps:
        return False
    if f.algorithm or g.algorithm or len(module.users(f.outputs[0])) != 2:
        return False
    return not recurrent_nests(f) and not recurrent_nests(g)  # each is scheduled around its own


def _reductions(func: Func) -> list[Block]:
    return [b for b in blocks(func.body) if b.is_reduction]


# --------------------------------------------------------------------------------------------------------------- bands


def _may_be_bands(f: Func, g: Func) -> bool:
    """A quick look: is one a contraction of an image and the other one not?"""
    first, second = _reductions(f), _reductions(g)
    if len(first) not in (1, 2) or len(second) != 1:
        return False
    ends = (first[-1], second[0])
    return all(_has_pixels(b) for b in ends) and len({try_contraction(b) is None for b in ends}) == 2


def _has_pixels(block: Block) -> bool:
    """A block of several statements, such as a sort, has none."""
    return block.try_store is not None and any(len(ld.indices) > 3 for ld in operand_loads(block))


def _bands_gain(module: Module, joined: Func, target: Target) -> float:
    """The part of the time apart that bands save; -inf if there are none."""
    chain = try_band_chain(prepared(joined).func)
    form = None if chain is None else try_form(chain)
    return -inf if form is None else gain(form, target)


# -------------------------------------------------------------------------------------------------------------- chains


def _may_be_chain(f: Func, g: Func, target: Target) -> bool:
    """A quick look: is the first one contraction, does the second reduce what it makes, and is that so much that it
    saves something to keep it near?
    """
    first, second = _reductions(f), _reductions(g)
    if len(first) != 1 or not second or try_contraction(first[0]) is None:
        return False
    found = [c for b in second if (c := try_contraction(b)) is not None]
    if found and (len(second) > 1 or found[0].a.buffer is not f.outputs[0]):
        return False
    m, lanes = target.machine, target.lanes(f.outputs[0].dtype.bytes)
    products = sum(prod(it.extent for it in b.iters) for b in (first[0], *(c.block for c in found)))
    computing = products / (lanes * m.fma_per_cycle * m.hertz)
    return pass_seconds(2 * f.outputs[0].bytes, m) > _LEAST_SAVED * computing


def _chain_gain(module: Module, joined: Func, target: Target) -> float:
    """The part of the time apart that a chain saves, beyond what it must; -inf if there is none."""
    constants = frozenset(c.buffer.name for c in module.constants)
    space = chain_space(make_request(joined, target, constants))
    if space is None:
        return -inf
    points = space.points()
    costs, is_together = space.cost(points), points[:, 0] > 0
    if not is_together.any():
        return -inf
    together, apart = (float(np.min(costs[chosen])) for chosen in (is_together, ~is_together))
    return 1 - _LEAST_SAVED - together / apart

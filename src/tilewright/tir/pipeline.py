"""From a scheduled Func to kernels that a code generator takes, as one list of passes.

Every pass keeps the meaning: the interpreter gives the same result after each (tests hold them to it).
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TypeAlias

from tilewright.ir.expr import Buffer
from tilewright.tir.func import Func
from tilewright.tir.passes.carry_stored import carry_stored
from tilewright.tir.passes.compact_buffers import compact_buffers
from tilewright.tir.passes.limit_loops import limit_loops
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.passes.peel_masks import peel_masks
from tilewright.tir.passes.place_sizes import has_sizes, place_sizes
from tilewright.tir.passes.simplify import simplify_func
from tilewright.tir.passes.split_phases import (
    Phase,
    copies_of_params,
    share_large_buffers,
    split_phases,
    with_joined_fills,
)
from tilewright.tir.passes.unroll_loops import unroll_loops
from tilewright.tir.stmt import Seq, Stmt

FuncPass: TypeAlias = Callable[[Func], Func]

BEFORE_SPLIT: tuple[FuncPass, ...] = (
    lower_blocks,  # blocks -> loops, conditions and stores
    simplify_func,  # unit loops gone, conditions outward: what is carried between iterations is visible
)
AFTER_SPLIT: tuple[FuncPass, ...] = (
    unroll_loops,  # register indices become constants
    simplify_func,
    carry_stored,  # what loops hand on to their next iteration, in registers
)


_Finished: TypeAlias = tuple[Phase, tuple[Buffer, ...]]  # with what of it is shared memory


class PhaseMemo:
    """What became of phases that were finished with the same passes: many schedules of one Func have most of their
    phases in common, such as those that lay constants out. Equal phases become the same one.
    """

    def __init__(self, most: int = 256) -> None:
        self._known: dict[Hashable, _Finished] = {}
        self._most = most

    def finished(self, phase: Phase, extra: tuple[FuncPass, ...]) -> _Finished:
        f = phase.func
        # All that passes see; statements are compared by value. Whole loop nests are short before they are unrolled.
        key = f.name, f.params, f.locals, f.outputs, f.body, phase.reads, phase.writes, extra
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= self._most:
                self._known.clear()
            found = self._known[key] = _finish(phase, extra)
        return found


def lower_func(
    func: Func, extra: tuple[FuncPass, ...] = (), memo: PhaseMemo | None = None
) -> tuple[tuple[Phase, ...], tuple[Buffer, ...]]:
    """The kernels of a scheduled Func, in order, and the buffers shared between them.

    `extra` passes run last on each kernel (a target's own: expansion of functions, no FMA).
    """
    # Nest by nest, so that a nest whose loops all have one iteration is still one phase and not its statements.
    is_open = has_sizes(func)
    func = limit_loops(func) if is_open else func
    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    lowered: list[Stmt] = []
    for nest in nests:
        part = func.with_body(nest)
        for p in (*BEFORE_SPLIT, peel_masks) if is_open else BEFORE_SPLIT:
            part = p(part)
        lowered.append(part.body)
    whole = func.with_body(Seq(tuple(with_joined_fills(lowered))))
    if is_open:
        # Schedules for several ranges of sizes share packed weights: they lie in the same way, whatever reads them.
        phases, shared = split_phases(place_sizes(whole), keep=copies_of_params(whole))
    else:
        phases, shared = split_phases(whole)
    done: list[Phase] = []
    for phase in phases:
        finished, large = _finish(phase, extra) if memo is None else memo.finished(phase, extra)
        shared = (*shared, *large)
        done.append(finished)
    return tuple(done), shared


def _finish(phase: Phase, extra: tuple[FuncPass, ...]) -> _Finished:
    # Allocations shrink to what an iteration touches; what is still too large for a stack is shared memory.
    phase, large = share_large_buffers(replace(phase, func=compact_buffers(phase.func)))
    func = phase.func
    for p in (*AFTER_SPLIT, *extra):
        func = p(func)
    return replace(phase, func=func), large

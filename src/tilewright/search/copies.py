"""Copies between kernels that need not be made: whoever makes a piece of a concatenation stores it in its place.

A buffer that some kernel pads is left alone: a border around it (`FoldPadding`) saves as much, and it cannot have both.
"""

from tilewright.ir.expr import Buffer, loads
from tilewright.schedule.find import find_block
from tilewright.schedule.step import Step
from tilewright.schedule.steps.compute_inline import ComputeInline
from tilewright.schedule.steps.fold_padding import try_padding
from tilewright.schedule.steps.store_at import StoreAt
from tilewright.search.pieces import attach_pieces, is_choice
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func, Module
from tilewright.tir.stmt import Block, blocks


def store_in_place(module: Module) -> tuple[Module, tuple[Step, ...]]:
    """The module without the copies that can be spared, and the steps taken."""
    padded = {p.source for f in module.funcs for b in blocks(f.body) if (p := try_padding(b)) is not None}
    taken: list[Step] = []
    for func in module.funcs:
        if all(_only_moves(b) for b in blocks(func.body)):
            module, steps = _place_pieces(module, func, padded)
            taken.extend(steps)
    module, attached = attach_pieces(module, padded)
    return module, (*taken, *attached)


def _only_moves(block: Block) -> bool:
    return block.try_store is not None and is_choice(block.store.value)


def _place_pieces(module: Module, func: Func, padded: set[Buffer]) -> tuple[Module, list[Step]]:
    """As above, of a Func that only moves data: its last block puts together what the others prepare."""
    *first, last = blocks(func.body)
    steps: list[Step] = []
    now = module
    for b in first:
        step = ComputeInline(b.name)
        try:
            now = step.apply(now)
        except ScheduleError:
            return module, []
        steps.append(step)
    inlined = len(steps)
    left = [last.name]  # blocks that still copy
    found = find_block(now.func(func.name), last.name).store
    sources = {ld.buffer for ld in loads(found.value)} - padded
    for source in sorted(sources, key=lambda b: (-b.bytes, b.name)):
        for name in left:
            step = StoreAt(name, source.name)
            try:
                now = step.apply(now)
            except ScheduleError:
                continue
            steps.append(step)
            left = [n for b in left for n in ((f"{b}_low", f"{b}_high") if b == name else (b,))]
            break
    return (now, steps) if len(steps) > inlined else (module, [])

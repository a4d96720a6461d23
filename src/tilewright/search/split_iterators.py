"""Blocks that use buffers in blocks of channels go over blocks and over what is in them.

A layout with `SplitDim` leaves the iterators of blocks as they are, so they use a buffer at c // 16 and c % 16. Kernel
families look for iterators in indices. An iterator of which all such uses are by the same factor, which divides its
extent, becomes two: c_0 and c_1, and other buffers are used at c_0 * 16 + c_1.
"""

from tilewright.ir.expr import Binary, BinaryOp, Const, Var, walk
from tilewright.ir.layout import Layout, SplitDim
from tilewright.schedule.find import find_block
from tilewright.schedule.step import Step
from tilewright.schedule.steps.transform_block_layout import TransformBlockLayout
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func, Module
from tilewright.tir.stmt import Block, blocks, stmt_exprs


def split_iterators(module: Module, factors: set[int]) -> tuple[Module, tuple[Step, ...]]:
    """All blocks whose iterators are divided by one of the factors, as above; the module and the steps taken."""
    taken: list[Step] = []
    for func in module.funcs:
        for name in [b.name for b in blocks(func.body)]:
            func = _split(func, name, factors, taken)
        module = module.with_func(func) if func is not module.func(func.name) else module
    return module, tuple(taken)


def _split(func: Func, name: str, factors: set[int], taken: list[Step]) -> Func:
    block = find_block(func, name)
    found = _divided(block, factors)
    if not found:
        return func
    # From the last to the first, so that the numbers of those before stay.
    layout = Layout(tuple(SplitDim(n, found[n]) for n in sorted(found, reverse=True)))
    step = TransformBlockLayout(name, layout)
    try:
        func = step.rewrite(func)
    except ScheduleError:
        return func  # not alone under plain loops: it stays as it is
    taken.append(step)
    return func


def _divided(block: Block, factors: set[int]) -> dict[int, int]:
    """The iterators, by number, that split, and into parts of how many."""
    used: dict[Var, set[int]] = {}
    for n in (n for e in stmt_exprs(block.body) for n in walk(e)):
        match n:
            case Binary(BinaryOp.FLOORDIV | BinaryOp.MOD, Var() as v, Const(value=int(f))) if f in factors:
                used.setdefault(v, set()).add(f)
            case _:
                pass
    found = {n: used[it.var] for n, it in enumerate(block.iters) if it.var in used}
    return {
        n: min(by)
        for n, by in found.items()
        if len(by) == 1 and block.iters[n].extent % min(by) == 0 and block.iters[n].extent > min(by)
    }

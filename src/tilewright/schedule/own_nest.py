"""Blocks as the builder makes them: alone under plain loops, one per iterator, over all of its domain.

Steps that change the domain of a block (which iterators it has) apply only to such blocks, and give such
blocks again.
"""

from tilewright.ir.expr import TRUE, Expr, Var
from tilewright.schedule.edit import replace_stmt
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import path_to
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, LoopKind, Stmt


def own_nest(func: Func, block: Block) -> dict[Expr, For]:
    """The loops of the block by their variables, outermost first; refuses a block that has been tiled or
    moved.
    """
    found: list[For] = []
    for n in reversed(path_to(func.body, block)[:-1]):
        if not isinstance(n, For) or n.kind is not LoopKind.SERIAL or n.annotations:
            break
        found.append(n)
    nest: dict[Expr, For] = {n.var: n for n in reversed(found)}
    plain = set(nest) == set(block.bindings) and len(nest) == len(block.bindings)
    # Loops over a part of the domain (the first rows of a rolling buffer) must not become loops over all of it.
    plain = plain and all(
        nest[b].extent == it.extent for it, b in zip(block.iters, block.bindings, strict=True)
    )
    if not plain or block.predicate is not TRUE:
        raise step_refusal(
            func,
            block,
            f"block {block.name!r} is not alone under plain loops, one per iterator",
            hint="change the domain of a block before splitting or moving it",
        )
    return nest


def under_own_loops(block: Block) -> Stmt:
    """The block under one loop per iterator; its bindings are the loops' variables."""
    nest: Stmt = block
    for it, binding in reversed(list(zip(block.iters, block.bindings, strict=True))):
        assert isinstance(binding, Var)
        nest = For(binding, it.extent, nest)
    return nest


def replace_own_nest(func: Func, old: Block, new: Block) -> Func:
    """The nest of `old` replaced by the one of `new`."""
    nest = own_nest(func, old)
    top: Stmt = next(iter(nest.values())) if nest else old
    return replace_stmt(func, top, under_own_loops(new))

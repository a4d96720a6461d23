"""Where an intrinsic finds its operands under a mapping: in place, or in a copy.

An intrinsic walks its operand in equal steps along each of its loops, except the free ones, which may be any number of
loops. A fused group of a block's iterators can be walked like that if the elements of every tile are equally far apart
in memory: a tile lies inside the last iterators of the group, and these follow one another without a gap.

    X[h, w + s], rows fused of (h, w):  tiles of 4 in rows of 8 are in place, tiles of 6 are not
                                        (after the end of a row comes the border, not the next row)

Dimensions that the intrinsic wants side by side must be so. A group that is padded to whole tiles is never in place,
and an operand that is an expression is not in memory at all.
"""

from collections.abc import Mapping as Table
from typing import TypeAlias

from tilewright.families.tensor.mapping import IterGroup, Mapping
from tilewright.ir.expr import Expr, Load, Var
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.target.intrinsic import Intrinsic
from tilewright.tir.stmt import Block, Iter

Steps: TypeAlias = Table[Var, int]  # how far an address moves, in elements


def operand_strides(operand: Expr, block: Block) -> Steps | None:
    """How far the operand's address moves with each iterator; None if it does not move linearly, or is no load."""
    if not isinstance(operand, Load):
        return None
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    steps: dict[Var, int] = {}
    for index, stride in zip(operand.indices, operand.buffer.strides, strict=True):
        for atom, k in simplify.linear(index).terms:
            if not isinstance(atom, Var):
                return None
            steps[atom] = steps.get(atom, 0) + k * stride
    return steps


def role_extents(group: IterGroup) -> dict[Var, int]:
    """The extents of the role's loops: those that are free take what the fixed ones leave of the group."""
    role = group.role
    return {n.var: group.padded // role.tile if n.var in role.free else n.extent for n in role.loops}


def tile_steps(group: IterGroup, steps: Steps) -> dict[Var, int] | None:
    """How far apart neighbours along each loop of the role are; None if a tile has no equal steps.

    A free loop takes any steps; its last iterator's is returned.
    """
    if group.padded != group.extent:
        return None
    runs = _runs(group.iters, steps)
    extents = role_extents(group)
    out: dict[Var, int] = {}
    inner = 1
    for n in reversed(group.role.loops):
        outer = inner * extents[n.var]
        fitting = [
            step * (inner // lower)
            for lower, upper, step in runs
            if inner % lower == 0
            and (upper % outer == 0 or upper == group.extent or n.var in group.role.free)
        ]
        if extents[n.var] == 1:
            out[n.var] = 0
        elif not fitting:
            return None
        else:
            out[n.var] = fitting[0]
        inner = outer
    return out


def run_length(group: IterGroup, steps: Steps) -> int:
    """How many of the fused values from a multiple of it on are side by side in memory."""
    _, upper, step = _runs(group.iters, steps)[0]
    return upper if step == 1 else 1


def is_in_place(operand: int, mapping: Mapping, intrinsic: Intrinsic, block: Block) -> bool:
    """Can the intrinsic read operand number `operand` where it is?"""
    e = mapping.operands[operand]
    steps = operand_strides(e, block)
    if steps is None or not isinstance(e, Load) or e.buffer.scope not in intrinsic.operands[operand].scopes:
        return False
    tiles: dict[Var, int] = {}
    extents: dict[Var, int] = {}
    for g in mapping.groups:
        if g.role.character[operand]:
            part = tile_steps(g, steps)
            if part is None:
                return False
            tiles |= part
            extents |= role_extents(g)
    return side_by_side(operand, intrinsic, tiles, extents)


def side_by_side(operand: int, intrinsic: Intrinsic, tiles: Steps, extents: Table[Var, int]) -> bool:
    """Do the dimensions that the intrinsic wants contiguous have these steps?"""
    dims = intrinsic.dims[operand]
    expected = 1
    for v in reversed(dims[len(dims) - intrinsic.operands[operand].contiguous :]):
        if v is None or extents[v] == 1:
            continue
        if tiles[v] != expected:
            return False
        expected *= extents[v]
    return True


def _runs(iters: tuple[Iter, ...], steps: Steps) -> list[tuple[int, int, int]]:
    """A fused group as runs (lower, upper, step), innermost first: fused values that are `lower` apart lie `step` apart
    in memory, as long as no multiple of `upper` is between them.
    """
    runs: list[tuple[int, int, int]] = []
    size = 1
    for it in reversed(iters):
        step = steps.get(it.var, 0)
        if runs and step == runs[-1][2] * (runs[-1][1] // runs[-1][0]):
            lower, _, first = runs.pop()
            runs.append((lower, size * it.extent, first))
        else:
            runs.append((size, size * it.extent, step))
        size *= it.extent
    return runs

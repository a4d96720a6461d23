"""transform_block_layout: the iterators of a block go through an index map, and its loops with them.

    for h in range(7):              TransformBlockLayout("C", Layout((        for h_f in range(49):
        for w in range(7):            FuseDims(0, 2), SplitDim(1, 16)))           for c_0 in range(4):
            for c in range(64):              ─────>                                   for c_1 in range(16):
                C(vh = h, vw = w, vc = c)                                                 C(vh_f = h_f, vc_0 = c_0,
                                                                                            vc_1 = c_1)

The layout (SplitDim, FuseDims and ReorderDims of `ir/layout.py`) is that of the block's domain: dimension n is iterator
n. Buffers stay as they are; the body has the old iterators as expressions of the new ones. `transform_layout` does the
same for a buffer. The block gets one loop per new iterator, in their order. Names tell where they come from: SplitDim
makes `<name>_0` and `<name>_1`, FuseDims `<first name>_f`.

The map is one to one: nothing is padded, a SplitDim divides. A new iterator is spatial or reduce, so those that fuse
are of one kind. A reduction may be summed in another order, as after `reorder`. Otherwise, where the order of the loops
changes, no instance may use what another writes. The block is alone under plain loops, one per iterator.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tilewright.ir.expr import Var
from tilewright.ir.layout import (
    CropDim,
    FoldDim,
    FuseDims,
    Layout,
    LayoutPrimitive,
    PadDim,
    ReorderDims,
    SplitDim,
    UnfoldDim,
)
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_block
from tilewright.schedule.names import check_fresh
from tilewright.schedule.own_nest import own_nest, replace_own_nest
from tilewright.schedule.preconditions import check_closed
from tilewright.schedule.step import BlockStep
from tilewright.tir.analysis.independence import order_dependence
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_exprs, substitute_stmt
from tilewright.tir.stmt import Block, Iter, IterKind


class DomainAxis(NamedTuple):
    """A dimension of the domain: the names of its iterator and its loop, and what kind it is."""

    iter: str
    loop: str
    extent: int
    kind: IterKind

    def part(self, suffix: str, extent: int) -> "DomainAxis":
        return DomainAxis(f"{self.iter}_{suffix}", f"{self.loop}_{suffix}", extent, self.kind)


@dataclass(frozen=True, slots=True)
class TransformBlockLayout(BlockStep):
    layout: Layout

    def rewrite(self, func: Func) -> Func:
        block = find_block(func, self.block)
        check_closed(func, block)
        nest = own_nest(func, block)
        old: list[DomainAxis] = []
        for it, binding in zip(block.iters, block.bindings, strict=True):
            assert isinstance(binding, Var)
            old.append(DomainAxis(it.var.name, binding.name, it.extent, it.kind))
        new = old
        for p in self.layout.primitives:
            _check(func, block, p, new)
            new = _apply(p, new)
        names = [n for a in new if a not in old for n in (a.iter, a.loop)]
        check_fresh(func, names)
        moved = any(isinstance(p, ReorderDims) for p in self.layout.primitives)
        if nest and (moved or list(nest) != list(block.bindings)):
            _check_order(func, block, [n.var for n in nest.values()])
        return replace_own_nest(func, block, self._transformed(block, new))

    def _transformed(self, block: Block, axes: Sequence[DomainAxis]) -> Block:
        iters = tuple([Iter(Var(a.iter), a.extent, a.kind) for a in axes])
        shape = tuple(it.extent for it in block.iters)
        places, _ = self.layout.inverse(shape, [it.var for it in iters])
        values = {it.var: place for it, place in zip(block.iters, places, strict=True)}
        simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in iters})
        return replace(
            block,
            iters=iters,
            bindings=tuple([Var(a.loop) for a in axes]),
            body=map_exprs(substitute_stmt(block.body, values), simplify),
            init=None if block.init is None else map_exprs(substitute_stmt(block.init, values), simplify),
        )


def _check(func: Func, block: Block, p: LayoutPrimitive, axes: Sequence[DomainAxis]) -> None:
    """`p` is a one-to-one map of the domain that `axes` are, and mixes no kinds."""
    shape = tuple(a.extent for a in axes)
    wrong = p.misfit(shape)
    if wrong is not None:
        raise step_refusal(
            func,
            block,
            f"{p} does not fit a domain of {list(shape)}: {wrong}",
            hint="each primitive counts the iterators that the one before it leaves",
        )
    match p:
        case PadDim():
            raise step_refusal(
                func,
                block,
                f"{p} adds instances that the block does not have",
                hint="pad the buffers instead",
            )
        case CropDim() | UnfoldDim() | FoldDim():
            raise step_refusal(
                func,
                block,
                f"{p} is not one to one, and each instance of the block runs once",
                hint="lay the buffers out so instead",
            )
        case SplitDim() if axes[p.dim].extent % p.factor:
            raise step_refusal(
                func,
                block,
                f"{p}: {p.factor} does not divide {axes[p.dim].extent}, the extent of {axes[p.dim].iter}",
                hint="split the loop, which makes a predicate, or partition it first",
            )
        case FuseDims():
            kinds = {a.kind: a.iter for a in axes[p.dim : p.dim + p.count]}
            if len(kinds) > 1:
                raise step_refusal(
                    func,
                    block,
                    f"{kinds[IterKind.SPATIAL]} is spatial and {kinds[IterKind.REDUCE]} is reduce, so the kind of the "
                    "fused iterator is not clear",
                    hint="fuse iterators of one kind",
                )
        case _:
            pass


def _apply(p: LayoutPrimitive, axes: Sequence[DomainAxis]) -> list[DomainAxis]:
    match p:
        case SplitDim():
            old = axes[p.dim]
            parts = [old.part("0", old.extent // p.factor), old.part("1", p.factor)]
            return [*axes[: p.dim], *parts, *axes[p.dim + 1 :]]
        case FuseDims():
            end = p.dim + p.count
            (extent,) = p.shape(tuple(a.extent for a in axes))[p.dim : p.dim + 1]
            fused = axes[p.dim].part("f", extent) if p.count > 1 else axes[p.dim]
            return [*axes[: p.dim], fused, *axes[end:]]
        case ReorderDims():
            return [axes[d] for d in p.order]
        case PadDim() | CropDim() | UnfoldDim() | FoldDim():
            raise AssertionError("refused before")


def _check_order(func: Func, block: Block, variables: Sequence[Var]) -> None:
    root = next(iter(own_nest(func, block).values()))
    conflict = order_dependence(func, root, variables)
    if conflict is not None:
        raise step_refusal(
            func,
            block,
            f"{conflict.other} uses elements of {conflict.buffer.name} that {conflict.writer} writes in another "
            "iteration, so its loops keep their order",
        )

"""fold_padding: a buffer gets the border that its readers want, and is no longer copied to get it.

    T[h, w] = …                                          T[h + 1, w + 1] = …
    P[h, w] = select(inside, T[h - 1, w - 1], 0)   ──>   T[…] = 0          on the border only, a block per side
    … = P[h + kh, w + kw]                                … = T[h + kh, w + kw]

`T` is a buffer between kernels; whoever else reads or writes it is shifted. Block `P` is a copy of `T` into
the middle of a larger buffer of one constant: all-spatial, alone under its loops, and the only writer of
`P`. What lies outside `inside` is filled by blocks in P's place, so the border is right whenever the
readers of `P` run, whatever was in that memory before. So blocks of `others` may pad the same buffer, with constants of
their own in other Funcs: the border is as wide as any of them wants it, and each fills what it reads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir.condition import conjuncts
from tilewright.ir.expr import (
    TRUE,
    Buffer,
    Const,
    Expr,
    Indices,
    Load,
    Select,
    Var,
    as_index,
)
from tilewright.ir.layout import Layout, PadDim
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_block
from tilewright.schedule.own_nest import own_nest
from tilewright.schedule.step import Step
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func, Module
from tilewright.tir.rewrite import redirect
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, For, Iter, Seq, Stmt, Store, blocks, seq


@dataclass(frozen=True, slots=True)
class Padding:
    """What a padding block does: `source` goes into the middle, `value` around it. Behind an open dimension, `after`
    begins where the dimension ends when the program runs, and is what the largest of all sizes needs.
    """

    source: Buffer
    before: tuple[int, ...]
    after: tuple[int, ...]
    value: Const


@dataclass(frozen=True, slots=True)
class FoldPadding(Step):
    block: str
    others: tuple[str, ...] = ()  # blocks that pad the same buffer

    def apply(self, module: Module) -> Module:
        names = (self.block, *self.others)
        found = {name: self._padding(module, name) for name in names}
        if len(found) < len(names) or len({p.source for p in found.values()}) > 1:
            raise ScheduleError(f"{self}: the blocks do not pad the same buffer, each of them once")
        values: dict[str, Const] = {}
        for name, padding in found.items():
            func = module.func_of_block(name)
            assert func is not None
            if values.setdefault(func.name, padding.value) is not padding.value:
                raise ScheduleError(
                    f"{self}: {func.name} needs different constants around the buffer at once"
                )
        source = found[self.block].source
        before = [max(sizes) for sizes in zip(*(p.before for p in found.values()), strict=True)]
        after = [max(sizes) for sizes in zip(*(p.after for p in found.values()), strict=True)]
        primitives = tuple(
            PadDim(d, low, high)
            for d, (low, high) in enumerate(zip(before, after, strict=True))
            if low or high
        )
        module = TransformLayout(source.name, Layout(primitives)).apply(module)
        for name, padding in found.items():
            func = module.func_of_block(name)
            assert func is not None
            wide = next(p for p in func.params if p.name == source.name)
            offsets = tuple([most - own for most, own in zip(before, padding.before, strict=True)])
            module = module.with_func(_fill_instead(func, name, wide, padding, offsets))
        return module

    def _padding(self, module: Module, name: str) -> Padding:
        func = module.func_of_block(name)
        if func is None:
            raise ScheduleError(f"{self}: no block is named {name!r}")
        block = find_block(func, name)
        padding = try_padding(block)
        if padding is None:
            raise step_refusal(
                func, block, f"{self}: the block does not put one buffer into the middle of a constant"
            )
        try:
            own_nest(func, block)
        except ScheduleError as e:
            raise ScheduleError(f"{self}: {e.message}", where=e.where, hint=e.hint) from None
        if padding.source not in module.temps or block.store.buffer not in func.locals:
            raise step_refusal(func, block, f"{self}: {padding.source.name} is not a buffer between kernels")
        return padding


def try_padding(block: Block) -> Padding | None:
    """The block as select(inside, source[iterators - before], constant), stored at its iterators."""
    store = block.try_store
    if block.is_reduction or store is None or not isinstance(store.value, Select):
        return None
    inside, load, value = store.value.cond, store.value.a, store.value.b
    if not isinstance(load, Load) or not isinstance(value, Const) or len(load.indices) != len(store.indices):
        return None
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    before: list[int] = []
    after: list[int] = []
    wanted: set[Expr] = set()
    idle: set[Expr] = set()  # conditions that all places meet that anybody reads
    for at, index, outer, inner in zip(
        store.indices, load.indices, _extents(store.buffer), _extents(load.buffer), strict=True
    ):
        shift = simplify.constant(at - index)
        behind = None if shift is None else simplify.bounds(outer - shift - inner).hi
        if shift is None or shift < 0 or behind is None or behind == math.inf:
            return None
        before.append(shift)
        after.append(max(int(behind), 0))
        for bound, is_idle in ((as_index(shift) <= at, False), (at < inner + shift, behind <= 0)):
            simple = simplify(bound)
            if not isinstance(simple, Const):
                (idle if is_idle else wanted).add(simple)
    others = [i for i in store.indices if not isinstance(i, Var)]
    moving = {it.var for it in block.iters if it.extent > 1}
    if not moving <= set(store.indices) or any(simplify.constant(i) != 0 for i in others):
        return None
    given = {simplify(c) for c in conjuncts(inside)} - {TRUE}
    if not wanted <= given <= wanted | idle:
        return None
    return Padding(load.buffer, tuple(before), tuple(after), value)


def _extents(buffer: Buffer) -> tuple[Expr, ...]:
    """Of its dimensions, as far as they are in use."""
    sizes = buffer.sizes or (None,) * len(buffer.shape)
    return tuple(as_index(n) if size is None else size for n, size in zip(buffer.shape, sizes, strict=True))


def _fill_instead(func: Func, name: str, wide: Buffer, padding: Padding, offsets: tuple[int, ...]) -> Func:
    """Replace the padding block by blocks that fill the border of `wide`, and read that instead of the copy, whose
    first element it has at `offsets`.
    """
    block = find_block(func, name)
    copy = block.store.buffer
    sides = [
        _side(name, wide, copy.shape, padding, offsets, d, high)
        for d in range(len(wide.shape))
        for high in (False, True)
    ]
    filled = [s for s in sides if s is not None]

    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    kept: list[Stmt] = []
    for nest in nests:
        kept.extend(filled if any(b is block for b in blocks(nest)) else (nest,))
    body = _shifted(seq(*kept), copy, wide, offsets)
    outputs = (*func.outputs, *(() if wide in func.outputs else (wide,)))
    return replace(func, body=body, outputs=outputs, locals=tuple(b for b in func.locals if b is not copy))


def _shifted(body: Stmt, copy: Buffer, wide: Buffer, offsets: Sequence[int]) -> Stmt:
    """`body` with `wide` read instead of `copy`, whose first element it has at `offsets`."""
    simplify = Simplifier(ranges(body))

    def place(_: Buffer, indices: Indices) -> Indices:
        return tuple([simplify(i + o) for i, o in zip(indices, offsets, strict=True)])

    return redirect(body, {copy: wide}, place)


def _side(
    name: str,
    wide: Buffer,
    shape: Sequence[int],
    padding: Padding,
    offsets: Sequence[int],
    dim: int,
    high: bool,
) -> Stmt | None:
    """A nest that fills one side of dimension `dim` around what a copy of this shape would have: of earlier dimensions
    only the middle, so that sides do not meet.
    """
    width = padding.after[dim] if high else padding.before[dim]
    if width == 0:
        return None
    side = f"{name}_{'high' if high else 'low'}{dim}"
    starts, extents = list[Expr](), list[int]()
    inside = _extents(padding.source)
    for d, (size, offset) in enumerate(zip(shape, offsets, strict=True)):
        low = padding.before[d]
        middle = min(padding.source.shape[d], size - low)
        if d == dim:
            starts.append(inside[d] + (offset + low) if high else as_index(offset))
            extents.append(width)
        else:
            starts.append(as_index(offset + (low if d < dim else 0)))
            extents.append(middle if d < dim else size)
    iters = tuple(Iter(Var(f"{side}_v{d}"), e) for d, e in enumerate(extents))
    loops = tuple(Var(f"{side}_i{d}") for d in range(len(extents)))
    indices = tuple(it.var + start for it, start in zip(iters, starts, strict=True))
    nest: Stmt = Block(side, iters, loops, Store(wide, indices, padding.value))
    for var, it in zip(reversed(loops), reversed(iters), strict=True):
        nest = For(var, it.extent, nest)
    return nest

"""fold_padding: a buffer gets the border that its reader wants, and is no longer copied to get it.

    T[h, w] = …                                          T[h + 1, w + 1] = …
    P[h, w] = select(inside, T[h - 1, w - 1], 0)   ──>   T[…] = 0          on the border only, a block per
    side … = P[h + kh, w + kw]                                … = T[h + kh, w + kw]

`T` is a buffer between kernels; whoever else reads or writes it is shifted. Block `P` is a copy of `T` into
the middle of a larger buffer of one constant: all-spatial, alone under its loops, and the only writer of
`P`. What lies outside `inside` is filled by blocks in P's place, so the border is right whenever the
readers of `P` run, whatever was in that memory before.
"""

from dataclasses import dataclass, replace

from tilewright.ir.expr import TRUE, Buffer, Const, Expr, Load, Select, Var, as_index, conjuncts
from tilewright.ir.layout import Layout, Pad
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.excerpt import refusal
from tilewright.schedule.nest import find_block
from tilewright.schedule.own_nest import own_nest
from tilewright.schedule.step import Step
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func, Module
from tilewright.tir.rewrite import replace_buffers
from tilewright.tir.stmt import Block, For, Iter, Seq, Stmt, Store, blocks, seq


@dataclass(frozen=True, slots=True)
class Padding:
    """What a padding block does: `source` goes into the middle, `value` around it."""

    source: Buffer
    before: tuple[int, ...]
    after: tuple[int, ...]
    value: Const


@dataclass(frozen=True, slots=True)
class FoldPadding(Step):
    block: str

    def apply(self, module: Module) -> Module:
        func = module.func_of_block(self.block)
        if func is None:
            raise ScheduleError(f"{self}: no block is named {self.block!r}")
        block = find_block(func, self.block)
        padding = try_padding(block)
        if padding is None:
            raise refusal(
                func, block, f"{self}: the block does not put one buffer into the middle of a constant"
            )
        try:
            own_nest(func, block)
        except ScheduleError as e:
            raise ScheduleError(f"{self}: {e.message}", where=e.where, hint=e.hint) from None
        assert isinstance(block.body, Store)
        if padding.source not in module.temps or block.body.buffer not in func.locals:
            raise refusal(func, block, f"{self}: {padding.source.name} is not a buffer between kernels")
        primitives = tuple(
            Pad(d, low, high)
            for d, (low, high) in enumerate(zip(padding.before, padding.after, strict=True))
            if low or high
        )
        module = TransformLayout(padding.source.name, Layout(primitives)).apply(module)
        func = module.func(func.name)
        wide = next(p for p in func.params if p.name == padding.source.name)
        return module.with_func(_fill_instead(func, self.block, wide, padding))


def try_padding(block: Block) -> Padding | None:
    """The block as select(inside, source[iterators - before], constant), stored at its iterators."""
    store = block.body
    if block.is_reduction or not isinstance(store, Store) or not isinstance(store.value, Select):
        return None
    inside, load, value = store.value.cond, store.value.a, store.value.b
    if not isinstance(load, Load) or not isinstance(value, Const) or len(load.indices) != len(store.indices):
        return None
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    before: list[int] = []
    after: list[int] = []
    wanted: set[Expr] = set()
    for at, index, outer, inner in zip(
        store.indices, load.indices, store.buffer.shape, load.buffer.shape, strict=True
    ):
        shift = simplify.constant(at - index)
        if shift is None or shift < 0:
            return None
        before.append(shift)
        after.append(max(outer - shift - inner, 0))
        for bound in (as_index(shift) <= at, at < shift + inner):
            simple = simplify(bound)
            if not isinstance(simple, Const):
                wanted.add(simple)
    others = [i for i in store.indices if not isinstance(i, Var)]
    moving = {it.var for it in block.iters if it.extent > 1}
    if not moving <= set(store.indices) or any(simplify.constant(i) != 0 for i in others):
        return None
    given = {simplify(c) for c in conjuncts(inside)} - {TRUE}
    return Padding(load.buffer, tuple(before), tuple(after), value) if given == wanted else None


def _fill_instead(func: Func, name: str, wide: Buffer, padding: Padding) -> Func:
    """Replace the padding block by blocks that fill the border of `wide`, and read that instead of the
    copy.
    """
    block = find_block(func, name)
    assert isinstance(block.body, Store)
    copy = block.body.buffer
    sides = [_side(name, wide, padding, d, high) for d in range(len(wide.shape)) for high in (False, True)]
    filled = [s for s in sides if s is not None]

    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    kept: list[Stmt] = []
    for nest in nests:
        kept.extend(filled if any(b is block for b in blocks(nest)) else (nest,))
    # The copy may have been cut to what is read: the same positions exist in the wide buffer.
    body = replace_buffers(seq(*kept), {copy: wide})
    outputs = (*func.outputs, *(() if wide in func.outputs else (wide,)))
    return replace(func, body=body, outputs=outputs, locals=tuple(b for b in func.locals if b is not copy))


def _side(name: str, wide: Buffer, padding: Padding, dim: int, high: bool) -> Stmt | None:
    """A nest that fills one side of dimension `dim`: of earlier dimensions only the middle, so that sides
    do not meet.
    """
    width = padding.after[dim] if high else padding.before[dim]
    if width == 0:
        return None
    side = f"{name}_{'high' if high else 'low'}{dim}"
    starts, extents = list[int](), list[int]()
    for d, size in enumerate(wide.shape):
        low, middle = padding.before[d], size - padding.before[d] - padding.after[d]
        if d == dim:
            starts.append(low + middle if high else 0)
            extents.append(width)
        else:
            starts.append(low if d < dim else 0)
            extents.append(middle if d < dim else size)
    iters = tuple(Iter(Var(f"{side}_v{d}"), e) for d, e in enumerate(extents))
    loops = tuple(Var(f"{side}_i{d}") for d in range(len(extents)))
    indices = tuple(it.var + start for it, start in zip(iters, starts, strict=True))
    nest: Stmt = Block(side, iters, loops, Store(wide, indices, padding.value))
    for var, it in zip(reversed(loops), reversed(iters), strict=True):
        nest = For(var, it.extent, nest)
    return nest

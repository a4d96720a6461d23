"""Buffers that are copied to overlapping tiles: how a layout with UnfoldDim is made of what a program computes.

    T[h] = …                         T_folded[h] = …
    Y[o] += T[2·o + r] * W[r]   ──>  T[t, b] = T_folded[8·t + b]             block T_unfold, over the tiles
                                     Y[o] += T[o // 4, 2·(o % 4) + r] * W[r]

An element has a place in each tile that it is in, and all of them must be filled. If its producer did so, it would have
to find these places and to store to each under a condition, or to run over the tiles and compute the element once for
each. A copy is exact whatever the producer is (a reduction, several blocks), and leaves it alone; where recomputing
is cheaper, or the producer only moves data (padding), ComputeInline puts it into the copy afterwards.

The copy comes right after the last statement that writes the buffer. What reads it before or in that statement (an
accumulator) reads what is not in tiles; what reads it afterwards, in this Func and others, reads tiles. All that is
copied must have been written, so a buffer is unfolded before it is padded.
"""

from collections.abc import Iterable
from dataclasses import replace

from tilewright.ir.expr import Buffer, Expr, Indices, Var, const, select
from tilewright.ir.layout import Layout
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.cover import made_before
from tilewright.schedule.find import accesses_of, top_level
from tilewright.schedule.names import check_fresh
from tilewright.schedule.own_nest import under_own_loops
from tilewright.schedule.step import Step
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func, Module
from tilewright.tir.rewrite import redirect
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, Iter, Stmt, Store, seq
from tilewright.tir.touched import touched


def copied_to_tiles(
    step: Step, module: Module, buffer: Buffer, layout: Layout, *, folded: str, copy: str
) -> Module:
    """The Module with a block `copy` that copies `buffer`, which is called `folded` now, to where the layout has it.
    `step` wants that.
    """
    writer = _only_writer(step, module, buffer)
    tiles = layout.buffer(buffer)
    plain = Buffer(folded, buffer.shape, buffer.dtype, buffer.scope, buffer.sizes)
    stmts = top_level(writer)
    last = max(n for n, s in enumerate(stmts) if buffer in touched(s).writes)
    readers = [f for f in module.users(buffer) if f is not writer]
    reading: list[Stmt] = [*(f.body for f in readers), *stmts[last + 1 :]]
    if not any(buffer in touched(s).reads for s in reading):
        raise ScheduleError(
            f"{step}: nothing reads {buffer.name} after the nest that writes it, so nothing would read tiles",
            where=repr(buffer),
            hint="unfold a buffer before its readers are moved to where it is computed",
        )
    names = [folded, copy, *(f"{copy}_{kind}{d}" for kind in "iv" for d in range(len(tiles.shape)))]
    if module.buffer(folded) is not None or module.func_of_block(copy) is not None:
        raise ScheduleError(f"{step}: the new name {folded!r} or {copy!r} is taken")
    check_fresh(writer, names)
    nest = under_own_loops(_copy(copy, plain, tiles, layout))
    simplify = Simplifier(ranges(writer.body))
    after = _in_tiles(step, stmts[last + 1 :], simplify, buffer, tiles, layout)
    before = [redirect(s, {buffer: plain}) for s in stmts[: last + 1]]
    _check_written(step, writer, before, plain, buffer)
    body = seq(*before, nest, *after)

    def swap(buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple([tiles if b is buffer else b for b in buffers])

    made = replace(
        writer,
        params=swap(writer.params),
        locals=(*swap(writer.locals), plain),
        outputs=swap(writer.outputs),
        body=body,
    )
    changed = {writer.name: made}
    for f in readers:
        (inside,) = _in_tiles(step, (f.body,), Simplifier(ranges(f.body)), buffer, tiles, layout)
        changed[f.name] = replace(f, params=swap(f.params), body=inside)
    return module.with_funcs(changed, temps={buffer: tiles})


def check_kept(step: Step, body: Stmt, simplify: Simplifier, buffer: Buffer, layout: Layout) -> None:
    """Whatever `body` does with the buffer, it does with elements that have a place under the layout."""
    for indices in accesses_of(body, buffer):
        if not layout.keeps(buffer.shape, indices, simplify):
            raise ScheduleError(
                f"{step}: an access is not known to be of elements of {buffer.name} that have a place",
                where=repr(buffer),
                hint="what the layout cuts off, or leaves out between tiles, nobody may use",
            )


def _only_writer(step: Step, module: Module, buffer: Buffer) -> Func:
    users = module.users(buffer)
    writers = [f for f in users if buffer in touched(f.body).writes]
    if len(writers) != 1:
        raise ScheduleError(
            f"{step}: {len(writers)} kernels write {buffer.name}, and one must, to copy what it has made",
            where=repr(buffer),
            hint="JoinFuncs makes one kernel of two",
        )
    if buffer in module.temps and not module.is_sequence:
        raise ScheduleError(
            f"{step}: the program is not a sequence, so {buffer.name} may be kept from one run of a kernel to the next",
            where=repr(buffer),
            hint="CacheRead makes a copy in the kernel that reads it",
        )
    return writers[0]


def _check_written(step: Step, writer: Func, before: Iterable[Stmt], plain: Buffer, buffer: Buffer) -> None:
    """All elements have been written: asked of a copy of all, as conditions of the one that is made may hide some."""
    name = f"{plain.name}_whole"
    whole = Buffer(name, plain.shape, plain.dtype, plain.scope, plain.sizes)
    nest = under_own_loops(_copy(name, plain, whole, Layout()))
    verdict = made_before(writer.with_body(seq(*before, nest)), name, plain)
    if verdict.is_broken:
        raise ScheduleError(
            f"{step}: elements of {buffer.name} would be copied that nobody writes: {verdict.reason}",
            where=repr(buffer),
            hint="unfold a buffer before its layout is padded",
        )


def _copy(name: str, source: Buffer, target: Buffer, layout: Layout) -> Block:
    """A block that fills all of `target`; what has no element is zero."""
    iters = tuple([Iter(Var(f"{name}_v{d}"), n) for d, n in enumerate(target.shape)])
    places = tuple([it.var for it in iters])
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in iters})
    indices, inside = layout.inverse(source.shape, places)
    element: Expr = source[tuple([simplify(i) for i in indices])]
    value = select(simplify(inside), element, const(0, source.dtype))
    return Block(
        name, iters, tuple(Var(f"{name}_i{d}") for d in range(len(iters))), Store(target, places, value)
    )


def _in_tiles(
    step: Step, stmts: Iterable[Stmt], simplify: Simplifier, buffer: Buffer, tiles: Buffer, layout: Layout
) -> list[Stmt]:
    """The statements with `buffer` read from tiles."""

    def place(_: Buffer, indices: Indices) -> Indices:
        return tuple([simplify(i) for i in layout.forward(buffer.shape, indices, simplify)])

    found: list[Stmt] = []
    for s in stmts:
        check_kept(step, s, simplify, buffer, layout)
        found.append(redirect(s, {buffer: tiles}, place))
    return found

"""store_at: what a block copies into a part of another buffer is stored there in the first place.

    T[c, h] = …                                                   U[c, h] = …
    … = T[c, h]                          StoreAt("cat", "T")      … = U[c, h]
    U[c, h] = select(c < 8, T[c, h], V[c - 8, h])     ──>         U[c + 8, h] = V[c, h]     block cat_high

`T` and `U` are buffers between kernels. `cat` is all-spatial and alone under its loops; in one dimension it copies all
of `T` to a part of `U` that nobody else writes, and elsewhere nothing of it. What it stores before and after that piece
is left to blocks `cat_low` and `cat_high`; a Func in which nothing is left goes, with its call.

No other kernel may touch both: it would read and write one buffer, and steps tell buffers apart, not parts of them.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from tilewright.ir.expr import Buffer, Expr, Indices, Load, Var, loads
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_block
from tilewright.schedule.own_nest import own_nest, under_own_loops
from tilewright.schedule.step import Step
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func, Module
from tilewright.tir.rewrite import redirect
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, Iter, Seq, Store, seq, walk_stmts


class Piece(NamedTuple):
    """Where a block puts a whole buffer: its first element is at `offsets` of the block's output. The iterations
    `start` … `stop`-1 of the block's iterator number `axis` do that, and no others.
    """

    offsets: tuple[int, ...]
    axis: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class StoreAt(Step):
    block: str
    buffer: str

    def apply(self, module: Module) -> Module:
        func = module.func_of_block(self.block)
        if func is None:
            raise ScheduleError(f"{self}: no block is named {self.block!r}")
        block = find_block(func, self.block)
        source = module.buffer(self.buffer)
        piece = None if source is None else try_piece(block, source)
        if source is None or source not in module.temps or piece is None:
            raise step_refusal(
                func,
                block,
                f"{self}: the block does not copy {self.buffer!r}, a whole buffer between kernels",
            )
        try:
            own_nest(func, block)
        except ScheduleError as e:
            raise ScheduleError(f"{self}: {e.message}", where=e.where, hint=e.hint) from None
        whole = block.store.buffer
        reason = _conflict(module, func, source, whole, piece.offsets)
        if reason is not None:
            raise step_refusal(func, block, f"{self}: {reason}")
        rest = _without_piece(func, block, piece)
        gone = [func.name] if rest.body == Seq(()) else []
        left = [rest if f is func else f for f in module.users(source) if f.name not in gone]
        changed = {f.name: _moved(f, source, whole, piece.offsets) for f in left}
        return module.with_funcs(
            changed,
            without=gone,
            temps={source: None},
        )


def try_piece(block: Block, source: Buffer) -> Piece | None:
    """Where the block puts `source`, if it copies all of it, in one dimension to a part of its output, and does
    nothing else with it.
    """
    store = block.try_store
    if block.is_reduction or store is None or len(source.shape) != len(store.indices):
        return None
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    shifts = {
        tuple([simplify.constant(i - j) for i, j in zip(store.indices, ld.indices, strict=True)])
        for ld in loads(store.value)
        if ld.buffer is source
    }
    if len(shifts) != 1:
        return None
    offsets = tuple([o for o in shifts.pop() if o is not None])
    if len(offsets) != len(source.shape):
        return None
    numbers = {it.var: n for n, it in enumerate(block.iters)}
    pieces: list[Piece] = []
    for index, offset, size in zip(store.indices, offsets, source.shape, strict=True):
        form = simplify.linear(index)
        if form.terms:
            (atom, k), *others = form.terms
            n = numbers.pop(atom, None) if isinstance(atom, Var) else None
            if n is None or k != 1 or others:
                return None
            pieces.append(Piece(offsets, n, offset - form.const, offset - form.const + size))
        elif (offset, size) != (form.const, 1):
            return None
    cut = [p for p in pieces if (p.start, p.stop) != (0, block.iters[p.axis].extent)]
    if not pieces or len(cut) > 1 or any(block.iters[n].extent > 1 for n in numbers.values()):
        return None
    piece = (cut or pieces)[0]
    if piece.start < 0 or piece.stop > block.iters[piece.axis].extent:
        return None
    inside = _value(block, piece.axis, piece.start, piece.stop)
    copies = isinstance(inside, Load) and inside.buffer is source
    elsewhere = [ld.buffer for r in _rest(block, piece) for ld in loads(_value(block, piece.axis, *r))]
    return piece if copies and source not in elsewhere else None


def _conflict(
    module: Module, func: Func, source: Buffer, whole: Buffer, offsets: tuple[int, ...]
) -> str | None:
    """Why `source` cannot be the part of `whole` at `offsets`, which `func` makes of it; None if it can."""
    if whole not in module.temps:
        return f"{whole.name} is not a buffer between kernels"
    if not module.is_sequence:
        return "the program is not a sequence of calls"
    if not module.outside.isdisjoint((source, whole)):
        return "external code uses one of the buffers"
    for f in module.users(whole):
        if f is not func and source in f.params:
            return f"{f.name} uses both {source.name} and {whole.name}"
        if f is not func and whole in f.outputs and _writes(f, whole, offsets, source.shape):
            return f"{f.name} writes there too"
    return None


def _writes(func: Func, buffer: Buffer, offsets: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """May the Func write to a box of the buffer?"""
    simplify = Simplifier(ranges(func.body))
    for s in walk_stmts(func.body):
        if isinstance(s, Store) and s.buffer is buffer:
            bounds = map(simplify.bounds, s.indices)
            if all(b.lo < o + n and o <= b.hi for b, o, n in zip(bounds, offsets, shape, strict=True)):
                return True
    return False


def _rest(block: Block, piece: Piece) -> list[tuple[int, int]]:
    """The iterations before and after the piece."""
    sides = [(0, piece.start), (piece.stop, block.iters[piece.axis].extent)]
    return [(start, stop) for start, stop in sides if start < stop]


def _value(block: Block, axis: int, start: int, stop: int) -> Expr:
    """What the block stores in some iterations of its iterator number `axis`."""
    known = {it.var: Interval(0, it.extent - 1) for it in block.iters}
    return Simplifier(known | {block.iters[axis].var: Interval(start, stop - 1)})(block.store.value)


def _without_piece(func: Func, block: Block, piece: Piece) -> Func:
    """The Func with blocks for what is left of `block`."""
    top = next(iter(own_nest(func, block).values()))
    sides = [
        under_own_loops(_side(block, "high" if start else "low", piece.axis, start, stop))
        for start, stop in _rest(block, piece)
    ]
    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    return func.with_body(seq(*(s for n in nests for s in (sides if n is top else (n,)))))


def _side(block: Block, side: str, axis: int, start: int, stop: int) -> Block:
    """The block over some iterations of its iterator number `axis`."""
    iters = tuple(
        Iter(Var(f"{it.var.name}_{side}"), stop - start if n == axis else it.extent)
        for n, it in enumerate(block.iters)
    )
    new: dict[Var, Expr] = {old.var: it.var for old, it in zip(block.iters, iters, strict=True)}
    new[block.iters[axis].var] = iters[axis].var + start
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in iters})
    value = substitute(_value(block, axis, start, stop), new)
    indices = tuple([simplify(substitute(i, new)) for i in block.store.indices])
    loops = tuple(Var(f"{b.name}_{side}") for b in block.bindings if isinstance(b, Var))
    return Block(f"{block.name}_{side}", iters, loops, Store(block.store.buffer, indices, simplify(value)))


def _moved(func: Func, source: Buffer, whole: Buffer, offsets: tuple[int, ...]) -> Func:
    """The Func with `source` as a part of `whole`."""
    if source not in func.params:
        return func
    simplify = Simplifier(ranges(func.body))

    def place(_: Buffer, indices: Indices) -> Indices:
        return tuple([simplify(i + offset) for i, offset in zip(indices, offsets, strict=True)])

    def swap(buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(dict.fromkeys(whole if b is source else b for b in buffers))

    body = redirect(func.body, {source: whole}, place)
    return replace(func, body=body, params=swap(func.params), outputs=swap(func.outputs))

"""rolling_update: reductions over one axis that depend on each other take it up chunk by chunk, and repair what they
have when the results change that it was computed with.

    for r, j: X[r, j] = …                                 for r: M_run[0, r] = -inf
    for r, j: M[r] = max(M[r], X[r, j])                   for c in range(2):
    for r, j: P[r, j] = exp(X[r, j] - M[r])                   for r, j: X[r, c * 4 + j] = …
    for r, j: T[r] += P[r, j]                    ──>          for r, j: M_part[c, r] = max(M_part[c, r], X[…])
    for r, d, j: Y[r, d] += P[r, j] * V[j, d]                 for r: M_run[c + 1, r] = max(M_run[c, r], M_part[c, r])
                                                              for r: M_used[c, r] = M_run[c + 1, r], or 0 if -inf
        RollingUpdate("Y", 4)                                 for r: M_change[c, r] = exp(M_run[c, r] - M_used[c, r])
                                                              for r, j: P[r, c * 4 + j] = exp(X[…] - M_used[c, r])
                                                              for r, j: T_part[c, r] += P[r, c * 4 + j]
                                                              for r: T[r] = T[r] * M_change[c, r] + T_part[c, r]
                                                              for r, d:
                                                                  for j: Y_part[c, r, d] += P[…] * V[c * 4 + j, d]
                                                                  Y[r, d] = Y[r, d] * M_change[c, r] + Y_part[c, r, d]

So what is between the reductions can stay near, however long the axis is. Which reductions there are, and how they are
repaired, is found by algebra (`schedule/reduction_chain.py`, `gir/repair.py`): this is online softmax, attention,
a variance in one pass, an arg-max with its maximum. `Y` names the last reduction; the loop over chunks is `Y_chunks`.
Partial results are those of block and buffer `<name>_part`; the block of the old name has the results so far, which
are in `<name>_run` where others depend on them. What is left behind the last whole chunk comes after the loop; names
there have the suffix `_rest`. Sums round differently; that is why it is a step.

A result so far may be none that values can be computed with: a maximum of nothing is -inf. Another is used in its
place, and that changes nothing: what was combined with it is repaired. In the last chunk the result is that of all,
and is used as it is: rows of nothing but -inf are NaN where they were.

With `skip`, a chunk that no row of the nest sees is left out: X is -inf there (or a number below all others), by a
comparison of the axis and a row. Nothing changes in such a chunk, unless V is not finite: 0 · NaN is NaN.

Preconditions: those of `find_chain`. The loop over the axis of Y is its innermost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.gir.repair import Recentre, Scale, Shift
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Buffer,
    Expr,
    Fma,
    Load,
    Unary,
    UnaryOp,
    Var,
    as_index,
    binary,
    cast,
    const,
    equal,
    free_vars,
    loads,
    maximum,
    select,
    unary,
)
from tilewright.ir.rewrite import replace_loads, substitute, transform
from tilewright.schedule.edit import replace_nest, swap_stmt, wrap
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.hidden import is_seen
from tilewright.schedule.names import bound_names, check_fresh
from tilewright.schedule.reduction_chain import (
    AxisNest,
    ReductionChain,
    RollingFold,
    find_chain,
    is_divisor,
    is_extreme,
)
from tilewright.schedule.step import BlockStep
from tilewright.tir.func import Func
from tilewright.tir.rename import rename
from tilewright.tir.rewrite import substitute_stmt
from tilewright.tir.stmt import Block, For, If, Iter, IterKind, Stmt, Store, blocks, seq
from tilewright.tir.touched import touched


@dataclass(frozen=True, slots=True)
class RollingUpdate(BlockStep):
    size: int
    skip: bool = False  # chunks that no row of the nest sees

    @property
    def loop(self) -> str:
        """The loop over chunks."""
        return f"{self.block}_chunks"

    @property
    def part(self) -> str:
        """The block that reduces one chunk, and its buffer."""
        return f"{self.block}_part"

    def rewrite(self, func: Func) -> Func:
        chain = find_chain(func, self.block)
        if not 0 < self.size < chain.extent:
            raise step_refusal(
                func, chain.nests[-1].block, f"{self.size} are no part of {chain.extent} elements"
            )
        return _Rewriting(func, chain, self).run()


class _Rewriting:
    """Makes the new sequence. What all chunks use is here."""

    def __init__(self, func: Func, chain: ReductionChain, step: RollingUpdate) -> None:
        self.func, self.chain, self.step = func, chain, step
        self.full, self.rest = divmod(chain.extent, step.size)
        self.count = self.full + (self.rest > 0)
        self.made: dict[str, Buffer] = {}
        for b, fold in chain.folds.items():
            self.buffer(fold.nest, "part", self.count)
            if b in chain.results:
                self.buffer(fold.nest, "run", self.count + 1)
                self.buffer(fold.nest, "used", self.count)
            if isinstance(fold.repair, Recentre):
                self.buffer(fold.nest, "moved", self.count)
                self.buffer(fold.nest, "around", 0)
                self.buffer(fold.nest, "around_part", self.count)

    def buffer(self, nest: AxisNest, suffix: str, count: int) -> Buffer:
        """A buffer with elements like those that the nest makes, for each of `count` chunks, or for all."""
        name, old = f"{nest.block.name}_{suffix}", nest.out
        shape = (count, *old.shape) if count else old.shape
        scope = old.scope if old in self.func.locals else Buffer(name, shape, old.dtype).scope
        return self.made.setdefault(name, Buffer(name, shape, old.dtype, scope))

    def run(self) -> Func:
        chain, loop = self.chain, Var(self.step.loop)
        nests = [self._start(f) for f in chain.folds.values() if self._is_followed(f)]
        body = _Chunk(self, self.step.size, loop).body()
        nests.append(For(loop, self.full, body))
        if self.rest:
            nests.append(rename(_Chunk(self, self.rest, None).body(), "_rest"))
        ends = [self._end(f) for b, f in chain.folds.items() if b in chain.results and self._is_read(b)]
        if ends and self.step.skip:
            raise step_refusal(self.func, chain.around, "a result that others read may be one of few chunks")
        new = seq(*chain.before, *nests, *ends, *chain.after)
        made = set(self.made)
        check_fresh(self.func, (bound_names(new) - bound_names(chain.around)) | made)
        kept = touched(new)
        local = [b for b in self.func.locals if b not in chain.made or kept.any_of((b,))]
        return replace(replace_nest(self.func, chain.around, new), locals=(*local, *self.made.values()))

    def _is_read(self, result: Buffer) -> bool:
        """Does anybody but the chain need it?"""
        own = {n.block.name for n in self.chain.nests}
        later = {b.name for s in self.chain.after for b in blocks(s)}
        readers = {b.name for b in blocks(self.func.body) if result in touched(b).reads} - own
        inlined = {b.name for b in self.chain.rows.values()} - later
        return result not in self.func.locals or bool(readers - inlined)

    def _start(self, fold: RollingFold) -> Stmt:
        name, at = fold.nest.block.name, fold.nest.store.indices
        if isinstance(fold.repair, Recentre):
            store = Store(self.made[f"{name}_around"], at, fold.start)
        else:
            store = Store(self.made[f"{name}_run"], (as_index(0), *at), fold.start)
        return self._of_row(fold, store, "_start")

    def _is_followed(self, fold: RollingFold) -> bool:
        return fold.nest.out in self.chain.results or isinstance(fold.repair, Recentre)

    def _end(self, fold: RollingFold) -> Stmt:
        store = fold.nest.store
        last = Load(self.made[f"{fold.nest.block.name}_run"], (as_index(self.count), *store.indices))
        return self._of_row(fold, replace(store, value=last), "_end")

    @staticmethod
    def _of_row(fold: RollingFold, store: Store, suffix: str) -> Stmt:
        return rename(wrap(fold.nest.row_loops, _without_axis(fold.nest, store)), suffix)


class _Chunk:
    """What happens to chunks of `size` elements: all in the loop `loop`, or the last."""

    def __init__(self, of: _Rewriting, size: int, loop: Var | None) -> None:
        self._of, self._chain = of, of.chain
        self._size, self._loop = size, loop
        self._changes: dict[tuple[Buffer, Expr], Buffer] = {}
        self._ready: set[Buffer] = set()  # the results whose values of this chunk are there

    def body(self) -> Stmt:
        chain = self._chain
        inside: list[Stmt] = []
        done: set[int] = set()
        for n in chain.nests:
            if n.is_fold:
                inside += self._fold(chain.folds[n.out], is_last=n is chain.nests[-1])
            elif n.out in chain.following:
                inside.append(wrap(self._loops(n), self._by_chunks(n, n.store, None)))
            elif id(n.stmt) not in done:
                done.add(id(n.stmt))
                inside.append(self._cut(n))
        body = seq(*inside)
        if not self._of.step.skip:
            return body
        start = self._loop * self._of.step.size if self._loop is not None else as_index(self._start_of_rest)
        return If(is_seen(self._of.func, chain, start, self._loop), body)

    # ------------------------------------------------------------------------------------------------------ places

    @property
    def _start_of_rest(self) -> int:
        return self._of.full * self._of.step.size

    def _chunk(self, nest: AxisNest) -> Expr:
        """Which chunk it is, inside of the nest's block."""
        return as_index(self._of.full) if self._loop is None else Var(f"{nest.block.name}_vchunk")

    def _over(self, nest: AxisNest, kind: IterKind) -> tuple[tuple[Iter, ...], tuple[Expr, ...]]:
        """The iterator over chunks and its binding, if there is one."""
        if self._loop is None:
            return (), ()
        return (Iter(Var(f"{nest.block.name}_vchunk"), self._of.full, kind),), (self._loop,)

    def _made(self, buffer: Buffer, suffix: str) -> Buffer:
        return self._of.made[f"{self._chain.folds[buffer].nest.block.name}_{suffix}"]

    # ---------------------------------------------------------------------------------------------- along the axis

    def _cut(self, nest: AxisNest) -> Stmt:
        """What stands in one statement with the nest, for a chunk."""
        chunk = as_index(self._of.full) if self._loop is None else self._loop
        place = chunk * self._of.step.size + nest.loop.var
        body = substitute_stmt(nest.loop.body, {nest.loop.var: place})
        return swap_stmt(nest.stmt, nest.loop, replace(nest.loop, extent=self._size, body=body))

    def _loops(self, nest: AxisNest) -> list[For]:
        return [replace(n, extent=self._size) if n is nest.loop else n for n in nest.loops]

    def _by_chunks(self, nest: AxisNest, body: Store, init: Store | None) -> Block:
        """The block with one iterator over chunks and one inside of them, and results so far where it reads them."""
        iters, bindings = self._over(nest, IterKind.SPATIAL)
        chunk = self._chunk(nest)
        kept = [self._of_chunk(it, chunk) if it is nest.axis else it for it in nest.block.iters]
        inside = chunk * self._of.step.size + nest.axis.var
        value = self._now(body.value, nest.axis.var, chunk)
        return replace(
            nest.block,
            iters=(*kept, *iters),
            bindings=(*nest.block.bindings, *bindings),
            body=substitute_stmt(replace(body, value=value), {nest.axis.var: inside}),
            init=init,
        )

    def _of_chunk(self, it: Iter, chunk: Expr) -> Iter:
        """The iterator over elements of a chunk."""
        size = None if it.size is None else it.size - chunk * self._of.step.size
        return Iter(it.var, self._size, it.kind, size)

    def _now(self, e: Expr, axis: Var, chunk: Expr) -> Expr:
        """With results so far in place of results."""
        chain, results = self._chain, self._chain.results

        def promised(n: Expr) -> Expr | None:
            """That an argument is not positive holds of a result so far if it is that of the same elements."""
            if not isinstance(n, Unary) or n.op is not UnaryOp.EXP_NONPOSITIVE:
                return None
            read = [ld for ld in loads(n.a) if ld.buffer in results]
            match n.a:
                case Binary(op=BinaryOp.SUB, a=a, b=Load() as m) if read == [m]:
                    is_same = chain.folded_at(m, axis) is a
                case _:
                    is_same = not read
            return None if is_same else unary(UnaryOp.EXP, n.a)

        e = transform(chain.opened(e, chain.following & set(chain.rows)), promised)
        return replace_loads(e, lambda ld: self._used(ld, chunk), {})

    def _used(self, ld: Load, chunk: Expr) -> Expr | None:
        return (
            Load(self._made(ld.buffer, "used"), (chunk, *ld.indices))
            if ld.buffer in self._chain.results
            else None
        )

    # ------------------------------------------------------------------------------------------------------- folds

    def _fold(self, fold: RollingFold, *, is_last: bool) -> list[Stmt]:
        nest, chunk = fold.nest, self._chunk(fold.nest)
        part = self._partial(nest, "part", nest.store.value)
        repaired, before = self._repaired(fold)
        taken = _combined(fold, repaired, Load(self._made(nest.out, "part"), (chunk, *nest.store.indices)))
        if is_last and nest.out not in self._chain.results and not isinstance(fold.repair, Recentre):
            summed = replace(nest.loop, extent=self._size, body=part)
            return [*before, wrap(nest.loops[:-1], seq(summed, self._updated(fold, taken)))]
        out: list[Stmt] = [*before, wrap(self._loops(nest), part)]
        if nest.out not in self._chain.results:
            out.append(self._of_row(nest, self._updated(fold, taken), "_run"))
        else:
            run = Store(self._made(nest.out, "run"), (chunk + 1, *nest.store.indices), taken)
            out.append(self._of_row(nest, self._row_block(nest, run), "_run"))
            used = Store(
                self._made(nest.out, "used"), (chunk, *nest.store.indices), self._usable(fold, chunk)
            )
            out.append(rename(wrap(nest.row_loops, self._row_block(nest, used)), "_used"))
            self._ready.add(nest.out)
            out += self._possible_changes()
        if isinstance(fold.repair, Recentre):
            out += self._take_up_around(fold, fold.repair)
        return out

    def _possible_changes(self) -> list[Stmt]:
        """By what rows change, as soon as the results are there that it depends on."""
        out: list[Stmt] = []
        for fold in self._chain.folds.values():
            if isinstance(fold.repair, Scale | Shift):
                needed = {ld.buffer for ld in loads(fold.repair.row) if ld.buffer in self._chain.results}
                out += self._change(fold, fold.repair)[1] if needed <= self._ready else []
        return out

    def _partial(self, nest: AxisNest, suffix: str, value: Expr) -> Block:
        """A reduction of one chunk."""
        store, init = nest.store, nest.block.init
        assert isinstance(init, Store)
        place = Load(self._made(nest.out, suffix), (self._chunk(nest), *store.indices))
        old = Load(store.buffer, store.indices)
        value = transform(value, lambda e: place if e is old else None)
        body, start = (Store(place.buffer, place.indices, v) for v in (value, init.value))
        made = rename(self._by_chunks(nest, body, start), f"_{suffix}")
        assert isinstance(made, Block)
        return made

    def _updated(self, fold: RollingFold, value: Expr) -> Block:
        """The result so far, in its own place."""
        nest = fold.nest
        body = replace(nest.store, value=value)
        if self._loop is None:
            return self._row_block(nest, body)
        return replace(self._row_block(nest, body, IterKind.REDUCE), init=nest.block.init)

    def _so_far(self, fold: RollingFold) -> Load:
        nest = fold.nest
        if nest.out not in self._chain.results:
            return Load(nest.out, nest.store.indices)
        return Load(self._made(nest.out, "run"), (self._chunk(nest), *nest.store.indices))

    def _usable(self, fold: RollingFold, chunk: Expr) -> Expr:
        """The result so far, or a number that values can be computed with. What was summed up stands for all."""
        run = Load(self._made(fold.nest.out, "run"), (chunk + 1, *fold.nest.store.indices))
        if self._loop is None or not run.dtype.is_float:
            return run
        used: Expr = run
        if fold.combine is BinaryOp.ADD:
            share = const(self._chain.extent, run.dtype) / cast(run.dtype, (chunk + 1) * self._size)
            used = run * share
        if is_extreme(fold):
            used = select(equal(run, fold.start), const(0, run.dtype), run)
        elif is_divisor(self._chain, fold.nest.out):
            used = select(equal(used, const(0, run.dtype)), const(1, run.dtype), used)
        if self._of.rest or used is run:
            return used
        return select(equal(chunk, self._of.full - 1), run, used)

    # ----------------------------------------------------------------------------------------------------- repairs

    def _repaired(self, fold: RollingFold) -> tuple[Expr, list[Stmt]]:
        """The result so far as it is with the new results, and what has to be computed for that."""
        repair, so_far = fold.repair, self._so_far(fold)
        if repair is None:
            return so_far, []
        nest, chunk = fold.nest, self._chunk(fold.nest)
        if isinstance(repair, Scale | Shift):
            change, _ = self._change(fold, repair)
            return (so_far * change if isinstance(repair, Scale) else so_far + change), []
        old, new = self._old(chunk), self._new(chunk)
        if not isinstance(repair, Recentre):
            return repair.repaired(so_far, old, new), []
        moved = Load(self._made(nest.out, "moved"), (chunk, *nest.store.indices))
        around = Load(self._made(nest.out, "around"), nest.store.indices)
        count = cast(so_far.dtype, chunk * self._of.step.size)
        value = Store(moved.buffer, moved.indices, repair.change(old, new))
        before = [rename(wrap(nest.row_loops, self._row_block(nest, value)), "_moved")]
        return repair.repaired(so_far, around, moved, count)[0], before

    def _take_up_around(self, fold: RollingFold, repair: Recentre) -> list[Stmt]:
        """The sum of what is squared, after the squares have been moved by that so far."""
        nest, chunk = fold.nest, self._chunk(fold.nest)
        around = Load(self._made(nest.out, "around"), nest.store.indices)
        moved = Load(self._made(nest.out, "moved"), (chunk, *nest.store.indices))
        part = Load(self._made(nest.out, "around_part"), (chunk, *nest.store.indices))
        so_far = Load(nest.out, nest.store.indices)
        summed = self._partial(nest, "around_part", so_far + repair.around)
        count = cast(around.dtype, chunk * self._of.step.size)
        value = repair.repaired(so_far, around, moved, count)[1] + part
        updated = self._row_block(nest, Store(around.buffer, around.indices, value), IterKind.REDUCE)
        loops = [replace(n, extent=self._size) if n is nest.loop else n for n in nest.loops]
        apart = rename(wrap(loops, replace(summed, name=nest.block.name)), "_around_part")
        return [apart, rename(wrap(nest.row_loops, updated), "_around")]

    def _change(self, fold: RollingFold, repair: Scale | Shift) -> tuple[Load, list[Stmt]]:
        """By what results of a row change, computed once for all folds that change so."""
        read = next(ld for ld in loads(repair.row) if ld.buffer in self._chain.results)
        nest = self._chain.folds[read.buffer].nest
        names = dict[Var, Expr]()
        for i, own in zip(read.indices, nest.store.indices, strict=True):
            if isinstance(i, Var):
                names[i] = own
        row, chunk = substitute(repair.row, names), self._chunk(nest)
        own = {it.var for it in nest.block.iters}
        if not free_vars(row) <= own:
            raise step_refusal(
                self._of.func, fold.nest.block, f"{fold.nest.block.name} depends on results of several rows"
            )
        key = read.buffer, row
        before: list[Stmt] = []
        if key not in self._changes:
            number = len(self._changes) or ""
            made = self._changes[key] = self._of.buffer(nest, f"change{number}", self._of.count)
            change = type(repair)(row).change(
                self._old(chunk, is_scaled=isinstance(repair, Scale)), self._new(chunk)
            )
            store = Store(made, (chunk, *nest.store.indices), transform(change, self._falling))
            before = [rename(wrap(nest.row_loops, self._row_block(nest, store)), f"_change{number}")]
        place = (self._chunk(fold.nest), *read.indices)
        return Load(self._changes[key], place), before

    def _falling(self, e: Expr) -> Expr | None:
        """A maximum only grows, so powers of what it was over what it is are at most 1."""
        match e:
            case Unary(op=UnaryOp.EXP, a=Binary(op=BinaryOp.SUB, a=Load(buffer=old), b=Load(buffer=new))):
                tops = [b for b in self._chain.results if self._chain.folds[b].combine is BinaryOp.MAX]
                is_falling = (old, new) in [(self._made(b, "run"), self._made(b, "used")) for b in tops]
                return unary(UnaryOp.EXP_NONPOSITIVE, e.a) if is_falling else None
            case _:
                return None

    def _new(self, chunk: Expr) -> Callable[[Expr], Expr]:
        return lambda e: replace_loads(e, lambda ld: self._used(ld, chunk), {})

    def _old(self, chunk: Expr, *, is_scaled: bool = False) -> Callable[[Expr], Expr]:
        """The results that were used so far; in the first chunk, those that are. What is scaled by a power of an
        extreme was nothing as long as there was none: by the extreme itself, which is infinite then, it stays so.
        """

        def used(ld: Load) -> Expr | None:
            fold = self._chain.folds.get(ld.buffer)
            if fold is None or ld.buffer not in self._chain.results:
                return None
            if is_extreme(fold) and is_scaled:
                return Load(self._made(ld.buffer, "run"), (chunk, *ld.indices))
            before = maximum(chunk - 1, 0)
            return Load(self._made(ld.buffer, "used"), (before, *ld.indices))

        return lambda e: replace_loads(e, used, {})

    # -------------------------------------------------------------------------------------------------- along rows

    def _row_block(self, nest: AxisNest, body: Store, kind: IterKind = IterKind.SPATIAL) -> Block:
        """The block without the axis; with an iterator over chunks."""
        iters, bindings = self._over(nest, kind)
        made = _without_axis(nest, body)
        return replace(made, iters=(*made.iters, *iters), bindings=(*made.bindings, *bindings))

    @staticmethod
    def _of_row(nest: AxisNest, block: Block, suffix: str) -> Stmt:
        """The block under copies of the nest's loops over rows."""
        names: dict[Var, Expr] = {}
        copies: list[For] = []
        for n in nest.row_loops:
            names[n.var] = var = Var(f"{n.var.name}{suffix}")
            copies.append(replace(n, var=var))
        return wrap(copies, substitute_stmt(block, names))


def _without_axis(nest: AxisNest, body: Store) -> Block:
    bound: Sequence[tuple[Iter, Expr]] = [
        (it, b) for it, b in zip(nest.block.iters, nest.block.bindings, strict=True) if it is not nest.axis
    ]
    iters, bindings = tuple(it for it, _ in bound), tuple(b for _, b in bound)
    return replace(nest.block, iters=iters, bindings=bindings, body=body, init=None)


def _combined(fold: RollingFold, so_far: Expr, part: Expr) -> Expr:
    """A product is added with one rounding, as contractions do."""
    match so_far:
        case Binary(op=BinaryOp.MUL, a=a, b=b) if fold.combine is BinaryOp.ADD and so_far.dtype.is_float:
            return Fma(a, b, part)
        case _:
            return binary(fold.combine, so_far, part)

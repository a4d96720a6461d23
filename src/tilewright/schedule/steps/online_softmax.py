"""online_softmax: a GEMM with the powers of a softmax takes keys up block by block, and scales what it has when a
larger score comes.

    for r, j: X[r, j] = …                                 for r: M[0, r] = -inf
    for r, j: M[r] = max(M[r], X[r, j])                   for b in range(2):
    for r, j: P[r, j] = exp(X[r, j] - M[r])                   for r, j: X[r, b * 4 + j] = …
    for r, j: T[r] += P[r, j]                    ──>          for r, j: M_part[b, r] = max(M_part[b, r], X[…])
    for r, d, j: Y[r, d] += P[r, j] * V[j, d]                 for r: M[b + 1, r] = max(M[b, r], M_part[b, r])
                                                              for r: M_base[b, r] = M[b + 1, r], or 0 if that is -inf
        OnlineSoftmax("Y", 4)                                 for r: M_decay[b, r] = exp(M[b, r] - M_base[b, r])
                                                              for r, j: P[r, b * 4 + j] = exp(X[…] - M_base[b, r])
                                                              for r, j: T_part[b, r] += P[r, b * 4 + j]
                                                              for r: T[r] = T[r] * M_decay[b, r] + T_part[b, r]
                                                              for r, d:
                                                                  for j: Y_part[b, r, d] += P[…] * V[b * 4 + j, d]
                                                                  Y[r, d] = Y[r, d] * M_decay[b, r] + Y_part[b, r, d]

So the scores of a block of keys can stay near, however many keys there are. `Y` names the GEMM; the loop over blocks
is `Y_keys`. The partial results of a reduction are those of block and buffer `<name>_part`; the block of the old name
has the results up to here. What is left behind the last whole block comes after the loop; names there have the suffix
`_rest`. Loops keep their names but for those of new blocks, which have the suffix of the block:
`_fill`, `_run`, `_base`, `_decay`. Sums round differently; that is why it is a step.

The largest score so far may be -inf, where all keys so far are masked. Their powers are 0 then, as they would be below
any larger score. If there is none, T and Y stay 0, and what divides one by the other is NaN, as softmax is. Scores of
NaN and +inf make T and Y NaN from there on, as they do without blocks.

With `skip`, a block of keys that no row of the nest sees is left out: X is -inf there (or a number below all others),
by a comparison of key and row. Nothing changes in such a block, unless its V are not finite: 0 · NaN is NaN.

Preconditions: the nests of all these stand in one sequence, one block each, with plain loops over rows and keys. X and
what it is made from inside this sequence have keys in one dimension. Nobody else reads X, M or P. The reduction loop
of Y is its innermost.
"""

from dataclasses import dataclass, replace

from tilewright.ir.expr import (
    TRUE,
    Buffer,
    Expr,
    Fma,
    Indices,
    Load,
    UnaryOp,
    Var,
    as_index,
    const,
    equal,
    free_vars,
    loads,
    maximum,
    select,
    unary,
)
from tilewright.ir.rewrite import substitute as substitute_expr
from tilewright.ir.rewrite import transform
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.edit import replace_nest, swap_stmt, wrap
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import path_to, ranges_above
from tilewright.schedule.names import bound_names, check_fresh, rename
from tilewright.schedule.softmax_chain import (
    KeyNest,
    SoftmaxChain,
    find_softmax,
    hidden_from,
    match_indices,
    power_of,
)
from tilewright.schedule.step import BlockStep
from tilewright.tir.build import identity
from tilewright.tir.func import Func
from tilewright.tir.rewrite import substitute_stmt
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import (
    Block,
    For,
    If,
    Iter,
    IterKind,
    Stmt,
    Store,
    seq,
)


@dataclass(frozen=True, slots=True)
class OnlineSoftmax(BlockStep):
    size: int
    skip: bool = False  # blocks of keys that no row of the nest sees

    @property
    def loop(self) -> str:
        """The loop over blocks of keys."""
        return f"{self.block}_keys"

    @property
    def part(self) -> str:
        """The block that multiplies with one block of keys, and its buffer."""
        return f"{self.block}_part"

    def rewrite(self, func: Func) -> Func:
        found = find_softmax(func, self.block)
        if not 0 < self.size < found.keys:
            raise step_refusal(
                func, found.gemm.block, f"blocks of {self.size} are no blocks of {found.keys} keys"
            )
        return _Rewriting(func, found, self).run()


class _Rewriting:
    """Makes the new sequence. What all blocks of keys use is here."""

    def __init__(self, func: Func, found: SoftmaxChain, step: OnlineSoftmax) -> None:
        self.func, self.found, self.step = func, found, step
        self.full, self.rest = divmod(found.keys, step.size)
        self.made: list[Buffer] = []
        largest = found.top.store.buffer
        count = self.full + (self.rest > 0)
        self.running = Buffer(largest.name, (count + 1, *largest.shape), largest.dtype, largest.scope)
        self.base, self.decay = (self._buffer(found.top, count, s) for s in ("base", "decay"))
        reductions = (found.top, *found.sums, found.gemm)
        self.parts = {n.block.name: self._buffer(n, count, "part") for n in reductions}

    def _buffer(self, nest: KeyNest, count: int, suffix: str) -> Buffer:
        """A buffer with elements like those that the nest makes, for each block of keys."""
        old = nest.store.buffer
        made = Buffer(f"{nest.block.name}_{suffix}", (count, *old.shape), old.dtype, old.scope)
        self.made.append(made)
        return made

    def run(self) -> Func:
        f, loop = self.found, Var(self.step.loop)
        blocks_of_keys = _Blocks(self, self.step.size, self.full, loop)
        body = blocks_of_keys.body()
        nests: list[Stmt] = [_fill(f.top, self.running), For(loop, self.full, body)]
        if self.rest:
            nests.append(rename(_Blocks(self, self.rest, 1, None).body(), "_rest"))
        mine = {id(s) for s in (*(n.stmt for n in f.nests), *f.after)}
        first = [s for s in f.around.stmts if id(s) not in mine]
        new = seq(*first, *nests, *f.after)
        made = {x.name for x in self.made}
        check_fresh(self.func, (bound_names(new) - bound_names(f.around)) | made)
        largest = f.top.store.buffer
        local = (*(self.running if x is largest else x for x in self.func.locals), *self.made)
        return replace(replace_nest(self.func, f.around, new), locals=local)


class _Blocks:
    """What happens to blocks of `size` keys, of which there are `count`: all in the loop `loop`, or the last."""

    def __init__(self, of: _Rewriting, size: int, count: int, loop: Var | None) -> None:
        self._of, self._found = of, of.found
        self._size, self._count, self._loop = size, count, loop

    def body(self) -> Stmt:
        of, f = self._of, self._found
        at, b = f.top.store.indices, self._block(f.top)
        before, now = Load(of.running, (b, *at)), Load(of.running, (b + 1, *at))
        lowest = identity("max", now.dtype)
        part = Load(of.parts[f.top.block.name], (b, *at))
        run = Store(of.running, now.indices, maximum(before, part))
        base, decay = Load(of.base, (b, *at)), Load(of.decay, (b, *at))
        visible = select(equal(now, lowest), const(0, now.dtype), now)
        inside = [
            *(self._cut(n) for n in {id(n.stmt): n for n in f.producers}.values()),
            wrap(self._loops(f.top), self._partial(f.top)),
            self._copied(f.top, replace(self._row_block(f.top, IterKind.SPATIAL), body=run)),
            self._of_rows(Store(of.base, base.indices, visible), "_base"),
            self._of_rows(
                Store(of.decay, decay.indices, unary(UnaryOp.EXP_NONPOSITIVE, before - base)), "_decay"
            ),
            self._powers(),
        ]
        for n in f.sums:
            inside += [wrap(self._loops(n), self._partial(n)), self._copied(n, self._scaled(n))]
        summed = replace(f.gemm.loop, extent=self._size, body=self._partial(f.gemm))
        inside.append(wrap(f.gemm.loops[:-1], seq(summed, self._scaled(f.gemm))))
        body = seq(*inside)
        return If(self._is_seen(), body) if of.step.skip else body

    # ------------------------------------------------------------------------------------------------------ places

    def _start(self, block: Expr) -> Expr:
        """The first key of a block."""
        return block * self._of.step.size

    def _block(self, nest: KeyNest) -> Expr:
        """Which block of keys it is, inside of the nest's block."""
        return as_index(self._of.full) if self._loop is None else Var(f"{nest.block.name}_vkeys")

    def _over(
        self, nest: KeyNest, kind: IterKind = IterKind.SPATIAL
    ) -> tuple[tuple[Iter, ...], tuple[Expr, ...]]:
        """The iterator over blocks of keys and its binding, if there is one."""
        if self._loop is None:
            return (), ()
        return (Iter(Var(f"{nest.block.name}_vkeys"), self._count, kind),), (self._loop,)

    # -------------------------------------------------------------------------------------------------- along keys

    def _cut(self, nest: KeyNest) -> Stmt:
        """What stands in one statement with the nest, for a block of keys."""
        block = as_index(self._of.full) if self._loop is None else self._loop
        body = substitute_stmt(nest.loop.body, {nest.loop.var: self._start(block) + nest.loop.var})
        return swap_stmt(nest.stmt, nest.loop, replace(nest.loop, extent=self._size, body=body))

    def _loops(self, nest: KeyNest) -> list[For]:
        return [replace(n, extent=self._size) if n is nest.loop else n for n in nest.loops]

    def _by_blocks(self, nest: KeyNest, body: Store, init: Store | None) -> Block:
        """The block of the nest with one iterator over blocks of keys and one inside of them, in bodies too."""
        iters, bindings = self._over(nest)
        kept = [Iter(it.var, self._size, it.kind) if it is nest.key else it for it in nest.block.iters]
        inside = self._start(self._block(nest)) + nest.key.var
        return replace(
            nest.block,
            iters=(*kept, *iters),
            bindings=(*nest.block.bindings, *bindings),
            body=substitute_stmt(body, {nest.key.var: inside}),
            init=init,
        )

    def _partial(self, nest: KeyNest) -> Block:
        """A reduction over one block of keys."""
        store, init = nest.store, nest.block.init
        assert isinstance(init, Store)
        part = self._of.parts[nest.block.name]
        old, new = Load(store.buffer, store.indices), Load(part, (self._block(nest), *store.indices))
        value = transform(store.value, lambda e: new if e is old else None)
        init = Store(part, new.indices, init.value)
        block = rename(self._by_blocks(nest, Store(part, new.indices, value), init), "_part")
        assert isinstance(block, Block)
        return block

    def _powers(self) -> Stmt:
        nest = self._found.power
        x, m = power_of(nest.store)
        base = Load(self._of.base, (self._block(nest), *m.indices))
        store = replace(nest.store, value=unary(UnaryOp.EXP_NONPOSITIVE, x - base))
        return wrap(self._loops(nest), self._by_blocks(nest, store, None))

    def _is_seen(self) -> Expr:
        """Whether any row of the nest sees any key of a block, over the loops outside."""
        func, f = self._of.func, self._found
        scores = next(n for n in f.producers if n.store.buffer is power_of(f.power.store)[0].buffer)
        simplify = Simplifier(ranges_above(path_to(func.body, f.around)) | ranges(f.around))
        least = hidden_from(scores.block, scores.key, simplify)
        if least is None:
            raise step_refusal(
                func, scores.block, f"{scores.block.name} does not hide the keys that follow a row"
            )
        inner = {n.var: n.extent for n in scores.loops if n is not scores.loop}
        block = as_index(self._of.full) if self._loop is None else self._loop
        bound = dict(zip((it.var for it in scores.block.iters), scores.block.bindings, strict=True))
        value = substitute_expr(substitute_expr(least, bound), {scores.loop.var: self._start(block)})
        form = simplify.linear(value)
        lowest: Expr = as_index(form.const)
        for atom, k in form.terms:
            # The rows of the nest that see most.
            end = (inner[atom] - 1 if k < 0 else 0) if isinstance(atom, Var) and atom in inner else atom
            lowest = lowest + end * k
        if any(v in inner for v in free_vars(lowest)):
            raise step_refusal(func, scores.block, f"{scores.block.name} does not hide keys along a line")
        if self._loop is None:
            return simplify(lowest <= 0)
        simplify.learn({self._loop: Interval(0, self._count - 1)})
        if simplify(substitute_expr(lowest <= 0, {self._loop: as_index(0)})) is not TRUE:
            raise step_refusal(
                func, scores.block, f"there may be rows of {scores.block.name} that see no key"
            )
        return simplify(lowest <= 0)

    # -------------------------------------------------------------------------------------------------- along rows

    def _row_block(self, nest: KeyNest, kind: IterKind) -> Block:
        """The block of the nest without keys; with an iterator over blocks of them."""
        iters, bindings = self._over(nest, kind)
        bound = zip(nest.block.iters, nest.block.bindings, strict=True)
        kept = [(it, b) for it, b in bound if it is not nest.key]
        return replace(
            nest.block,
            iters=(*(it for it, _ in kept), *iters),
            bindings=(*(b for _, b in kept), *bindings),
            init=None,
        )

    def _of_rows(self, store: Store, suffix: str) -> Stmt:
        """A store for each row, with the iterators that find its largest score."""
        nest = self._found.top
        block = replace(self._row_block(nest, IterKind.SPATIAL), body=store)
        return rename(wrap(_row_loops(nest), block), suffix)

    def _copied(self, nest: KeyNest, block: Block) -> Stmt:
        """The block under copies of the nest's loops over rows."""
        names: dict[Var, Expr] = {}
        copies: list[For] = []
        for n in _row_loops(nest):
            names[n.var] = var = Var(f"{n.var.name}_run")
            copies.append(replace(n, var=var))
        return wrap(copies, substitute_stmt(block, names))

    def _scaled(self, nest: KeyNest) -> Block:
        """What has been summed up, scaled, and the sum over a block of keys added."""
        store, b = nest.store, self._block(nest)
        acc, part = (
            Load(store.buffer, store.indices),
            Load(self._of.parts[nest.block.name], (b, *store.indices)),
        )
        body = Store(
            store.buffer, store.indices, Fma(acc, Load(self._of.decay, (b, *self._row_of(nest))), part)
        )
        init = None if self._loop is None else nest.block.init
        return replace(self._row_block(nest, IterKind.REDUCE), body=body, init=init)

    def _row_of(self, nest: KeyNest) -> Indices:
        """Where the largest score is of the row that the nest takes powers of."""
        power = self._found.power.store
        (read,) = {ld for ld in loads(nest.store.value) if ld.buffer is power.buffer}
        values = match_indices(power.indices, read.indices)
        assert values is not None, "found so"
        return tuple(substitute_expr(i, values) for i in self._found.largest.indices)


def _row_loops(nest: KeyNest) -> list[For]:
    return [n for n in nest.loops if n is not nest.loop]


def _fill(nest: KeyNest, running: Buffer) -> Stmt:
    """Before all keys, the largest score is lower than any."""
    kept = [
        (it, b) for it, b in zip(nest.block.iters, nest.block.bindings, strict=True) if it is not nest.key
    ]
    store = Store(running, (as_index(0), *nest.store.indices), identity("max", running.dtype))
    iters, bindings = tuple(it for it, _ in kept), tuple(b for _, b in kept)
    block = replace(nest.block, iters=iters, bindings=bindings, body=store, init=None)
    return rename(wrap(_row_loops(nest), block), "_fill")

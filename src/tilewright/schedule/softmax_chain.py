"""A GEMM with the powers of a softmax, found among the nests of a Func.

    for r, j: X[r, j] = …                         producers, of which there may be several, or none in this sequence
    for r, j: M[r] = max(M[r], X[r, j])           top
    for r, j: P[r, j] = exp(X[r, j] - M[r])       power
    for r, j: T[r] += P[r, j]                     sums, if there are any
    for r, d, j: Y[r, d] += P[r, j] * V[j, d]     gemm

They stand in one sequence, one block in each nest (but for producers, which may share their loops over keys), under
plain loops of which one goes over all keys j. The row whose largest element is subtracted is the row that it is
subtracted from, and nobody else reads X, M or P.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Buffer,
    Const,
    Expr,
    Fma,
    Indices,
    Load,
    Select,
    Unary,
    UnaryOp,
    Var,
    as_index,
    free_vars,
    loads,
)
from tilewright.ir.rewrite import substitute as substitute_expr
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_block, loops_on, path_to
from tilewright.tir.build import identity
from tilewright.tir.func import Func
from tilewright.tir.stmt import (
    Block,
    For,
    Iter,
    IterKind,
    LoopKind,
    Seq,
    Stmt,
    Store,
    blocks,
    stmt_exprs,
    walk_stmts,
)

_LOWEST = -1e30  # what hides a key: below all scores that there are


@dataclass(frozen=True, slots=True, eq=False)
class KeyNest:
    """A statement of the sequence that is one block under plain loops, of which one goes over keys."""

    stmt: Stmt
    block: Block
    loops: tuple[For, ...]
    key: Iter  # the iterator over keys, which `loop` is bound to
    loop: For

    @property
    def store(self) -> Store:
        return self.block.store


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxChain:
    """A GEMM with powers of scores, and what makes these, in the sequence `around`."""

    around: Seq
    keys: int
    producers: tuple[KeyNest, ...]  # of the scores, in order
    top: KeyNest
    power: KeyNest
    sums: tuple[KeyNest, ...]
    gemm: KeyNest
    after: tuple[Stmt, ...]  # what reads sums and GEMMs

    @property
    def nests(self) -> tuple[KeyNest, ...]:
        return (*self.producers, self.top, self.power, *self.sums, self.gemm)

    @property
    def largest(self) -> Load:
        """How a power reads the largest score of its row."""
        return power_of(self.power.store)[1]


def find_softmax(func: Func, gemm: str) -> SoftmaxChain:
    """The softmax whose powers the contraction `gemm` takes up. ScheduleError if there is none of this form."""
    block = find_block(func, gemm)
    above = [n for n in path_to(func.body, block)[:-1] if isinstance(n, Seq)]
    if not above:
        raise step_refusal(func, block, f"{gemm} stands by itself")
    return _Search(func, above[-1]).run(block)


class _Search:
    def __init__(self, func: Func, around: Seq) -> None:
        self._func, self._around = func, around
        self._readers: dict[Buffer, list[str]] = {}
        writers: dict[Buffer, list[Block]] = {}
        for b in blocks(func.body):
            for buffer in _stored(b):
                writers.setdefault(buffer, []).append(b)
            for buffer in _loaded(b):
                self._readers.setdefault(buffer, []).append(b.name)
        self._writer = {buffer: found[0] for buffer, found in writers.items() if len(found) == 1}

    def run(self, block: Block) -> SoftmaxChain:
        func = self._func
        p = self._powers_of(block)
        gemm = self._nest(block, _reduced(func, block))
        if gemm.loops[-1] is not gemm.loop:
            raise step_refusal(
                func, gemm.loop, f"{gemm.loop.var.name} is not the innermost loop of {block.name}"
            )
        maker = self._writer[p.buffer]
        power = self._nest(maker, _along(func, maker, p, gemm.key.var))
        x, m = power_of(power.store)
        top = self._top(m, x, power)
        sums = tuple(self._sum(n, p.buffer) for n in self._readers[p.buffer] if n not in (block.name,))
        producers = self._producers(x, power.key.var)
        own = (*producers, top, power, *sums, gemm)
        for n in own:
            if n.key.extent != gemm.key.extent:
                raise step_refusal(
                    func, n.block, f"{n.block.name} has {n.key.extent} keys, not {gemm.key.extent}"
                )
        self._check_readers(own, {top.store.buffer, p.buffer, *(n.store.buffer for n in producers)})
        return SoftmaxChain(
            self._around,
            gemm.key.extent,
            producers,
            top,
            power,
            sums,
            gemm,
            self._after(own, sums, gemm),
        )

    def _powers_of(self, block: Block) -> Load:
        """The factor of the GEMM that is made of powers."""
        store = block.try_store
        if store is not None and isinstance(store.value, Fma) and block.init is not None:
            for x in (store.value.a, store.value.b):
                if not isinstance(x, Load) or x.buffer not in self._func.locals:
                    continue
                maker = self._writer.get(x.buffer)
                if maker is not None and _trypower_of(maker) is not None:
                    return x
        raise step_refusal(
            self._func, block, f"no factor of {block.name} is exp(x - m) of a row and its largest element"
        )

    def _nest(self, block: Block, key: Iter, *, is_alone: bool = True) -> KeyNest:
        func = self._func
        stmt = next((s for s in self._around.stmts if any(b is block for b in blocks(s))), None)
        if stmt is None:
            raise step_refusal(func, block, f"{block.name} is not one of the nests around the GEMM")
        path = path_to(stmt, block)
        nest = tuple(loops_on(path))
        binding = block.bindings[block.iters.index(key)]
        loop = next((n for n in nest if n.var is binding), None)
        if any(n.kind is not LoopKind.SERIAL for n in nest) or loop is None:
            raise step_refusal(
                func, block, f"{block.name} is not under plain loops of which one goes over keys"
            )
        if is_alone and len(nest) + 1 < len(path):
            raise step_refusal(func, stmt, f"{block.name} is not alone in its nest")
        others = [b for it, b in zip(block.iters, block.bindings, strict=True) if it is not key]
        if any(loop.var in free_vars(e) for e in (*others, block.predicate)) or loop.extent != key.extent:
            raise step_refusal(
                func, loop, f"{loop.var.name} does more for {block.name} than to go over all keys"
            )
        if block.try_store is None:
            raise step_refusal(func, block, f"the body of {block.name} is not one store")
        return KeyNest(stmt, block, nest, key, loop)

    def _top(self, m: Load, x: Load, power: KeyNest) -> KeyNest:
        """The reduction that finds the largest score of each row."""
        func, block = self._func, self._writer.get(m.buffer)
        if block is None or m.buffer not in func.locals:
            raise step_refusal(func, power.block, f"{m.buffer.name} is not made by one block of {func.name}")
        nest = self._nest(block, _reduced(func, block))
        if any(power.key.var in free_vars(i) for i in m.indices):
            raise step_refusal(func, power.block, f"{power.block.name} subtracts another number for each key")
        scores = _combined(nest, BinaryOp.MAX)
        # The row whose largest element is subtracted is the row that it is subtracted from.
        values = match_indices(nest.store.indices, m.indices)
        if scores is None or values is None:
            raise step_refusal(func, block, f"{block.name} is no maximum")
        values[nest.key.var] = power.key.var
        if substitute_expr(scores, values) is not x:
            raise step_refusal(
                func, block, f"{block.name} is not the maximum of the rows of {power.block.name}"
            )
        return nest

    def _sum(self, name: str, powers: Buffer) -> KeyNest:
        func, block = self._func, find_block(self._func, name)
        nest = self._nest(block, _reduced(func, block))
        read = _combined(nest, BinaryOp.ADD)
        if not isinstance(read, Load) or read.buffer is not powers:
            raise step_refusal(func, block, f"{name} reads {powers.name}, and is no sum of it")
        _along(func, self._writer[powers], read, nest.key.var)
        return nest

    def _producers(self, scores: Load, key: Var) -> tuple[KeyNest, ...]:
        """The nests that make the scores, as far as they have keys."""
        found: dict[str, KeyNest] = {}
        wanted: list[tuple[Load, Var]] = [(scores, key)]
        fixed: list[Buffer] = []
        while wanted:
            read, var = wanted.pop()
            block = self._writer.get(read.buffer)
            if block is None or not any(b is block for s in self._around.stmts for b in blocks(s)):
                continue
            if not any(var in free_vars(i) for i in read.indices):
                fixed.append(read.buffer)
                continue
            nest = self._nest(block, _along(self._func, block, read, var), is_alone=False)
            known = found.setdefault(block.name, nest)
            if known.key is not nest.key:
                raise step_refusal(self._func, block, f"{block.name} has keys in two dimensions")
            if known is nest:
                own = [ld for n in walk_stmts(block) for e in stmt_exprs(n) for ld in loads(e)]
                wanted += [(ld, nest.key.var) for ld in own if ld.buffer is not nest.store.buffer]
        for b in fixed:
            if self._writer[b].name in found:
                raise step_refusal(
                    self._func, self._writer[b], f"{b.name} is read along keys, and across them"
                )
        for nest in found.values():
            for b in blocks(nest.stmt):
                if b.name not in found or found[b.name].loop is not nest.loop:
                    raise step_refusal(
                        self._func, b, f"{b.name} shares loops with {nest.block.name}, but not its keys"
                    )
        order = [b.name for b in blocks(self._around)]
        return tuple(sorted(found.values(), key=lambda n: order.index(n.block.name)))

    def _check_readers(self, own: Sequence[KeyNest], hidden: Iterable[Buffer]) -> None:
        """What changes from block to block of keys is read by nobody else."""
        names = {n.block.name for n in own}
        for buffer in hidden:
            others = [n for n in self._readers.get(buffer, ()) if n not in names]
            if others or buffer not in self._func.locals:
                reader = others[0] if others else "the caller"
                raise step_refusal(
                    self._func, self._around, f"{reader} reads {buffer.name}, of which not all is computed"
                )

    def _after(self, own: Sequence[KeyNest], sums: Sequence[KeyNest], gemm: KeyNest) -> tuple[Stmt, ...]:
        """The statements that must come after all keys: those behind the GEMM, and all that depend on a result."""
        mine = {id(n.stmt) for n in own}
        late = {n.store.buffer for n in (*sums, gemm)}
        after: list[Stmt] = []
        is_behind = False
        for s in self._around.stmts:
            is_behind |= s is gemm.stmt
            if id(s) in mine:
                for b in blocks(s):
                    if (late - set(_stored(b))).intersection(_loaded(b)):
                        raise step_refusal(self._func, s, f"{b.name} needs the results of all keys")
            elif is_behind or any(late.intersection(_loaded(b)) for b in blocks(s)):
                late.update(buffer for b in blocks(s) for buffer in _stored(b))
                after.append(s)
        return tuple(after)


def hidden_from(block: Block, key: Iter, simplify: Simplifier) -> Expr | None:
    """An expression over the iterators that is above 0 where a block stores no score but a very low number, and grows
    with the key. None if there is none. Rows that see no key at all must get -inf: then they are NaN anyhow.
    """
    value = None if block.try_store is None else block.store.value
    match value:
        case Select(cond=Binary(op=BinaryOp.LE | BinaryOp.LT as op, a=a, b=b), b=Const(value=low)):
            least = a - b + (op is BinaryOp.LT)
        case _:
            return None
    steps = {atom: k for atom, k in simplify.linear(least).terms}
    if low > _LOWEST or steps.get(key.var, 0) < 1 or not all(isinstance(atom, Var) for atom in steps):
        return None
    domains = {it.var: Interval(0, it.extent - 1) for it in block.iters if it is not key}
    first = Simplifier(domains).bounds(substitute_expr(least, {key.var: as_index(0)}))
    return least if low == -math.inf or first.hi <= 0 else None


def seen_more(scores: KeyNest, rows: int) -> int | None:
    """How many keys more than its own number each of `rows` rows sees, where all others are hidden by their number."""
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in scores.block.iters})
    least = hidden_from(scores.block, scores.key, simplify)
    if least is None:
        return None
    form = simplify.linear(least)
    steps = dict(form.terms)
    others = [it for it in scores.block.iters if it.var in steps and it is not scores.key]
    if (
        len(others) != 1
        or others[0].extent != rows
        or steps[others[0].var] != -1
        or steps[scores.key.var] != 1
    ):
        return None
    # A key that no row sees at all would be copied for nobody.
    return -form.const if -form.const >= 0 and scores.key.extent <= rows - form.const else None


def _stored(block: Block) -> dict[Buffer, None]:
    return {n.buffer: None for n in walk_stmts(block) if isinstance(n, Store)}


def _loaded(block: Block) -> dict[Buffer, None]:
    return {ld.buffer: None for n in walk_stmts(block) for e in stmt_exprs(n) for ld in loads(e)}


def _reduced(func: Func, block: Block) -> Iter:
    reduce = [it for it in block.iters if it.kind is IterKind.REDUCE]
    if len(reduce) != 1:
        raise step_refusal(func, block, f"{block.name} reduces {len(reduce)} iterators, not one")
    return reduce[0]


def _along(func: Func, maker: Block, read: Load, key: Var) -> Iter:
    """The iterator of `maker` that goes over the dimension which `read` reads along `key`."""
    at = [d for d, i in enumerate(read.indices) if key in free_vars(i)]
    store = maker.try_store
    if len(at) == 1 and read.indices[at[0]] is key and store is not None and store.buffer is read.buffer:
        for it in maker.iters:
            if store.indices[at[0]] is it.var and it.kind is IterKind.SPATIAL:
                return it
    raise step_refusal(
        func, maker, f"{maker.name} does not make {read.buffer.name} with keys in one dimension"
    )


def _trypower_of(block: Block) -> tuple[Load, Load] | None:
    """(x, m) of a block that stores exp(x - m)."""
    store = block.try_store
    if block.is_reduction or store is None or not isinstance(store.value, Unary):
        return None
    inner = store.value.a
    if store.value.op not in (UnaryOp.EXP, UnaryOp.EXP_NONPOSITIVE):
        return None
    if not isinstance(inner, Binary) or inner.op is not BinaryOp.SUB:
        return None
    return (inner.a, inner.b) if isinstance(inner.a, Load) and isinstance(inner.b, Load) else None


def power_of(store: Store) -> tuple[Load, Load]:
    assert isinstance(store.value, Unary) and isinstance(store.value.a, Binary)
    x, m = store.value.a.a, store.value.a.b
    assert isinstance(x, Load) and isinstance(m, Load)
    return x, m


def _combined(nest: KeyNest, op: BinaryOp) -> Expr | None:
    """What a reduction combines with its accumulator, if it does so by `op`, from the start."""
    store, init = nest.store, nest.block.init
    acc = Load(store.buffer, store.indices)
    start = identity("max" if op is BinaryOp.MAX else "sum", store.buffer.dtype)
    if not isinstance(init, Store) or init.value is not start or init.indices != store.indices:
        return None
    match store.value:
        case Binary(op=found, a=a, b=b) if found is op and (a is acc) != (b is acc):
            return b if a is acc else a
        case _:
            return None


def match_indices(pattern: Indices, indices: Indices) -> dict[Var, Expr] | None:
    """What the variables of `pattern` are where it is `indices`; None if it is not only of variables and literals."""
    values: dict[Var, Expr] = {}
    for p, i in zip(pattern, indices, strict=True):
        if isinstance(p, Var) and p not in values:
            values[p] = i
        elif not isinstance(p, Const) or p is not i:
            return None
    return values

"""Reductions over one axis of which each may read, through elementwise blocks, the results of those before it.

    for r, j: X[r, j] = …                         a map of the axis j; it may be a contraction over another one
    for r, j: M[r] = max(M[r], X[r, j])           a fold
    for r, j: P[r, j] = exp(X[r, j] - M[r])       a map that follows M: it depends on the result of a fold
    for r, j: T[r] += P[r, j]                     a fold that follows M through P
    for r, d, j: Y[r, d] += P[r, j] * V[j, d]     likewise: a contraction is a fold

`find_chain` starts from the last of them and finds the others among the nests of one sequence. A fold that follows
others has a repair (`gir/repair.py`) that makes its result so far into what it would be with their new results; where
there is none, nothing can be taken up in parts, and the chain is refused.

Nests stand in one sequence, one block in each (but for maps that follow nothing, which may share their loops), under
plain loops of which one goes over all of the axis.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.gir.flow_graph import COMBINATIONS
from tilewright.gir.from_func import folded_value
from tilewright.gir.repair import Algebra, Recentre, Repair, Restart, Scale
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Buffer,
    Const,
    Expr,
    Indices,
    Load,
    Unary,
    UnaryOp,
    Var,
    free_vars,
    loads,
    walk,
)
from tilewright.ir.rewrite import replace_loads, substitute
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_block, loops_on, path_to
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.printer import print_expr
from tilewright.tir.stmt import Block, For, Iter, IterKind, LoopKind, Seq, Stmt, Store, blocks
from tilewright.tir.touched import touched

_EXPONENTIALS = (UnaryOp.EXP, UnaryOp.EXP_NONPOSITIVE)


@dataclass(frozen=True, slots=True, eq=False)
class AxisNest:
    """A statement of the sequence that is one block under plain loops, of which `loop` goes over the axis."""

    stmt: Stmt
    block: Block
    loops: tuple[For, ...]
    axis: Iter
    loop: For

    @property
    def store(self) -> Store:
        return self.block.store

    @property
    def out(self) -> Buffer:
        return self.store.buffer

    @property
    def is_fold(self) -> bool:
        return self.axis.kind is IterKind.REDUCE

    @property
    def row_loops(self) -> list[For]:
        return [n for n in self.loops if n is not self.loop]


@dataclass(frozen=True, slots=True, eq=False)
class RollingFold:
    """`value` is what it combines for an element, over memory, maps that follow nothing, and results of folds."""

    nest: AxisNest
    combine: BinaryOp
    start: Expr
    value: Expr
    repair: Repair | None = None


@dataclass(eq=False)
class ReductionChain:
    """`nests` in their order, of which the last is the reduction that was asked for."""

    around: Seq
    nests: tuple[AxisNest, ...]
    rows: dict[Buffer, Block]  # elementwise blocks without the axis, which are computed where they are read
    before: tuple[Stmt, ...] = ()
    after: tuple[Stmt, ...] = ()
    folds: dict[Buffer, RollingFold] = field(default_factory=dict[Buffer, RollingFold])

    @property
    def extent(self) -> int:
        return self.nests[-1].axis.extent

    @cached_property
    def made(self) -> set[Buffer]:
        return {n.out for n in self.nests}

    @cached_property
    def _stores(self) -> dict[Buffer, Store]:
        return {n.out: n.store for n in self.nests} | {b: block.store for b, block in self.rows.items()}

    @cached_property
    def following(self) -> set[Buffer]:
        """What depends on results of folds, but for folds."""
        found: set[Buffer] = set()
        folds = {n.out for n in self.nests if n.is_fold}
        for _ in self._stores:  # rows and nests may read each other in any order
            for b, store in self._stores.items():
                if b not in folds and any(ld.buffer in folds | found for ld in loads(store.value)):
                    found.add(b)
        return found

    @cached_property
    def results(self) -> list[Buffer]:
        """The results of folds that values of others depend on."""
        found = dict.fromkeys(ld.buffer for f in self.folds.values() for ld in loads(f.value))
        return [b for b in found if b in self.folds]

    def __str__(self) -> str:
        """A line for each nest, and for each fold how its result so far follows those of others."""
        lines: list[str] = []
        for n in self.nests:
            fold, made = self.folds.get(n.out), print_expr(Load(n.out, n.store.indices))
            over = ", ".join(it.var.name for it in n.block.iters if it.kind is IterKind.REDUCE)
            combine, value = folded_value(n.block) if over else (None, n.store.value)
            value = value if fold is None else fold.value
            how = "" if combine is None else f"{COMBINATIONS[combine]} over {over} of "
            lines.append(f"{made} = {how}{print_expr(value)}")
            if fold is not None and fold.repair is not None:
                kind = type(fold.repair).__name__.lower()
                lines.append(f"    {kind} by the change of {print_expr(fold.repair.row)}")
        return "\n".join(lines)

    def opened(self, e: Expr, kinds: "set[Buffer] | dict[Buffer, Block]") -> Expr:
        """With the values of these blocks in place of what is read of them."""

        def inside(ld: Load) -> Expr | None:
            if ld.buffer not in kinds:
                return None
            store = self._stores[ld.buffer]
            values = match_indices(store.indices, ld.indices)
            if values is None:
                raise ScheduleError(f"{ld.buffer.name} is not read element by element")
            return self.opened(substitute(store.value, values), kinds)

        return replace_loads(e, inside, {})

    def folded_at(self, result: Load, axis: Var) -> Expr | None:
        """What the fold that makes `result` combines at an element of the axis."""
        fold = self.folds[result.buffer]
        values = match_indices(fold.nest.store.indices, result.indices)
        return None if values is None else substitute(fold.value, values | {fold.nest.axis.var: axis})


def find_chain(func: Func, name: str) -> ReductionChain:
    """The chain that ends with the reduction `name`. ScheduleError if there is none."""
    block = find_block(func, name)
    above = [n for n in path_to(func.body, block)[:-1] if isinstance(n, Seq)]
    if not above:
        raise step_refusal(func, block, f"{name} stands by itself")
    return _Search(func, above[-1]).run(block)


class _Search:
    def __init__(self, func: Func, around: Seq) -> None:
        self._func, self._around = func, around
        self._stmt = {b.name: s for s in around.stmts for b in blocks(s)}
        self._order = {name: n for n, name in enumerate(self._stmt)}
        writers: dict[Buffer, list[Block]] = {}
        for b in blocks(func.body):
            for buffer in touched(b).writes:
                writers.setdefault(buffer, []).append(b)
        self._writer = {b: found[0] for b, found in writers.items() if len(found) == 1}
        self._nests: dict[str, AxisNest] = {}
        self._rows: dict[Buffer, Block] = {}
        self._read_along: set[tuple[Buffer, int]] = set()
        self._maybe: dict[str, Block] = {}  # reductions of the same extent, which may be over the same axis

    def run(self, block: Block) -> ReductionChain:
        last = self._nest(block, self._reduced(block), is_alone=True)
        if last.loops[-1] is not last.loop:
            raise step_refusal(
                self._func, last.loop, f"{last.loop.var.name} is not the innermost loop of {block.name}"
            )
        self._extent = last.axis.extent
        self._take(last)
        chain = self._closed()
        while (reader := self._reader(chain)) is not None:
            self._take(reader)
            chain = self._closed()
        if not any(n.is_fold for n in chain.nests[:-1]) or not (chain.following or self._reads_fold(last)):
            raise step_refusal(self._func, block, f"{block.name} follows no other reduction over its axis")
        across = next((b for b in chain.rows if b in chain.made), None)
        if across is not None:
            raise step_refusal(
                self._func, self._writer[across], f"{across.name} is read along the axis, and across it"
            )
        self._check_shared(chain)
        self._divide(chain)
        for nest in chain.nests:
            if nest.is_fold:
                chain.folds[nest.out] = self._fold(chain, nest)
        self._repair(chain)
        return chain

    # ----------------------------------------------------------------------------------------------------- members

    def _nest(self, block: Block, axis: Iter, *, is_alone: bool) -> AxisNest:
        func, stmt = self._func, self._stmt.get(block.name)
        if stmt is None:
            raise step_refusal(func, block, f"{block.name} is not one of the nests around the reduction")
        path = path_to(stmt, block)
        nest = tuple(loops_on(path))
        binding = block.bindings[block.iters.index(axis)]
        loop = next((n for n in nest if n.var is binding), None)
        if any(n.kind is not LoopKind.SERIAL for n in nest) or loop is None:
            raise step_refusal(func, block, f"{block.name} is not under plain loops, one along the axis")
        if is_alone and len(nest) + 1 < len(path):
            raise step_refusal(func, stmt, f"{block.name} is not alone in its nest")
        others = [b for it, b in zip(block.iters, block.bindings, strict=True) if it is not axis]
        if any(loop.var in free_vars(e) for e in (*others, block.predicate)) or loop.extent != axis.extent:
            raise step_refusal(
                func, loop, f"{loop.var.name} does more for {block.name} than to go over the axis"
            )
        if block.try_store is None:
            raise step_refusal(func, block, f"the body of {block.name} is not one store")
        return AxisNest(stmt, block, nest, axis, loop)

    def _reduced(self, block: Block) -> Iter:
        reduce = [it for it in block.iters if it.kind is IterKind.REDUCE]
        if len(reduce) != 1:
            raise step_refusal(self._func, block, f"{block.name} reduces {len(reduce)} iterators, not one")
        return reduce[0]

    def _along(self, maker: Block, read: Load, axis: Var) -> Iter:
        """The iterator of `maker` that goes over the dimension which `read` reads along `axis`."""
        at = [d for d, i in enumerate(read.indices) if axis in free_vars(i)]
        store = maker.try_store
        if len(at) == 1 and read.indices[at[0]] is axis and store is not None and store.buffer is read.buffer:
            for it in maker.iters:
                if store.indices[at[0]] is it.var and it.kind is IterKind.SPATIAL:
                    return it
        raise step_refusal(
            self._func, maker, f"{maker.name} does not make {read.buffer.name} with the axis in one dimension"
        )

    def _take(self, nest: AxisNest) -> None:
        known = self._nests.setdefault(nest.block.name, nest)
        if known.axis is not nest.axis:
            raise step_refusal(self._func, nest.block, f"{nest.block.name} has the axis in two dimensions")
        if known.axis.extent != self._extent:
            raise step_refusal(
                self._func,
                nest.block,
                f"{nest.block.name} has {nest.axis.extent} elements, not {self._extent}",
            )
        if known is nest:
            self._take_reads(nest.block, nest.axis.var)

    def _take_reads(self, block: Block, axis: Var | None) -> None:
        own = block.store.buffer
        for ld in loads(block.store.value):
            maker = self._writer.get(ld.buffer)
            dims = [d for d, i in enumerate(ld.indices) if axis is not None and axis in free_vars(i)]
            self._read_along.update((ld.buffer, d) for d in dims)
            if ld.buffer is own or maker is None or maker.name not in self._stmt:
                continue
            if dims and axis is not None:
                self._take(self._nest(maker, self._along(maker, ld, axis), is_alone=False))
            elif maker.is_reduction:
                self._maybe[maker.name] = maker
            elif ld.buffer not in self._rows and maker.try_store is not None:
                self._rows[ld.buffer] = maker
                self._take_reads(maker, None)

    def _closed(self) -> ReductionChain:
        """With the reductions that go over the same elements as what is there already."""
        while True:
            found = next((b for b in self._maybe.values() if self._is_over_axis(b)), None)
            if found is None:
                break
            del self._maybe[found.name]
            self._take(self._nest(found, self._reduced(found), is_alone=True))
        order = sorted(self._nests.values(), key=lambda n: self._order[n.block.name])
        return ReductionChain(self._around, tuple(order), self._rows)

    def _is_over_axis(self, block: Block) -> bool:
        reduce = [it for it in block.iters if it.kind is IterKind.REDUCE]
        return (
            len(reduce) == 1
            and reduce[0].extent == self._extent
            and any(
                i is reduce[0].var and (ld.buffer, d) in self._read_along
                for ld in loads(block.store.value)
                for d, i in enumerate(ld.indices)
            )
        )

    def _reader(self, chain: ReductionChain) -> AxisNest | None:
        """A further reduction of what follows results, which are never all there at once."""
        hidden = {n.out for n in chain.nests if n.out in chain.following}
        for b in (b for s in self._around.stmts for b in blocks(s)):
            if b.name in self._nests or not hidden.intersection(touched(b).reads):
                continue
            nest = self._nest(b, self._reduced(b), is_alone=True) if b.is_reduction else None
            if nest is None:
                buffer = next(x for x in touched(b).reads if x in hidden)
                raise step_refusal(
                    self._func, b, f"{b.name} reads {buffer.name}, of which not all is there at once"
                )
            return nest
        return None

    def _reads_fold(self, nest: AxisNest) -> bool:
        folds = {n.out for n in self._nests.values() if n.is_fold and n is not nest}
        return any(ld.buffer in folds for ld in loads(nest.store.value))

    def _check_shared(self, chain: ReductionChain) -> None:
        for nest in chain.nests:
            for b in blocks(nest.stmt):
                other = self._nests.get(b.name)
                if other is None or other.loop is not nest.loop:
                    raise step_refusal(
                        self._func, b, f"{b.name} shares loops with {nest.block.name}, but not its axis"
                    )
            if nest.out in chain.following and len(list(blocks(nest.stmt))) > 1:
                raise step_refusal(self._func, nest.stmt, f"{nest.block.name} is not alone in its nest")
            if nest.out in chain.following and nest.out not in self._func.locals:
                raise step_refusal(
                    self._func,
                    nest.block,
                    f"the caller reads {nest.out.name}, of which not all is there at once",
                )

    def _divide(self, chain: ReductionChain) -> None:
        """What comes before all of the axis, and what after."""
        mine = {id(n.stmt) for n in chain.nests}
        inlined = {id(self._stmt[b.name]) for b in self._only_inlined(chain)}
        late = set(chain.made)
        before: list[Stmt] = []
        after: list[Stmt] = []
        is_behind = False
        for s in self._around.stmts:
            is_behind |= s is chain.nests[-1].stmt
            if id(s) in mine or id(s) in inlined:
                continue
            if is_behind or late.intersection(touched(s).reads):
                late.update(touched(s).writes)
                after.append(s)
            else:
                before.append(s)
        for n in chain.nests:
            needed = [x for x in touched(n.block).reads if x in late and x not in chain.made]
            if any(x not in chain.following for x in needed):
                raise step_refusal(self._func, n.block, f"{n.block.name} needs {needed[0].name} of all")
        chain.before, chain.after = tuple(before), tuple(after)

    def _only_inlined(self, chain: ReductionChain) -> Iterator[Block]:
        names = {n.block.name for n in chain.nests} | {b.name for b in chain.rows.values()}
        for buffer, block in chain.rows.items():
            readers = {b.name for b in blocks(self._func.body) if buffer in touched(b).reads}
            if buffer in chain.following and buffer in self._func.locals and readers <= names:
                yield block

    # ----------------------------------------------------------------------------------------------------- repairs

    def _fold(self, chain: ReductionChain, nest: AxisNest) -> RollingFold:
        combine, value = folded_value(nest.block)
        init = nest.block.init
        assert isinstance(init, Store)
        return RollingFold(nest, combine, init.value, chain.opened(value, chain.following))

    def _repair(self, chain: ReductionChain) -> None:
        for out, fold in chain.folds.items():
            algebra = Algebra({fold.nest.axis.var}, chain.results)
            if not algebra.has_result(fold.value):
                continue
            repair = algebra.find_repair(fold.value, fold.combine, fold.start)
            name = fold.nest.block.name
            if repair is None:
                raise step_refusal(
                    self._func, fold.nest.block, f"{name} has no repair when what it depends on changes"
                )
            try:
                _check_repair(chain, fold, repair, algebra)
            except ScheduleError as e:
                raise step_refusal(self._func, fold.nest.block, f"{name}: {e.message}") from None
            chain.folds[out] = RollingFold(fold.nest, fold.combine, fold.start, fold.value, repair)


# -------------------------------------------------------------------------------------------- results so far as values


def is_extreme(fold: RollingFold) -> bool:
    return fold.combine in (BinaryOp.MAX, BinaryOp.MIN)


def _check_repair(chain: ReductionChain, fold: RollingFold, repair: Repair, algebra: Algebra) -> None:
    """What was folded before there was any element must be nothing, and no change may be a number over zero."""
    axis = fold.nest.axis.var
    for e in walk(fold.value):
        if (
            isinstance(e, Unary)
            and e.op in _EXPONENTIALS
            and algebra.has_result(e)
            and algebra.has_element(e)
        ):
            inside = algebra.terms(e.a)
            extremes = [
                ld for ld in loads(e.a) if ld.buffer in chain.results and is_extreme(chain.folds[ld.buffer])
            ]
            for ld in extremes:
                sign = 1 if chain.folds[ld.buffer].combine is BinaryOp.MAX else -1
                own = chain.folded_at(ld, axis)
                if inside is None or own is None or not _carries(inside.element, own, sign):
                    raise ScheduleError(f"{ld.buffer.name} is not the extreme of what it is subtracted from")
    if isinstance(repair, Scale):
        bad = [e for e in _factors(repair.row) if not _is_safe(e, chain)]
        if bad:
            raise ScheduleError("a factor of the row may be 0 before all of it is known")
    if isinstance(repair, Restart):
        chosen = [ld for ld in loads(repair.row) if ld.buffer in chain.results]
        own = [chain.folded_at(ld, axis) for ld in chosen]
        if len(chosen) != 1 or chosen[0] is not repair.row or not _compares(fold.value, own[0]):
            raise ScheduleError("what is chosen is not where its extreme is")
    if isinstance(repair, Recentre) and fold.nest.out in chain.results:
        raise ScheduleError("others depend on a sum of squares")


def _compares(value: Expr, own: Expr | None) -> bool:
    return any(isinstance(e, Binary) and e.op is BinaryOp.EQ and own in (e.a, e.b) for e in walk(value))


def _carries(e: Expr, own: Expr, sign: int) -> bool:
    """Is e without bound where `own` is (with this sign): own, moved and scaled?"""
    if e is own:
        return sign > 0
    match e:
        case Binary(op=BinaryOp.ADD, a=a, b=b):
            return _carries(a, own, sign) or _carries(b, own, sign)
        case Binary(op=BinaryOp.SUB, a=a, b=b):
            return _carries(a, own, sign) or _carries(b, own, -sign)
        case Binary(op=BinaryOp.MUL | BinaryOp.DIV, a=a, b=Const(value=c)) if c:
            return _carries(a, own, sign if c > 0 else -sign)
        case _:
            return False


def _factors(e: Expr) -> Iterator[Expr]:
    match e:
        case Binary(op=BinaryOp.MUL | BinaryOp.DIV, a=a, b=b):
            yield from _factors(a)
            yield from _factors(b)
        case _:
            yield e


def _is_safe(e: Expr, chain: ReductionChain) -> bool:
    """Is it no zero while results are those so far? Of a result itself that is taken care of (`is_divisor`)."""
    match e:
        case Unary(op=op) if op in _EXPONENTIALS:
            return True
        case Load(buffer=b) if b in chain.results:
            return not is_extreme(chain.folds[b])
        case _:
            return not any(ld.buffer in chain.results for ld in loads(e))


def is_divisor(chain: ReductionChain, result: Buffer) -> bool:
    """Must it not be 0, for others are scaled by it?"""
    rows = [f.repair.row for f in chain.folds.values() if isinstance(f.repair, Scale)]
    return any(isinstance(e, Load) and e.buffer is result for row in rows for e in _factors(row))


def match_indices(pattern: Indices, indices: Indices) -> dict[Var, Expr] | None:
    """What the variables of `pattern` are where it is `indices`; None if it is not only of variables and literals."""
    values: dict[Var, Expr] = {}
    for p, i in zip(pattern, indices, strict=True):
        if isinstance(p, Var) and p not in values:
            values[p] = i
        elif not isinstance(p, Const) or p is not i:
            return None
    return values

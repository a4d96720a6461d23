"""What the steps that move a block have in common: its preconditions, its old place, its new loops.

The steps rely on what a block promises: its instances cover the domains of its iterators, and its predicate only keeps
them inside (a split that does not divide makes such predicates). So a block can be taken out of its nest and put
under new loops that cover the part of its domain that is needed there; the predicate is made anew. A block that
shares the writing of a buffer with another (the parts of a partitioned loop, the halves of a decomposed reduction)
covers only its own part: such blocks stay where they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    TRUE,
    Buffer,
    Const,
    Expr,
    Indices,
    Load,
    Scope,
    Var,
    as_index,
    free_vars,
)
from tilewright.ir.expr import walk as walk_expr
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.excerpt import refusal
from tilewright.schedule.nest import path_to
from tilewright.support.errors import ScheduleError
from tilewright.tir.analysis.affine import is_injective
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.analysis.regions import Access, Region, Span, accesses, span_of
from tilewright.tir.analysis.solve import solve
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_children
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import (
    Block,
    For,
    IterKind,
    Seq,
    Stmt,
    Store,
    blocks,
    children,
    seq,
    stmt_exprs,
    walk,
)

# ------------------------------------------------------------------------------------------------- preconditions


def check_leaf(func: Func, block: Block) -> None:
    if any(isinstance(n, Block | For) for n in walk(block.body)):
        raise refusal(
            func,
            block,
            f"block {block.name!r} holds loops or blocks of its own",
            "apply the step before those are made",
        )


def check_scope(func: Func, block: Block, loop: For) -> None:
    """`loop` is not hidden inside another block than `block` is."""

    def around(s: Stmt) -> list[Stmt]:
        return [n for n in path_to(func.body, s)[:-1] if isinstance(n, Block)]

    mine, theirs = around(block), around(loop)
    if len(mine) != len(theirs) or any(a is not b for a, b in zip(mine, theirs, strict=True)):
        raise refusal(
            func,
            loop,
            f"loop {loop.var.name!r} and block {block.name!r} are inside different blocks",
            "move the block before the blocks around the loop are made",
        )


def check_sole_writer(func: Func, flow: Dataflow, block: Block, before: For | None = None) -> None:
    """No other block writes what `block` does; but for those that fill it with a literal in front of the loop `before`,
    under which the block will be.
    """
    for buffer in flow.writes(block):
        others = [w for w in flow.writers(buffer) if w is not block]
        if before is not None:
            others = [w for w in others if not _fills_before(func, flow, w, block, before)]
        if others:
            raise refusal(
                func,
                others[0],
                f"{buffer.name} has two writers, blocks {block.name!r} and {others[0].name!r}",
                "apply the step before the loop is partitioned or the reduction decomposed",
            )


def _fills_before(func: Func, flow: Dataflow, fill: Block, block: Block, loop: For) -> bool:
    """Does `fill` store a literal, and run before both `block` and `loop`, sharing the same loops with either?"""
    if fill.is_reduction or fill.try_store is None or not isinstance(fill.store.value, Const):
        return False
    if holds(loop, fill) or flow.position(fill) > min(flow.position(b) for b in (block, next(blocks(loop)))):
        return False

    def shared(s: Stmt) -> list[Var]:
        return [n.var for n in path_to(func.body, s) if isinstance(n, For) and holds(n, fill)]

    return shared(block) == shared(loop)


def check_not_in_place(func: Func, flow: Dataflow, block: Block) -> None:
    """The block computes its buffer from others: running an instance twice gives the same result.

    A reduction reads its own accumulator, at the place where it writes it.
    """
    written = flow.writes(block)
    places = {n.indices for n in walk(block) if isinstance(n, Store)}
    for e in (e for n in walk(block.body) for e in stmt_exprs(n)):
        for n in walk_expr(e):
            if not isinstance(n, Load) or n.buffer not in written:
                continue
            if block.init is None or n.indices not in places or len(places) != 1:
                raise refusal(
                    func,
                    block,
                    f"block {block.name!r} changes {n.buffer.name} in place",
                    "the block must compute its buffer from others, or be a reduction with init",
                )


def check_not_nested(func: Func, block: Block) -> None:
    """The block can be taken away: it is not part of another block."""
    outer = next((n for n in path_to(func.body, block)[:-1] if isinstance(n, Block)), None)
    if outer is not None:
        raise refusal(
            func,
            block,
            f"block {block.name!r} is inside block {outer.name!r}",
            f"apply the step before {outer.name!r} is made",
        )


def check_local(func: Func, buffer: Buffer, block: Block) -> None:
    """Nobody outside `func` sees `buffer`."""
    if buffer in func.params:
        raise refusal(
            func,
            block,
            f"{buffer.name} is a parameter of {func.name}: others use what block {block.name!r} writes",
        )


def check_single_store(func: Func, block: Block) -> Store:
    """The block's one store, unconditional and not a reduction."""
    if block.is_reduction or block.init is not None:
        raise refusal(
            func,
            block,
            f"block {block.name!r} is a reduction; only a block whose iterators are all spatial can be inlined",
            "move it with ComputeAt or ReverseComputeAt",
        )
    if block.try_store is None:
        raise refusal(func, block, f"the body of block {block.name!r} is not one store")
    return block.store


def check_inputs_stay(func: Func, flow: Dataflow, block: Block) -> None:
    """What `block` reads is not written again after it has run, so it may as well run later."""
    mine = [n for n in path_to(func.body, block) if isinstance(n, For) and n.extent > 1]
    for buffer in flow.reads(block):
        for w in flow.writers(buffer):
            if w is block:
                continue
            if flow.position(w) > flow.position(block):
                raise refusal(
                    func,
                    w,
                    f"block {w.name!r} overwrites {buffer.name}, which block {block.name!r} has read before; "
                    f"{block.name!r} cannot run later",
                )
            if any(holds(n, w) for n in mine):
                check_settled(func, flow, w, mine, block, Simplifier(ranges(func.body)))


def check_settled(
    func: Func, flow: Dataflow, writer: Block, around: Sequence[For], reader: Block, simplify: Simplifier
) -> None:
    """`writer` gives an element of its buffer the same value in all iterations of the loops `around` that write it."""
    around = [n for n in around if n.extent > 1 and holds(n, writer)]
    if not around:
        return
    stores = accesses(around[0].body, reads=False)
    seen: set[str] = set()
    stack = [writer]
    while stack:  # the value may change with the iterators or with the inputs
        w = stack.pop()
        if w.name in seen:
            continue
        seen.add(w.name)
        for a in stores:
            if a.block is w:
                _check_settled(func, a, around, reader, simplify)
        stack.extend(flow.producers(w))


def _check_settled(
    func: Func, store: Access, around: Sequence[For], reader: Block, simplify: Simplifier
) -> None:
    assert store.block is not None
    own = store.iters[
        len(store.iters) - len(store.block.iters) :
    ]  # those of blocks around it are in their values
    for loop in around:
        changing = [it for it, value in own if loop.var in free_vars(value)]
        if any(it.kind is IterKind.REDUCE for it in changing):
            raise refusal(
                func,
                loop,
                f"loop {loop.var.name!r} carries the reduction of block {store.block.name!r}: {store.buffer.name} is "
                f"not finished inside it, where block {reader.name!r} would read it",
                "choose a loop outside all reduction loops of the producers",
            )
        known = all(it.var in store.place for it in changing)  # the usual case, in a hurry
        if not known and not is_injective(store.place, [it.var for it in changing], simplify):
            raise refusal(
                func,
                store.block,
                f"block {store.block.name!r} writes elements of {store.buffer.name} anew in each iteration of "
                f"{loop.var.name!r}, where block {reader.name!r} would read them",
                "a block that reads intermediate values stays where it is",
            )


def check_not_read_before(func: Func, flow: Dataflow, block: Block) -> None:
    """Nobody reads the old content of what `block` writes, so it may as well be written earlier or later."""
    for r in flow.consumers(block):
        if flow.position(r) < flow.position(block):
            raise refusal(
                func,
                r,
                f"block {r.name!r} reads the buffer before block {block.name!r} writes it",
                "a buffer that is updated in place fixes the order of its blocks",
            )


def check_not_overwritten(func: Func, flow: Dataflow, block: Block) -> None:
    """No consumer reads an element of which `block` has another value later: moved, it would find the last one."""
    mine = [n for n in path_to(func.body, block) if isinstance(n, For) and n.extent > 1]
    if not any(holds(n, r) for n in mine[:1] for r in flow.consumers(block)):
        return
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    spatial = [it.var for it in block.iters if it.kind is IterKind.SPATIAL]
    for store in (n for n in walk(block.body) if isinstance(n, Store)):
        if not is_injective(store.indices, spatial, simplify):
            raise refusal(
                func,
                block,
                f"block {block.name!r} writes elements of {store.buffer.name} anew while others read them",
                "move blocks before their buffers are rolled",
            )


def check_parallel(func: Func, moved: Stmt, above: Sequence[Stmt], simplify: Simplifier) -> None:
    """Different iterations of the parallel loops in `above` write different elements in the nest `moved`."""
    parallel = [n for n in above if isinstance(n, For) and n.kind.is_at_once and n.extent > 1]
    if not parallel:
        return
    for access in accesses(moved, reads=False):
        if access.buffer.scope is not Scope.GLOBAL:  # private to a worker
            continue
        for loop in parallel:
            if not is_injective(access.indices, (loop.var,), simplify):
                raise refusal(
                    func,
                    loop,
                    f"iterations of the {loop.kind.value} loop {loop.var.name!r} would write the same elements of "
                    f"{access.buffer.name}",
                    f"move the block before {loop.var.name!r} is made {loop.kind.value}",
                )


# --------------------------------------------------------------------------------------------------------- places


def top_level(func: Func) -> tuple[Stmt, ...]:
    return func.body.stmts if isinstance(func.body, Seq) else (func.body,)


def nest_of(func: Func, block: Block) -> int:
    """Which top-level statement holds `block`."""
    return next(n for n, s in enumerate(top_level(func)) if holds(s, block))


def holds(s: Stmt, block: Block) -> bool:
    return any(b is block for b in blocks(s))


def insert_nest(func: Func, at: int, nest: Stmt) -> Func:
    """`nest` as the top-level statement number `at`."""
    stmts = top_level(func)
    return func.with_body(seq(*stmts[:at], nest, *stmts[at:]))


def without_block(s: Stmt, block: Block) -> Stmt | None:
    """`s` without `block` and the loops that are empty then; None if nothing is left."""
    if s is block:
        return None
    if isinstance(s, Seq):
        kept = [c for c in (without_block(c, block) for c in s.stmts) if c is not None]
        return seq(*kept) if kept else None
    if isinstance(s, For):
        body = without_block(s.body, block)
        return s if body is s.body else None if body is None else replace(s, body=body)
    return map_children(s, lambda c: without_block(c, block) or Seq(()))


def with_loop_body(s: Stmt, var: Var, fn: Callable[[Stmt], Stmt]) -> Stmt:
    """`s` with the body of the loop over `var` rewritten."""
    if isinstance(s, For) and s.var is var:
        return replace(s, body=fn(s.body))
    return map_children(s, lambda c: with_loop_body(c, var, fn))


def is_done_before(func: Func, writer: Block, place: Stmt) -> bool:
    """Is `writer` in another nest, one that comes before that of `place`?"""
    mine, theirs = path_to(func.body, writer), path_to(func.body, place)
    shared = [a for a, b in zip(mine, theirs, strict=False) if a is b]
    if not shared or any(isinstance(s, For) for s in shared):
        return False
    order = children(shared[-1])
    first, second = mine[len(shared)], theirs[len(shared)]
    return next(s for s in order if s is first or s is second) is first


def check_free(func: Func, *names: str) -> None:
    """The names that a step is about to make are not in use."""
    taken, buffers = func.names, {b.name for b in (*func.params, *func.locals)}
    for name in names:
        if name in taken or name in buffers:
            raise ScheduleError(
                f"the new name {name!r} is taken in {func.name}", hint="was this step applied before?"
            )


def find_buffer(func: Func, name: str) -> Buffer:
    for b in (*func.locals, *func.params):
        if b.name == name:
            return b
    known = ", ".join(b.name for b in (*func.params, *func.locals))
    raise ScheduleError(f"{func.name} has no buffer {name!r}", hint=f"its buffers are: {known}")


# ---------------------------------------------------------------------------------------------------- new loops


def loop_names(block: Block) -> tuple[str, ...]:
    """The loops that a moved block is under, one per iterator."""
    return tuple(f"{block.name}_{n}" for n in range(len(block.iters)))


def simplifier_at(rest: Stmt, block: Block) -> Simplifier:
    """Knows the loops and iterators of a Func whose body is `rest` without `block`, and the iterators of `block`."""
    return Simplifier(ranges(rest) | {it.var: Interval(0, it.extent - 1) for it in block.iters})


def domain_of(block: Block, indices: Indices, part: Region, simplify: Simplifier) -> list[Span | None]:
    """Per iterator of `block`, the values with which `indices` (over the iterators) can be inside `part`. None: all,
    as for every reduction iterator.
    """
    places = [Var(f"{block.name}.{d}") for d in range(len(part))]  # no name in a program has a dot
    simplify.learn({p: Interval(0, s.extent - 1) for p, s in zip(places, part, strict=True)})
    values = [s.min + p for p, s in zip(places, part, strict=True)]
    spatial = [it for it in block.iters if it.kind is IterKind.SPATIAL]
    solved = solve(indices, values, spatial, simplify)
    ranging = {p: s.extent for p, s in zip(places, part, strict=True)}
    return [span_of(solved[it.var], ranging, simplify) if it.var in solved else None for it in block.iters]


def under_new_loops(
    func: Func, rest: Stmt, block: Block, spans: Sequence[Span | None], simplify: Simplifier
) -> Stmt:
    """`block` under loops that run its iterators over `spans` (None: the whole domain), cut to their domains; `rest` is
    the body of `func` without it.
    """
    names = loop_names(block)
    check_free(func.with_body(rest), *names)
    extents: list[int] = []
    bindings: list[Expr] = []
    for name, it, span in zip(names, block.iters, spans, strict=True):
        start, extent = span if span is not None else Span(as_index(0), it.extent)
        extents.append(extent)
        bindings.append(start + Var(name))
        simplify.learn({Var(name): Interval(0, extent - 1)})
    predicate: Expr = TRUE
    for it, binding in zip(block.iters, bindings, strict=True):
        for inside in (as_index(0) <= binding, binding < it.extent):
            predicate = logical_and(predicate, simplify(inside))
    nest: Stmt = replace(block, bindings=tuple([simplify(b) for b in bindings]), predicate=predicate)
    for name, extent in zip(reversed(names), reversed(extents), strict=True):
        nest = For(Var(name), extent, nest)
    return nest

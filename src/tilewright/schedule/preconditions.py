"""What steps that move blocks ask of a Func before they do: each condition refuses with the place and the reason.

The steps rely on what a block promises: its instances cover the domains of its iterators, and its predicate only keeps
them inside (a split that does not divide makes such predicates). So a block can be taken out of its nest and put
under new loops that cover the part of its domain that is needed there; the predicate is made anew. A block that
shares the writing of a buffer with another (the parts of a partitioned loop, the halves of a decomposed reduction)
covers only its own part: such blocks stay where they are.
"""

from collections.abc import Sequence

from tilewright.ir.expr import (
    Buffer,
    Const,
    Load,
    Scope,
    Var,
    free_vars,
)
from tilewright.ir.expr import walk as walk_expr
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import contains_block, path_to
from tilewright.tir.analysis.affine import is_injective
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.analysis.open_reductions import relies_on_size
from tilewright.tir.analysis.regions import Access, accesses
from tilewright.tir.func import Func
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import (
    Block,
    For,
    IterKind,
    Stmt,
    Store,
    blocks,
    stmt_exprs,
    walk_stmts,
)


def check_leaf(func: Func, block: Block) -> None:
    if any(isinstance(n, Block | For) for n in walk_stmts(block.body)):
        raise step_refusal(
            func,
            block,
            f"block {block.name!r} holds loops or blocks of its own",
            "apply the step before those are made",
        )


def check_closed(func: Func, block: Block) -> None:
    """The step changes iterators, and would lose how far they are in use."""
    if relies_on_size(block):
        raise step_refusal(func, block, f"block {block.name!r} reduces an open dimension")


def check_scope(func: Func, block: Block, loop: For) -> None:
    """`loop` is not hidden inside another block than `block` is."""

    def around(s: Stmt) -> list[Stmt]:
        return [n for n in path_to(func.body, s)[:-1] if isinstance(n, Block)]

    mine, theirs = around(block), around(loop)
    if len(mine) != len(theirs) or any(a is not b for a, b in zip(mine, theirs, strict=True)):
        raise step_refusal(
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
            raise step_refusal(
                func,
                others[0],
                f"{buffer.name} has two writers, blocks {block.name!r} and {others[0].name!r}",
                "apply the step before the loop is partitioned or the reduction decomposed",
            )


def _fills_before(func: Func, flow: Dataflow, fill: Block, block: Block, loop: For) -> bool:
    """Does `fill` store a literal, and run before both `block` and `loop`, sharing the same loops with either?"""
    if fill.is_reduction or fill.try_store is None or not isinstance(fill.store.value, Const):
        return False
    if contains_block(loop, fill) or flow.position(fill) > min(
        flow.position(b) for b in (block, next(blocks(loop)))
    ):
        return False

    def shared(s: Stmt) -> list[Var]:
        return [n.var for n in path_to(func.body, s) if isinstance(n, For) and contains_block(n, fill)]

    return shared(block) == shared(loop)


def check_not_in_place(func: Func, flow: Dataflow, block: Block) -> None:
    """The block computes its buffer from others: running an instance twice gives the same result.

    A reduction reads its own accumulator, at the place where it writes it.
    """
    written = flow.writes(block)
    places = {n.indices for n in walk_stmts(block) if isinstance(n, Store)}
    for e in (e for n in walk_stmts(block.body) for e in stmt_exprs(n)):
        for n in walk_expr(e):
            if not isinstance(n, Load) or n.buffer not in written:
                continue
            if block.init is None or n.indices not in places or len(places) != 1:
                raise step_refusal(
                    func,
                    block,
                    f"block {block.name!r} changes {n.buffer.name} in place",
                    "the block must compute its buffer from others, or be a reduction with init",
                )


def check_not_nested(func: Func, block: Block) -> None:
    """The block can be taken away: it is not part of another block."""
    outer = next((n for n in path_to(func.body, block)[:-1] if isinstance(n, Block)), None)
    if outer is not None:
        raise step_refusal(
            func,
            block,
            f"block {block.name!r} is inside block {outer.name!r}",
            f"apply the step before {outer.name!r} is made",
        )


def check_local(func: Func, buffer: Buffer, block: Block) -> None:
    """Nobody outside `func` sees `buffer`."""
    if buffer in func.params:
        raise step_refusal(
            func,
            block,
            f"{buffer.name} is a parameter of {func.name}: others use what block {block.name!r} writes",
        )


def check_single_store(func: Func, block: Block) -> Store:
    """The block's one store, unconditional and not a reduction."""
    if block.is_reduction or block.init is not None:
        raise step_refusal(
            func,
            block,
            f"block {block.name!r} is a reduction; only a block whose iterators are all spatial can be inlined",
            "move it with ComputeAt or ReverseComputeAt",
        )
    if block.try_store is None:
        raise step_refusal(func, block, f"the body of block {block.name!r} is not one store")
    return block.store


def check_inputs_stay(func: Func, flow: Dataflow, block: Block) -> None:
    """What `block` reads is not written again after it has run, so it may as well run later."""
    mine = [n for n in path_to(func.body, block) if isinstance(n, For) and n.extent > 1]
    for buffer in flow.reads(block):
        for w in flow.writers(buffer):
            if w is block:
                continue
            if flow.position(w) > flow.position(block):
                raise step_refusal(
                    func,
                    w,
                    f"block {w.name!r} overwrites {buffer.name}, which block {block.name!r} has read before; "
                    f"{block.name!r} cannot run later",
                )
            if any(contains_block(n, w) for n in mine):
                check_settled(func, flow, w, mine, block, Simplifier(ranges(func.body)))


def check_settled(
    func: Func, flow: Dataflow, writer: Block, around: Sequence[For], reader: Block, simplify: Simplifier
) -> None:
    """`writer` gives an element of its buffer the same value in all iterations of the loops `around` that write it."""
    around = [n for n in around if n.extent > 1 and contains_block(n, writer)]
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
            raise step_refusal(
                func,
                loop,
                f"loop {loop.var.name!r} carries the reduction of block {store.block.name!r}: {store.buffer.name} is "
                f"not finished inside it, where block {reader.name!r} would read it",
                "choose a loop outside all reduction loops of the producers",
            )
        known = all(it.var in store.place for it in changing)  # the usual case, in a hurry
        if not known and not is_injective(store.place, [it.var for it in changing], simplify):
            raise step_refusal(
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
            raise step_refusal(
                func,
                r,
                f"block {r.name!r} reads the buffer before block {block.name!r} writes it",
                "a buffer that is updated in place fixes the order of its blocks",
            )


def check_not_overwritten(func: Func, flow: Dataflow, block: Block) -> None:
    """No consumer reads an element of which `block` has another value later: moved, it would find the last one."""
    mine = [n for n in path_to(func.body, block) if isinstance(n, For) and n.extent > 1]
    if not any(contains_block(n, r) for n in mine[:1] for r in flow.consumers(block)):
        return
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    spatial = [it.var for it in block.iters if it.kind is IterKind.SPATIAL]
    for store in (n for n in walk_stmts(block.body) if isinstance(n, Store)):
        if not is_injective(store.indices, spatial, simplify):
            raise step_refusal(
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
                raise step_refusal(
                    func,
                    loop,
                    f"iterations of the {loop.kind.value} loop {loop.var.name!r} would write the same elements of "
                    f"{access.buffer.name}",
                    f"move the block before {loop.var.name!r} is made {loop.kind.value}",
                )

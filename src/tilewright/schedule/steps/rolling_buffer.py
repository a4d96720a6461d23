"""rolling_buffer: rows that the last iteration has computed are kept, in a buffer that goes round.

    for y in range(10):                                    for T_0_head in range(2):
        for T_0 in range(3):                                   T[T_0_head % 3] = f(T_0_head)
            T[y + T_0] = f(y + T_0)                        for y in range(10):
        D[y] = T[y] + T[y + 1] + T[y + 2]      ─────>          for T_0 in range(1):
                                                                   T[(y + T_0 + 2) % 3] = f(y + T_0 + 2)
        RollingBuffer("T", "T")                                D[y] = T[y % 3] + T[(y + 1) % 3] + T[(y + 2) % 3]

`block` was moved under `y` by ComputeAt, and what it computes in one iteration overlaps with that of the next. The rows
of `buffer` in use at a time are a window of as many as one iteration needs: the buffer is cut to that, and the index of
a row becomes a remainder. In an iteration the block computes only the rows that are new. Those that the first one
would have from the one before it are computed ahead of the loop by `<block>_head` (its loops and iterators have the
suffix `_head` too). If the loop is not inside another, a loop `<loop>_roll` of one iteration is put around both, so
that they stay one nest.

Preconditions, so that no row is read before it is computed or after it is overwritten:
- The loop is serial. The block stands in it alone under loops of its own, in front of all its consumers.
- One iterator of the block moves with the loop, by a constant number of rows per iteration, and starts at a constant:
  it is bound to c·y + t + constant, where t is a loop of the block that feeds nothing else.
- It chooses one index of the store, as it is or shifted by a constant. Consumers read inside the window.
- What the block reads is complete before the loop, or goes round in it too: so rows do not depend on when they are
  computed. In a chain, roll the first buffer first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    Buffer,
    Expr,
    Var,
    free_vars,
)
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.domain import inside_domain, other_conditions
from tilewright.schedule.edit import replace_stmt, simplify_nest, swap_stmt, wrap
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import contains_block, find_block, find_buffer, path_to, ranges_above
from tilewright.schedule.names import bound_names, check_fresh
from tilewright.schedule.preconditions import (
    check_leaf,
    check_local,
    check_not_in_place,
    check_not_nested,
    check_sole_writer,
)
from tilewright.schedule.rolled import Rolled, going_round, try_rolled
from tilewright.schedule.step import BlockStep
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.analysis.regions import Span, accesses, box, contains, loop_extents
from tilewright.tir.func import Func
from tilewright.tir.rename import rename
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, Emit, For, IterKind, LoopKind, Seq, Stmt, Store, seq, walk_stmts


class _Window(NamedTuple):
    """In an iteration of the loop, iterator number `iterator` takes `step`·loop + `start` and the `rows` - 1 values
    after it, by `own`; and it is, up to `shift`, the index of dimension `dim`.
    """

    iterator: int
    own: For
    step: int
    start: int
    rows: int
    dim: int
    shift: int


@dataclass(frozen=True, slots=True)
class RollingBuffer(BlockStep):
    buffer: str

    @property
    def head(self) -> str:
        """The block ahead of the loop."""
        return f"{self.block}_head"

    def rewrite(self, func: Func) -> Func:
        block, buffer = find_block(func, self.block), find_buffer(func, self.buffer)
        flow = Dataflow(func)
        check_leaf(func, block)
        if flow.writes(block) != (buffer,):
            raise step_refusal(func, block, f"{self.block} does not write {self.buffer}, and nothing else")
        check_local(func, buffer, block)
        check_sole_writer(func, flow, block)
        check_not_in_place(func, flow, block)
        check_not_nested(func, block)
        loop, own = _place(func, block)
        inputs = _check_order(func, flow, block, loop)
        simplify = Simplifier(ranges(func.body))
        window = _window(func, block, buffer, loop, own, simplify)
        _check_reads(func, block, buffer, loop, window, simplify)

        ahead, rolled = _parts(block, own, window)
        late = next((r for r in inputs if ahead is not None and not r.reads_ahead_only(ahead)), None)
        if late is not None:
            raise step_refusal(
                func,
                block,
                f"the first rows of {self.buffer} need more of {late.buffer.name} than there is before {loop.var.name}",
            )
        body: Stmt = swap_stmt(loop, own[0], rolled)
        new: set[str] = set()
        if ahead is not None:
            new |= bound_names(ahead)
            body = seq(ahead, body)
            if not any(isinstance(n, For) for n in path_to(func.body, loop)[:-1]):
                body = For(Var(f"{loop.var.name}_roll"), 1, body)
                new.add(body.var.name)
        check_fresh(func, new)
        small = buffer.with_shape(
            tuple(window.rows if d == window.dim else n for d, n in enumerate(buffer.shape))
        )
        known = Simplifier(ranges_above(path_to(func.body, loop)[:-1]) | ranges(body))
        body = simplify_nest(going_round(body, buffer, small, window.dim), known)
        func = replace(func, locals=tuple(small if b is buffer else b for b in func.locals))
        return replace_stmt(func, loop, body)


# ------------------------------------------------------------------------------------------------------- what is there


def _place(func: Func, block: Block) -> tuple[For, list[For]]:
    """The loop that the block was moved under, and the block's own loops."""
    above = list(path_to(func.body, block)[:-1])
    own: list[For] = []
    while above and isinstance(above[-1], For):
        own.insert(0, above[-1])
        above.pop()
    inside = above.pop() if above else None
    loop = above.pop() if above else None
    if not own or not isinstance(inside, Seq) or not isinstance(loop, For):
        raise step_refusal(
            func,
            block,
            f"{block.name} is not computed inside a loop of its consumers",
            hint="move it there with ComputeAt",
        )
    if loop.kind is not LoopKind.SERIAL:
        raise step_refusal(
            func,
            loop,
            f"iterations of {loop.var.name} keep no rows for each other: it is {loop.kind.value}",
            hint="only a serial loop rolls",
        )
    return loop, own


def _check_order(func: Func, flow: Dataflow, block: Block, loop: For) -> list[Rolled]:
    """Consumers come after the block in each iteration of `loop`. What it reads is complete before the loop, or goes
    round in it: those are returned.
    """
    consumers = flow.consumers(block)
    if not consumers:
        raise step_refusal(func, block, f"nothing in {func.name} reads what {block.name} writes")
    for c in consumers:
        if not contains_block(loop, c) or flow.position(c) < flow.position(block):
            raise step_refusal(
                func,
                c,
                f"{c.name} does not read after {block.name} inside {loop.var.name}",
                hint="move it there",
            )
    inputs: list[Rolled] = []
    for buffer in flow.reads(block):
        late = [w for w in flow.writers(buffer) if w is not block and not _is_before(flow, w, block, loop)]
        if not late:
            continue
        rolled = try_rolled(func, flow, buffer, loop)
        if rolled is None or flow.position(late[0]) > flow.position(block):
            raise step_refusal(
                func,
                late[0],
                f"{late[0].name} writes what {block.name} reads, and not before {loop.var.name}",
                hint=f"roll {buffer.name} first, or compute {late[0].name} before the loop",
            )
        inputs.append(rolled)
    return inputs


def _is_before(flow: Dataflow, writer: Block, block: Block, loop: For) -> bool:
    return not contains_block(loop, writer) and flow.position(writer) < flow.position(block)


def _window(
    func: Func, block: Block, buffer: Buffer, loop: For, own: Sequence[For], simplify: Simplifier
) -> _Window:
    moving = [n for n, b in enumerate(block.bindings) if loop.var in free_vars(b)]
    if len(moving) != 1 or block.iters[moving[0]].kind is IterKind.REDUCE:
        raise step_refusal(
            func,
            block,
            f"{loop.var.name} feeds {len(moving)} iterators of {block.name}; one spatial iterator must move with it",
        )
    number = moving[0]
    const, terms = simplify.linear(block.bindings[number])
    steps = dict(terms)
    step = steps.pop(loop.var, 0)
    inner = next((n for n in own if list(steps.items()) == [(n.var, 1)]), None)
    others = [b for n, b in enumerate(block.bindings) if n != number]
    if inner is None or step <= 0 or any(inner.var in free_vars(e) for e in others):
        raise step_refusal(
            func,
            block,
            f"{block.iters[number].var.name} of {block.name} is not bound to a constant times {loop.var.name}, plus a "
            "loop of its own, plus a constant",
            hint="roll the buffer right after ComputeAt, at a loop that is not a tile of another along these rows",
        )
    bound = next(
        (n for n in own if n.kind.is_thread_axis or (n is inner and n.kind is not LoopKind.SERIAL)), None
    )
    if bound is not None:
        raise step_refusal(
            func, bound, f"{bound.var.name} is {bound.kind.value}", hint="roll the buffer before that"
        )
    if other_conditions(block, simplify):
        raise step_refusal(
            func,
            block,
            f"the predicate of {block.name} does more than to keep its iterators in their domains",
        )
    if inner.extent <= step:
        raise step_refusal(
            func, block, f"iterations of {loop.var.name} share no rows of {buffer.name}: nothing to keep"
        )
    dim, shift = _rolled_index(func, block, block.iters[number].var, simplify)
    if buffer.shape[dim] <= inner.extent:
        raise step_refusal(
            func,
            block,
            f"one iteration of {loop.var.name} needs all {buffer.shape[dim]} rows of {buffer.name}",
        )
    return _Window(number, inner, step, const, inner.extent, dim, shift)


def _rolled_index(func: Func, block: Block, var: Var, simplify: Simplifier) -> tuple[int, int]:
    """The dimension of the one place that the block writes which `var` chooses, and by how much it is shifted."""
    places = {n.indices for n in walk_stmts(block) if isinstance(n, Store)}
    used = [(d, i) for place in places for d, i in enumerate(place) if var in free_vars(i)]
    if len(places) == 1 and len(used) == 1:
        ((dim, index),) = used
        shift, terms = simplify.linear(index)
        if terms == ((var, 1),):
            return dim, shift
    raise step_refusal(
        func,
        block,
        f"{var.name} is not one index of what {block.name} writes, or one shifted by a constant",
        hint="the rows that are kept must be rows of the buffer",
    )


def _check_reads(
    func: Func, block: Block, buffer: Buffer, loop: For, window: _Window, simplify: Simplifier
) -> None:
    """What consumers read in an iteration of `loop` is inside the window of that iteration."""
    emit = next((n for n in walk_stmts(loop) if isinstance(n, Emit)), None)
    if emit is not None:
        raise step_refusal(
            func,
            emit,
            f"the intrinsic {emit.intrinsic} reads its operands by strides, and rows that go round have none",
            hint="roll the buffer before Tensorize",
        )
    ranging = loop_extents(loop.body)
    rows = Span(loop.var * window.step + (window.start + window.shift), window.rows)
    for a in accesses(loop.body):
        if a.buffer is not buffer or a.block is block or a.block is None:
            continue
        span = box(a, ranging, simplify).spans[window.dim]
        if span is None or not contains(rows, span, buffer.shape[window.dim], simplify):
            raise step_refusal(
                func,
                a.block,
                f"{a.block.name} reads rows of {buffer.name} that are not known to be among those computed in the same "
                f"iteration of {loop.var.name}",
            )


# ------------------------------------------------------------------------------------------------------- the new nests


def _parts(block: Block, own: Sequence[For], window: _Window) -> tuple[Stmt | None, Stmt]:
    """The nest ahead of the loop (None if all its rows are outside of the domain) and the one in the loop."""
    kept = window.rows - window.step
    low = max(window.start, 0)
    high = min(window.start + kept, block.iters[window.iterator].extent)
    rolled = _part(block, own, window, block.bindings[window.iterator] + kept, window.step)
    if low >= high:
        return None, rolled
    ahead = _part(block, own, window, window.own.var + low, high - low)
    return rename(ahead, "_head"), rolled


def _part(block: Block, own: Sequence[For], window: _Window, binding: Expr, rows: int) -> Stmt:
    """The block's nest with its moving iterator bound to `binding`, over `rows` rows."""
    bindings = list(block.bindings)
    bindings[window.iterator] = binding
    inner = replace(
        block, bindings=tuple(bindings), predicate=logical_and(*inside_domain(block.iters, bindings))
    )
    loops = [replace(n, extent=rows) if n is window.own else n for n in own]
    return wrap(loops, inner)

"""Where things are in a Func: loops and blocks by name, what is around them, and what they hold."""

from collections.abc import Iterable, Iterator

from tilewright.ir.expr import (
    Buffer,
    Expr,
    Indices,
    Var,
    free_vars,
    loads,
)
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.support.errors import ScheduleError
from tilewright.tir.analysis.regions import BufferRegion, Span, span_of
from tilewright.tir.analysis.solve import solve
from tilewright.tir.declared import declared_below
from tilewright.tir.func import Func
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import (
    Block,
    Emit,
    For,
    IterKind,
    Seq,
    Stmt,
    Store,
    blocks,
    children,
    loops,
    stmt_exprs,
    walk_stmts,
)


def top_level(func: Func) -> tuple[Stmt, ...]:
    return func.body.stmts if isinstance(func.body, Seq) else (func.body,)


def accesses_of(body: Stmt, buffer: Buffer) -> Iterator[Indices]:
    """The indices at which `body` reads and writes the buffer."""
    for s in walk_stmts(body):
        if isinstance(s, Store) and s.buffer is buffer:
            yield s.indices
        if isinstance(s, Emit):
            yield from (ld.indices for places in s.operands for ld in places if ld.buffer is buffer)
        for e in stmt_exprs(s):
            yield from (ld.indices for ld in loads(e) if ld.buffer is buffer)


def nest_of(func: Func, block: Block) -> int:
    """Which top-level statement holds `block`."""
    return next(n for n, s in enumerate(top_level(func)) if contains_block(s, block))


def contains_block(s: Stmt, block: Block) -> bool:
    return any(b is block for b in blocks(s))


def is_done_before(func: Func, writer: Block, place: Stmt) -> bool:
    """Is `writer` in another nest, one that comes before that of `place`?"""
    mine, theirs = path_to(func.body, writer), path_to(func.body, place)
    shared = [a for a, b in zip(mine, theirs, strict=False) if a is b]
    if not shared or any(isinstance(s, For) for s in shared):
        return False
    order = children(shared[-1])
    first, second = mine[len(shared)], theirs[len(shared)]
    return next(s for s in order if s is first or s is second) is first


def find_buffer(func: Func, name: str) -> Buffer:
    for b in (*func.locals, *func.params):
        if b.name == name:
            return b
    known = ", ".join(b.name for b in (*func.params, *func.locals))
    raise ScheduleError(f"{func.name} has no buffer {name!r}", hint=f"its buffers are: {known}")


def loop_names(block: Block) -> tuple[str, ...]:
    """The loops that a moved block is under, one per iterator."""
    return tuple(f"{block.name}_{n}" for n in range(len(block.iters)))


def simplifier_at(rest: Stmt, block: Block) -> Simplifier:
    """Knows the loops and iterators of a Func whose body is `rest` without `block`, and the iterators of `block`."""
    return Simplifier(ranges(rest) | {it.var: Interval(0, it.extent - 1) for it in block.iters})


def domain_of(block: Block, indices: Indices, part: BufferRegion, simplify: Simplifier) -> list[Span | None]:
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


def find_loop(func: Func, name: str) -> For:
    found = func.loop(name)
    if found is not None:
        return found
    known = ", ".join(n.var.name for n in loops(func.body))
    raise ScheduleError(f"{func.name} has no loop {name!r}", hint=f"its loops are: {known}")


def find_block(func: Func, name: str) -> Block:
    found = func.block(name)
    if found is not None:
        return found
    known = ", ".join(b.name for b in blocks(func.body))
    raise ScheduleError(f"{func.name} has no block {name!r}", hint=f"its blocks are: {known}")


def path_to(body: Stmt, target: Stmt) -> tuple[Stmt, ...]:
    """The statements from `body` down to and including `target` (found by identity)."""
    path: list[Stmt] = []
    if not _descend(body, target, path):
        raise KeyError(target)
    return tuple(path)


def _descend(node: Stmt, target: Stmt, path: list[Stmt]) -> bool:
    """Append the way from `node` to `target`, if there is one."""
    start = len(path)
    while node is not target:
        path.append(node)
        below = children(node)
        if len(below) != 1:  # only there is a choice of ways
            if any(_descend(c, target, path) for c in below if c is target or _may_hold(c, target)):
                return True
            del path[start:]
            return False
        node = below[0]
    path.append(node)
    return True


def _may_hold(s: Stmt, target: Stmt) -> bool:
    """False if `target` is certainly not below `s`: names are unique."""
    if isinstance(target, For):
        return target.var.name in declared_below(s).loops
    if isinstance(target, Block):
        return target.name in declared_below(s).blocks
    return True


def loops_above(func: Func, target: Stmt) -> tuple[For, ...]:
    """The loops around `target`, outermost first."""
    return tuple(n for n in path_to(func.body, target)[:-1] if isinstance(n, For))


def loops_on(path: Iterable[Stmt]) -> list[For]:
    return [n for n in path if isinstance(n, For)]


def chain(loop: For) -> list[For]:
    """`loop` and the loops perfectly nested in it, outermost first."""
    out = [loop]
    while isinstance(out[-1].body, For):
        out.append(out[-1].body)
    return out


def loop_vars(block: Block, kind: IterKind) -> set[Var]:
    """The variables that the iterators of this kind are bound to."""
    out: set[Var] = set()
    for it, binding in zip(block.iters, block.bindings, strict=True):
        if it.kind is kind:
            out |= free_vars(binding)
    return out


def starts_at_zero(bindings: Iterable[Expr], block: Block) -> bool:
    """Are the reduce iterators of `block`, bound like this, all 0 where the loops that feed them are at 0?"""
    reduce = [b for it, b in zip(block.iters, bindings, strict=True) if it.kind is IterKind.REDUCE]
    simplify = Simplifier({v: Interval(0, 0) for b in reduce for v in free_vars(b)})
    return all(simplify.constant(b) == 0 for b in reduce)


def ranges_above(path: Iterable[Stmt]) -> dict[Var, Interval]:
    """The ranges of what the statements on a path bind."""
    out: dict[Var, Interval] = {}
    for n in path:
        if isinstance(n, For):
            out[n.var] = Interval(0, n.extent - 1)
        elif isinstance(n, Block):
            out.update((it.var, Interval(0, it.extent - 1)) for it in n.iters)
    return out

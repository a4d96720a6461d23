"""Finding one's way in a Func: loops and blocks by name, the path that leads to them, and changing one place."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from tilewright.ir.expr import Expr, Var, free_vars
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.support.errors import ScheduleError
from tilewright.tir.declared import declared, declared_below
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_children, substitute
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, For, Iter, IterKind, Stmt, blocks, children, loops

# ------------------------------------------------------------------------------------------------------- finding


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


def bound_names(s: Stmt) -> set[str]:
    """Every name that `s` binds: loops, blocks, iterators."""
    found = declared(s)
    return {*found.blocks, *(v.name for v in found.ranges)}


def check_fresh(func: Func, new: Iterable[str]) -> None:
    """Refuse to bind a name anew: equal names mean equal variables."""
    taken = func.names
    clash = sorted(n for n in new if n in taken)
    if clash:
        raise ScheduleError(
            f"the new name {clash[0]!r} is taken in {func.name}",
            hint="this step was applied to the same loop or block before; apply it to what it made",
        )


# ------------------------------------------------------------------------------------------------------ changing


def replace_stmt(func: Func, old: Stmt, new: Stmt) -> Func:
    """`func` with the statement `old` (found by identity) replaced by `new`."""
    return func.with_body(swap_stmt(func.body, old, new))


def swap_stmt(body: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """`body` with the statement `old` (found by identity) replaced by `new`."""
    return _replace(path_to(body, old), new)


def _replace(path: Sequence[Stmt], new: Stmt) -> Stmt:
    for parent, child in zip(reversed(path[:-1]), reversed(path), strict=False):
        new = map_children(parent, _swap(child, new))
    return new


def _swap(old: Stmt, new: Stmt) -> Callable[[Stmt], Stmt]:
    return lambda c: new if c is old else c


def replace_nest(func: Func, old: Stmt, new: Stmt) -> Func:
    """As `replace_stmt`, with the bindings and predicates in `new` simplified."""
    path = path_to(func.body, old)
    simplify = Simplifier(ranges_above(path[:-1]) | ranges(new))
    return func.with_body(_replace(path, simplify_nest(new, simplify)))


def ranges_above(path: Iterable[Stmt]) -> dict[Var, Interval]:
    """The ranges of what the statements on a path bind."""
    out: dict[Var, Interval] = {}
    for n in path:
        if isinstance(n, For):
            out[n.var] = Interval(0, n.extent - 1)
        elif isinstance(n, Block):
            out.update((it.var, Interval(0, it.extent - 1)) for it in n.iters)
    return out


def simplify_nest(s: Stmt, simplify: Simplifier) -> Stmt:
    """Bindings and predicates of the outermost blocks in `s` simplified."""
    if not isinstance(s, Block):
        return map_children(s, lambda c: simplify_nest(c, simplify))
    bindings, predicate = tuple([simplify(b) for b in s.bindings]), simplify(s.predicate)
    if predicate is s.predicate and bindings == s.bindings:  # equality of nodes is identity
        return s
    return Block(s.name, s.iters, bindings, s.body, s.init, predicate, s.annotations)


def wrap(nest: Iterable[For], body: Stmt) -> Stmt:
    """`body` in loops like those of `nest` (outermost first): same variable, extent, kind and annotations."""
    for loop in reversed(list(nest)):
        body = For(loop.var, loop.extent, body, loop.kind, loop.annotations)
    return body


def rename(s: Stmt, suffix: str, values: Mapping[Var, Expr] | None = None) -> Stmt:
    """A copy of `s` in which every loop, iterator and block that `s` binds has `suffix` appended to its name.

    `values` replace variables that `s` uses but does not bind.
    """
    new: dict[Var, Expr] = dict(values or {})
    renamed = _renamed(s, suffix, new)
    return substitute(renamed, new)


def _renamed(s: Stmt, suffix: str, new: dict[Var, Expr]) -> Stmt:
    """`s` with new names where they are bound, not yet where they are used; notes the variables in `new`."""

    def fresh(v: Var) -> Var:
        var = new[v] = Var(v.name + suffix)
        return var

    match s:
        case For():
            var = fresh(s.var)
            return For(var, s.extent, _renamed(s.body, suffix, new), s.kind, s.annotations)
        case Block():
            iters = tuple([Iter(fresh(it.var), it.extent, it.kind) for it in s.iters])
            init = None if s.init is None else _renamed(s.init, suffix, new)
            body = _renamed(s.body, suffix, new)
            return Block(s.name + suffix, iters, s.bindings, body, init, s.predicate, s.annotations)
        case _:
            return map_children(s, lambda c: _renamed(c, suffix, new))

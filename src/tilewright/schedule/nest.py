"""Finding one's way in a Func: loops and blocks by name, the path that leads to them, and changing one place."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright.ir.expr import Expr, Var, free_vars
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_children, substitute
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, For, Iter, IterKind, Stmt, blocks, children, loops, walk

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
    return tuple(reversed(path))


def _descend(node: Stmt, target: Stmt, path: list[Stmt]) -> bool:
    if node is target:
        path.append(node)
        return True
    for child in children(node):
        if _descend(child, target, path):
            path.append(node)
            return True
    return False


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
    out: set[str] = set()
    for n in walk(s):
        if isinstance(n, For):
            out.add(n.var.name)
        elif isinstance(n, Block):
            out.add(n.name)
            out.update(it.var.name for it in n.iters)
    return out


def check_fresh(func: Func, new: Iterable[str]) -> None:
    """Refuse to bind a name anew: equal names mean equal variables."""
    clash = sorted(bound_names(func.body).intersection(new))
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

    def visit(n: Stmt) -> Stmt:
        if not isinstance(n, Block):
            return map_children(n, visit)
        bindings, predicate = tuple([simplify(b) for b in n.bindings]), simplify(n.predicate)
        if predicate is n.predicate and all(a is b for a, b in zip(bindings, n.bindings, strict=True)):
            return n
        return replace(n, bindings=bindings, predicate=predicate)

    return visit(s)


def wrap(nest: Iterable[For], body: Stmt) -> Stmt:
    """`body` in loops like those of `nest` (outermost first): same variable, extent, kind and annotations."""
    for loop in reversed(list(nest)):
        body = replace(loop, body=body)
    return body


def rename(s: Stmt, suffix: str, values: Mapping[Var, Expr] | None = None) -> Stmt:
    """A copy of `s` in which every loop, iterator and block that `s` binds has `suffix` appended to its name.

    `values` replace variables that `s` uses but does not bind.
    """
    new: dict[Var, Expr] = dict(values or {})

    def fresh(v: Var) -> Var:
        var = Var(v.name + suffix)
        new[v] = var
        return var

    def visit(n: Stmt) -> Stmt:
        match n:
            case For():
                return replace(n, var=fresh(n.var), body=visit(n.body))
            case Block():
                iters = tuple([Iter(fresh(it.var), it.extent, it.kind) for it in n.iters])
                init = None if n.init is None else visit(n.init)
                return replace(n, name=n.name + suffix, iters=iters, body=visit(n.body), init=init)
            case _:
                return map_children(n, visit)

    renamed = visit(s)
    return substitute(renamed, new)

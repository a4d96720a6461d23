"""Finding one's way in a Func: loops and blocks by name, and the path that leads to them."""

from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_children
from tilewright.tir.stmt import Block, For, Stmt, blocks, children, loops


def find_loop(func: Func, name: str) -> For:
    for n in loops(func.body):
        if n.var.name == name:
            return n
    known = ", ".join(n.var.name for n in loops(func.body))
    raise ScheduleError(f"{func.name} has no loop {name!r}", hint=f"its loops are: {known}")


def find_block(func: Func, name: str) -> Block:
    for b in blocks(func.body):
        if b.name == name:
            return b
    known = ", ".join(b.name for b in blocks(func.body))
    raise ScheduleError(f"{func.name} has no block {name!r}", hint=f"its blocks are: {known}")


def path_to(body: Stmt, target: Stmt) -> tuple[Stmt, ...]:
    """The statements from `body` down to and including `target` (found by identity)."""
    stack: list[tuple[Stmt, tuple[Stmt, ...]]] = [(body, ())]
    while stack:
        node, path = stack.pop()
        here = (*path, node)
        if node is target:
            return here
        stack.extend((c, here) for c in children(node))
    raise KeyError(target)


def loops_above(func: Func, target: Stmt) -> tuple[For, ...]:
    """The loops around `target`, outermost first."""
    return tuple(n for n in path_to(func.body, target)[:-1] if isinstance(n, For))


def replace_stmt(func: Func, old: Stmt, new: Stmt) -> Func:
    """`func` with the statement `old` (found by identity) replaced by `new`."""

    def swap(n: Stmt) -> Stmt:
        return new if n is old else map_children(n, swap)

    return func.with_body(swap(func.body))

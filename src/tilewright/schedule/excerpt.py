"""Showing where a step was refused: the loops down to the place and what is in it, the place marked.

| for C_i in range(8):
|     for C_k in range(16):    <-- here
|         C(C_vi = C_i, C_vk = reduce(C_k))
"""

from tilewright.ir.expr import TRUE
from tilewright.schedule.find import path_to
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.printer import print_expr
from tilewright.tir.stmt import Block, For, IterKind, Stmt, children

_LINES_BELOW = 8
_LINES_OF_ALL = 40


def step_refusal(func: Func, at: Stmt, condition: str, hint: str | None = None) -> ScheduleError:
    """The error of a step whose precondition `condition` does not hold at the statement `at` of `func`."""
    return ScheduleError(condition, where=excerpt(func, at), hint=hint)


def excerpt(func: Func, at: Stmt) -> str:
    """The loops and blocks around `at`, and the first lines below it."""
    path = path_to(func.body, at)
    lines: list[str] = []
    depth = 0
    for node in path:
        text = header(node)
        if text is not None:
            lines.append("    " * depth + text)
            depth += 1
    if header(at) is not None:
        lines[-1] += "    <-- here"
    below: list[str] = []
    for child in children(at):
        _outline(child, depth, below)
    if len(below) > _LINES_BELOW:
        below[_LINES_BELOW:] = ["    " * depth + "…"]
    return "\n    | ".join((func.name, *lines, *below))


def outline(func: Func) -> str:
    """All loops and blocks, without a mark."""
    lines: list[str] = []
    _outline(func.body, 0, lines)
    if len(lines) > _LINES_OF_ALL:
        lines[_LINES_OF_ALL:] = ["…"]
    return "\n    | ".join((func.name, *lines))


def header(node: Stmt) -> str | None:
    """One line for a loop or a block; None for other statements."""
    match node:
        case For():
            return f"for {node.var.name} in {node.kind.value}({node.extent}):"
        case Block():
            bound = [
                f"{it.var.name} = {print_expr(b) if it.kind is IterKind.SPATIAL else f'reduce({print_expr(b)})'}"
                for it, b in zip(node.iters, node.bindings, strict=True)
            ]
            guard = "" if node.predicate is TRUE else f" where {print_expr(node.predicate)}"
            return f"{node.name}({', '.join(bound)}){guard}"
        case _:
            return None


def _outline(node: Stmt, depth: int, out: list[str]) -> None:
    text = header(node)
    if text is not None:
        out.append("    " * depth + text)
        depth += 1
    for child in children(node):
        _outline(child, depth, out)

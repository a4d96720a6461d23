"""Showing where a step was refused: the loops down to the place and what is in it, the place marked.

>   for C_i in range(8):
>       for C_k in range(16):                <-- here
>           C(C_vi = C_i, C_vk = reduce(C_k))
"""

from tilewright.ir.expr import TRUE, Binary, BinaryOp, Const, Expr, Var
from tilewright.schedule.nest import path_to
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, IterKind, Stmt, children

_LINES_BELOW = 8
_SPELLING = {
    BinaryOp.ADD: "+",
    BinaryOp.SUB: "-",
    BinaryOp.MUL: "*",
    BinaryOp.FLOORDIV: "//",
    BinaryOp.MOD: "%",
    BinaryOp.LT: "<",
    BinaryOp.LE: "<=",
    BinaryOp.AND: "and",
}


def refusal(func: Func, at: Stmt, condition: str, hint: str | None = None) -> ScheduleError:
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
    return "\n" + "\n".join(f"    | {line}" for line in (*lines, *below))


def header(node: Stmt) -> str | None:
    """One line for a loop or a block; None for other statements."""
    match node:
        case For():
            return f"for {node.var.name} in {node.kind.value}({node.extent}):"
        case Block():
            bound = [
                f"{it.var.name} = {_text(b) if it.kind is IterKind.SPATIAL else f'reduce({_text(b)})'}"
                for it, b in zip(node.iters, node.bindings, strict=True)
            ]
            guard = "" if node.predicate is TRUE else f" where {_text(node.predicate)}"
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


def _text(e: Expr) -> str:
    match e:
        case Var():
            return e.name
        case Const():
            return str(e.value)
        case Binary() if e.op in _SPELLING:
            return f"{_operand(e.a)} {_SPELLING[e.op]} {_operand(e.b)}"
        case _:
            return type(e).__name__.lower()


def _operand(e: Expr) -> str:
    return f"({_text(e)})" if isinstance(e, Binary) and e.op is not BinaryOp.MUL else _text(e)

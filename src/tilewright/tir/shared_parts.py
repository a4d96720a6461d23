"""Parts of expressions that text gives a name to. Expressions are DAGs: written as trees they could be endless."""

from collections import Counter
from collections.abc import Sequence

from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import Const, Expr, Load, Var

_INDEX_SIZE = 24  # index arithmetic this small is clearer when repeated than when named


def count_uses(roots: Sequence[Expr]) -> tuple[Counter[Expr], dict[Expr, int]]:
    """How often each distinct node is an operand, and its size as a tree, children first."""
    uses: Counter[Expr] = Counter(roots)
    size: dict[Expr, int] = {}
    stack = [(e, False) for e in reversed(roots)]
    while stack:  # not recursive: the expression may be deeper than Python's stack
        e, are_children_done = stack.pop()
        if e in size:
            continue
        if are_children_done:
            uses.update(e.children())
            size[e] = 1 + sum(size[c] for c in e.children())
        else:
            stack.append((e, True))
            stack += [(c, False) for c in reversed(e.children())]
    return uses, size


def is_worth_naming(e: Expr, size: int) -> bool:
    """Is text clearer if this part of an expression, which is used more than once, has a name?"""
    if isinstance(e, Const | Var):
        return False
    if isinstance(e, Load) or e.dtype is INDEX or e.dtype is DType.BOOL:
        return size >= _INDEX_SIZE
    return True

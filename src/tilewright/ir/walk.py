"""The nodes of an expression."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # expressions offer it as their own
    from tilewright.ir.expr import Expr


def walk(e: "Expr") -> "Iterator[Expr]":
    """Every distinct node below and including `e`, parents first."""
    seen: set[Expr] = set()
    stack = [e]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack.extend(node.children())

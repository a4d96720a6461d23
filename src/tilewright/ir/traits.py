"""What an expression has somewhere in it, as bits: passes that rewrite one of these leave other expressions alone."""

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Binary, BinaryOp, DimSize, Expr, Fma, Unary

FUNCTIONS = 1  # of one argument, and powers
FMAS = 2
HALVES = 4  # values of f16 or bf16
SIZES = 8  # sizes of open dimensions


def traits(e: Expr) -> int:
    """Of all nodes in `e`, each of which remembers its own. Not found by recursion: expressions may be high."""
    try:
        return e.known_traits
    except AttributeError:
        pass
    stack = [e]
    while stack:
        node = stack[-1]
        children = node.children()
        missing = [c for c in children if not hasattr(c, "known_traits")]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        found = _own(node)
        for c in children:
            found |= c.known_traits
        object.__setattr__(node, "known_traits", found)  # nodes are frozen
    return e.known_traits


def _own(e: Expr) -> int:
    found = HALVES if e.dtype is DType.F16 or e.dtype is DType.BF16 else 0
    if isinstance(e, Unary) or (isinstance(e, Binary) and e.op is BinaryOp.POW):
        return found | FUNCTIONS
    if isinstance(e, DimSize):
        return found | SIZES
    return found | FMAS if isinstance(e, Fma) else found

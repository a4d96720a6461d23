"""Which operands of an expression may change places without changing a bit of its value."""

from collections.abc import Iterator

from tilewright.ir.expr import Binary, BinaryOp, Expr, Fma

_COMMUTATIVE = frozenset(
    {BinaryOp.ADD, BinaryOp.MUL, BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR, BinaryOp.EQ, BinaryOp.NE}
)
_OF_INTEGERS = frozenset({BinaryOp.MIN, BinaryOp.MAX})  # of floats they choose between -0.0 and 0.0


def operand_orders(e: Expr) -> Iterator[tuple[Expr, ...]]:
    """The orders of its operands in which `e` means the same, as it stands first."""
    yield e.children()
    match e:
        case Binary() if e.op in _COMMUTATIVE or (e.op in _OF_INTEGERS and not e.a.dtype.is_float):
            yield (e.b, e.a)
        case Fma():
            yield (e.b, e.a, e.c)
        case _:
            return

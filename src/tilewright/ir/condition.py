"""Conditions that several conditions make together."""

from tilewright.ir.expr import TRUE, Binary, BinaryOp, Expr, binary


def logical_and(*terms: Expr) -> Expr:
    out: Expr = TRUE
    for t in terms:
        out = binary(BinaryOp.AND, out, t)
    return out


def conjuncts(cond: Expr) -> list[Expr]:
    """The conditions that `cond` is the conjunction of; none if it is true."""
    if cond is TRUE:
        return []
    if isinstance(cond, Binary) and cond.op is BinaryOp.AND:
        return [*conjuncts(cond.a), *conjuncts(cond.b)]
    return [cond]

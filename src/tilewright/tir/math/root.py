"""rsqrt: there is a square root and a division, both correctly rounded."""

from tilewright.ir.expr import Expr
from tilewright.tir.math.arith import sqrt


def rsqrt(x: Expr) -> Expr:
    """1 / √x, in any float type."""
    return 1.0 / sqrt(x)

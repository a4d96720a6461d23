"""The best elements of a row, in order."""

from collections.abc import Callable

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr
from tilewright.ops.core.order_key import key_dtype
from tilewright.ops.core.row_program import RowProgram
from tilewright.ops.core.row_sort import MOST_RANKED, RANKED_TOGETHER, Ranked, rank_each, sort_digits
from tilewright.tir.stmt import Stmt, seq


def best_of_row(
    p: RowProgram, length: int, k: int, dtype: DType, key: Callable[[Expr], Expr], each: Ranked
) -> Stmt:
    """`each` for the `k` best of `length` elements of this type, and maybe for others with a rank behind them."""
    to = key_dtype(dtype)
    if length > MOST_RANKED:
        return sort_digits(p, length, length, to, key, each)
    keys = p.array("keys", (length + RANKED_TOGETHER,), to)
    return seq(p.loop("keys", length, lambda i: keys.put(i, key(i))), rank_each(p, keys, length, each))

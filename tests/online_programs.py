"""A chain of two MatMuls with a softmax between them, as a Func."""

from tilewright.ir.dtype import DType
from tilewright.ir.expr import UnaryOp, const, select, unary
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func


def chain(rows: int = 3, keys: int = 10, size: int = 4, low: float | None = None, offset: int = 0) -> Func:
    """softmax(q · kᵀ) · v, in which a row does not see what follows it by more than `offset`, if `low` is given."""
    b = FuncBuilder("attention")
    q, k = b.param("Q", (rows, size), DType.F32), b.param("K", (keys, size), DType.F32)
    v = b.param("V", (keys, size), DType.F32)
    x = b.reduce("S", (rows, keys), (size,), lambda i, j, c: (q[i, c], k[j, c]))
    if low is not None:
        raw, hidden = x, const(low, DType.F32)
        x = b.compute("X", raw.shape, lambda i, j: select(j <= i + offset, raw[i, j], hidden))
    m = b.reduce("M", (rows, 1), (keys,), lambda i, o, j: x[i, j], "max")
    p = b.compute("P", (rows, keys), lambda i, j: unary(UnaryOp.EXP, x[i, j] - m[i, 0]))
    t = b.reduce("T", (rows, 1), (keys,), lambda i, o, j: p[i, j])
    y = b.reduce("Y", (rows, size), (keys,), lambda i, d, j: (p[i, j], v[j, d]))
    return b.finish(b.compute("Z", y.shape, lambda i, d: y[i, d] / t[i, 0]))

"""What the rule for attention makes of a small chain, in full.

Run with `--bless` to write the text anew, and read the difference before it is committed.
"""

from collections.abc import Callable

from tilewright.families.chain.space import ChainSpace
from tilewright.ir.dtype import DType
from tilewright.ir.expr import UnaryOp, unary
from tilewright.search.default import spaces
from tilewright.target.target import AVX2
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.printer import print_func
from tilewright.tir.verify import verify_func


def attention(heads: int, rows: int, keys: int, size: int) -> Func:
    b = FuncBuilder("attention")
    q = b.param("Q", (heads, rows, size), DType.F32)
    k = b.param("K", (heads, keys, size), DType.F32)
    v = b.param("V", (heads, keys, size), DType.F32)
    s = b.reduce("S", (heads, rows, keys), (size,), lambda h, i, j, c: (q[h, i, c], k[h, j, c]))
    m = b.reduce("M", (heads, rows, 1), (keys,), lambda h, i, o, j: s[h, i, j], "max")
    p = b.compute("P", s.shape, lambda h, i, j: unary(UnaryOp.EXP, s[h, i, j] - m[h, i, 0]))
    t = b.reduce("T", (heads, rows, 1), (keys,), lambda h, i, o, j: p[h, i, j])
    y = b.reduce("Y", (heads, rows, size), (keys,), lambda h, i, d, j: (p[h, i, j], v[h, j, d]))
    return b.finish(b.compute("Z", y.shape, lambda h, i, d: y[h, i, d] / t[h, i, 0]))


def test_blocks_of_rows(golden: Callable[[str, str], None]) -> None:
    space = spaces(attention(2, 24, 16, 8), AVX2)[0]
    assert isinstance(space, ChainSpace)
    decisions = {
        "block": 12,
        "keys": 0,
        "first_rows": 6,
        "first_vectors": 2,
        "first_pack": 1,
        "first_columns_outside": 1,
        "second_rows": 6,
        "second_vectors": 1,
        "second_pack": 0,
        "second_columns_outside": 0,
    }
    func = space.build(decisions).module.funcs[0]
    verify_func(func)
    golden("attention.tir", print_func(func))

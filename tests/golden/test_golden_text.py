"""What programs look like. A change of the printer, the builder or the names they make shows here first.

Run with `--bless` to write the texts anew, and read the difference before it is committed.
"""

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    Buffer,
    Expr,
    Fma,
    Scope,
    Select,
    Unary,
    UnaryOp,
    Var,
    as_index,
    const,
    maximum,
)
from tilewright.schedule.steps.split import Split
from tilewright.support.program import Branch, While
from tilewright.tir.build import FuncBuilder
from tilewright.tir.compare import same_func, same_module
from tilewright.tir.func import Call, Constant, External, Func, Module, single
from tilewright.tir.parser import parse_func, parse_module
from tilewright.tir.printer import print_func, print_module
from tilewright.tir.stmt import Alloc, For, LoopKind, Seq, Store
from tilewright.tir.verify import verify_func, verify_module

F32 = DType.F32


def gemm() -> Func:
    b = FuncBuilder("gemm")
    x, w = b.param("A", (20, 16), F32), b.param("B", (16, 24), F32)
    c = b.reduce("C", (20, 24), (16,), lambda i, j, k: (x[i, k], w[k, j]))
    return b.finish(b.compute("D", (20, 24), lambda i, j: maximum(c[i, j], 0.0)))


def tiled_gemm() -> Func:
    module = single(gemm())
    for step in (Split("C_i", (None, 6)), Split("C_j", (None, 16)), Split("D_j", (None, 8))):
        module = step.apply(module)
    return module.funcs[0]


def padded_conv() -> Func:
    b = FuncBuilder("conv")
    x, w = b.param("X", (1, 3, 8, 8), F32), b.param("W", (4, 3, 3, 3), F32)

    def pad(n: Var, c: Var, h: Var, v: Var) -> Expr:
        inside = logical_and(as_index(1) <= h, h < 9, as_index(1) <= v, v < 9)
        return Select(inside, x[n, c, h - 1, v - 1], const(0.0, F32))

    p = b.compute("pad", (1, 3, 10, 10), pad)
    y = b.reduce(
        "Y", (1, 4, 8, 8), (3, 3, 3), lambda n, o, h, v, c, r, s: (p[n, c, h + r, v + s], w[o, c, r, s])
    )
    return b.finish(y)


def gelu() -> Func:
    b = FuncBuilder("gelu")
    x = b.param("X", (128,), F32)

    def value(i: Var) -> Expr:
        inner = x[i] * Fma(x[i] * x[i], const(0.035677408, F32), const(0.7978846, F32))
        half = x[i] * 0.5
        return Fma(half, Unary(UnaryOp.TANH, inner), half)

    return b.finish(b.compute("Y", (128,), value))


def register_sum() -> Func:
    """Lowered: registers, unrolled stores, no blocks."""
    x, y = Buffer("X", (64, 16), F32), Buffer("Y", (16,), F32)
    acc = Buffer("acc", (2, 8), F32, Scope.REGISTER)
    k, lane = Var("k"), Var("lane")

    def lanes(name: str, *stores: Store) -> For:
        body = stores[0] if len(stores) == 1 else Seq(stores)
        return For(Var(name), 8, body, LoopKind.VECTORIZED)

    zero = lanes("zero", *(Store(acc, (as_index(n), Var("zero")), const(0.0, F32)) for n in (0, 1)))
    add = lanes("lane", *(Store(acc, (as_index(n), lane), acc[n, lane] + x[k, lane + 8 * n]) for n in (0, 1)))
    out = lanes("out_lane", *(Store(y, (Var("out_lane") + 8 * n,), acc[n, Var("out_lane")]) for n in (0, 1)))
    return Func("register_sum", (x, y), (), Alloc(acc, Seq((zero, For(k, 64, add), out))), (y,))


@pytest.mark.parametrize(
    "make", [gemm, tiled_gemm, padded_conv, gelu, register_sum], ids=lambda f: f.__name__
)
def test_func(make: Callable[[], Func], golden: Callable[[str, str], None]) -> None:
    func = make()
    verify_func(func, lowered=func.name == "register_sum")
    text = print_func(func)
    assert same_func(parse_func(text), func)
    golden(f"{make.__name__}.tir", text)


def test_module(golden: Callable[[str, str], None]) -> None:
    x, w, y = (Buffer(n, (4,), F32) for n in ("x.1", "w", "y"))
    flag = Buffer("flag", (1,), DType.BOOL)
    b = FuncBuilder("add")
    p, q = b.param("p", (4,), F32), b.param("q", (4,), F32)
    add = b.finish(b.compute("r", (4,), lambda i: p[i] + q[i]))
    program = (
        Call("add", (x, w, y)),
        External("is_small", (y,), (flag,)),
        While(flag, (Call("add", (y, w, y)), External("is_small", (y,), (flag,)))),
        Branch(flag, (), (Call("add", (y, y, y)),)),
    )
    value = np.arange(4, dtype=np.float32)
    module = Module((add,), program, (x,), (y,), (Constant(w, value),), (flag,))
    verify_module(module)
    text = print_module(module)
    assert same_module(parse_module(text, {"w": value}), module)
    golden("module.tir", text)

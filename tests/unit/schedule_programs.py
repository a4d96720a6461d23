"""Small programs to schedule, and `check`, which compares what they mean before and after.

Loops that promise independent iterations are also run backwards: that shows a promise that was not kept.
"""

import numpy as np
from native import run_native

from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, UnaryOp, binary, const, maximum, select, unary
from tilewright.schedule.excerpt import header
from tilewright.schedule.step import Step
from tilewright.schedule.trace import parse_trace, print_trace, replay
from tilewright.tir.build import FuncBuilder
from tilewright.tir.compare import same_func
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func
from tilewright.tir.parser import parse_func
from tilewright.tir.printer import print_func
from tilewright.tir.rewrite import substitute_stmt, transform_stmt
from tilewright.tir.stmt import For, Stmt, children
from tilewright.tir.verify import verify_func


def matmul(dtype: DType = DType.I32, m: int = 7, n: int = 6, k: int = 5, *, relu: bool = False) -> Func:
    b = FuncBuilder("matmul")
    x, y = b.param("A", (m, k), dtype), b.param("B", (k, n), dtype)
    c = b.reduce("C", (m, n), (k,), lambda i, j, k: (x[i, k], y[k, j]))
    if relu:
        c = b.compute("D", (m, n), lambda i, j: maximum(c[i, j], 0))
    return b.finish(c)


def conv(dtype: DType = DType.I32) -> Func:
    b = FuncBuilder("conv")
    x, w = b.param("X", (2, 5, 6), dtype), b.param("W", (3, 2, 3, 3), dtype)
    p = b.compute(
        "P",
        (2, 7, 8),
        lambda c, h, w: select(
            binary(
                BinaryOp.AND,
                binary(BinaryOp.AND, const(1) <= h, h < 6),
                binary(BinaryOp.AND, const(1) <= w, w < 7),
            ),
            x[c, h - 1, w - 1],
            const(0, dtype),
        ),
    )
    y = b.reduce("Y", (3, 5, 6), (2, 3, 3), lambda o, h, v, c, r, s: (p[c, h + r, v + s], w[o, c, r, s]))
    return b.finish(y)


def row_sum(dtype: DType = DType.I32, rows: int = 4, columns: int = 11, combine: str = "sum") -> Func:
    b = FuncBuilder("rows")
    x = b.param("X", (rows, columns), dtype)
    return b.finish(b.reduce("S", (rows,), (columns,), lambda i, k: x[i, k], combine))


def elementwise(dtype: DType = DType.I32) -> Func:
    b = FuncBuilder("chain")
    x = b.param("X", (5, 8), dtype)
    y = b.compute("Y", (5, 8), lambda i, j: x[i, j] * 3)
    z = b.compute("Z", (5, 8), lambda i, j: maximum(y[i, j], 1))
    return b.finish(b.compute("W", (8, 5), lambda i, j: z[j, i] + y[j, i]))


def softmax(columns: int = 9) -> Func:
    b = FuncBuilder("softmax")
    x = b.param("X", (3, columns), DType.F32)
    m = b.reduce("M", (3,), (columns,), lambda i, k: x[i, k], "max")
    e = b.compute("E", (3, columns), lambda i, k: unary(UnaryOp.EXP, x[i, k] - m[i]))
    s = b.reduce("S", (3,), (columns,), lambda i, k: e[i, k])
    return b.finish(b.compute("Y", (3, columns), lambda i, k: e[i, k] / s[i]))


PROGRAMS = {
    "matmul": matmul(),
    "matmul_relu": matmul(relu=True),
    "matmul_f32": matmul(DType.F32, relu=True),
    "conv": conv(),
    "row_sum": row_sum(),
    "row_max": row_sum(DType.F32, combine="max"),
    "row_prod": row_sum(combine="prod"),
    "elementwise": elementwise(),
    "softmax": softmax(),
}


def run(func: Func) -> tuple[np.ndarray, ...]:
    return run_func(func, *inputs_of(func))


def inputs_of(func: Func) -> list[np.ndarray]:
    """Random arrays, the same each time."""
    rng = np.random.default_rng(7)
    return [
        rng.standard_normal(p.shape).astype(p.dtype.numpy)
        if p.dtype.is_float
        else rng.integers(-9, 10, p.shape).astype(p.dtype.numpy)
        for p in func.params
        if p not in func.outputs
    ]


def assert_same(original: Func, scheduled: Func) -> None:
    for a, b in zip(run(original), run(scheduled), strict=True):
        if a.dtype.kind == "f":
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(b, a)


def backwards(func: Func) -> Func:
    """Loops that promise independent iterations as serial ones that count down."""

    def turn(s: Stmt) -> Stmt | None:
        if isinstance(s, For) and s.kind.is_at_once:
            return For(s.var, s.extent, substitute_stmt(s.body, {s.var: const(s.extent - 1) - s.var}))
        return None

    return func.with_body(transform_stmt(func.body, turn))


def outline(s: Stmt, depth: int = 0) -> list[str]:
    """The loops and blocks of a nest, one a line."""
    text = header(s)
    lines = [] if text is None else ["    " * depth + text]
    return lines + [line for c in children(s) for line in outline(c, depth + (text is not None))]


def check_native(func: Func, *trace: Step) -> Func:
    """As `check`, and native code of the scheduled Func gives what its interpretation does, but for the last digits of
    functions like `exp`.
    """
    done = check(func, *trace)
    for a, b in zip(run(done), run_native(done, inputs_of(done)), strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-6 if a.dtype.kind == "f" else 0)
    return done


def check(func: Func, *trace: Step) -> Func:
    """`func` after the steps; its meaning is compared with that of `func`."""
    done = replay(single(func), trace).funcs[0]
    verify_func(done)
    assert_same(func, done)
    assert_same(func, backwards(done))
    assert same_func(parse_func(print_func(done)), done)
    assert parse_trace(print_trace(trace)) == trace
    return done

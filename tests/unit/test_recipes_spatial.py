"""Schedules of blocks without a reduction: cut where conditions change, near their consumers, turned in registers.

Values are small integers, so results are compared exactly, in the interpreter and natively.
"""

import numpy as np
import pytest
from native import run_native

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    Expr,
    Scope,
    Select,
    const,
    select,
    walk,
)
from tilewright.search.default import schedule_func
from tilewright.target.target import AVX2, BASELINE, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.pipeline import lower_func
from tilewright.tir.stmt import For, If, LoopKind, Stmt, Store, blocks, loops, stmt_exprs, walk_stmts
from tilewright.tir.verify import verify_func

F32 = DType.F32


def check(func: Func, target: Target = AVX2) -> Func:
    """The schedule of `func`, which gives what `func` does."""
    scheduled = schedule_func(func, target).func
    verify_func(scheduled)
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(-3, 4, p.shape).astype(p.dtype.numpy) for p in func.params if p not in func.outputs
    ]
    want = run_func(func, *arrays)
    for got in (run_func(scheduled, *arrays), run_native(scheduled, arrays)):
        for w, g in zip(want, got, strict=True):
            np.testing.assert_array_equal(g, w)
    return scheduled


def vectors(func: Func) -> list[For]:
    """The vector loops of the lowered kernels."""
    phases, _ = lower_func(func)
    return [n for p in phases for n in loops(p.func.body) if n.kind is LoopKind.VECTORIZED]


def conditions(s: Stmt) -> int:
    found = sum(isinstance(n, If) for n in walk_stmts(s))
    return found + sum(isinstance(e, Select) for n in walk_stmts(s) for x in stmt_exprs(n) for e in walk(x))


# ------------------------------------------------------------------------------------------------------------ cuts


def padded(shape: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...]) -> Func:
    b = FuncBuilder("padded")
    x = b.param("X", shape, F32)
    wide = tuple(n + p + q for n, p, q in zip(shape, before, after, strict=True))

    def value(*i: Expr) -> Expr:
        sides = zip(i, shape, before, strict=True)
        inside = [c for v, n, p in sides for c in (const(p) <= v, v < n + p)]
        return select(
            logical_and(*inside), x[tuple(v - p for v, p in zip(i, before, strict=True))], const(7, F32)
        )

    return b.finish(b.compute("P", wide, value, axes=[f"i{d}" for d in range(len(shape))]))


@pytest.mark.parametrize(
    ("shape", "before", "after"),
    [
        ((20, 9, 17), (0, 1, 1), (0, 1, 1)),
        ((20, 11, 20), (0, 2, 3), (0, 0, 5)),
        ((40, 50), (1, 0), (1, 9)),
        ((3, 20, 12, 8), (0, 1, 1, 0), (0, 1, 1, 0)),
    ],
)
@pytest.mark.parametrize("target", [AVX2, BASELINE], ids=["avx2", "baseline"])
def test_a_border_leaves_no_condition_in_vectors(
    shape: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...], target: Target
) -> None:
    func = check(padded(shape, before, after), target)
    assert [n for n in vectors(func) if conditions(n)] == []


def test_pieces_of_a_concatenation_are_copied_one_after_the_other() -> None:
    b = FuncBuilder("joined")
    x, y = b.param("X", (20, 24), F32), b.param("Y", (20, 40), F32)
    func = check(b.finish(b.compute("Z", (20, 64), lambda i, j: select(j < 24, x[i, j], y[i, j - 24]))))
    assert [n for n in vectors(func) if conditions(n)] == []


def test_what_depends_on_elements_is_no_reason_to_cut() -> None:
    b = FuncBuilder("relu")
    x, y = b.param("X", (7, 7, 16), F32), b.param("Y", (7, 7, 16), F32)

    def value(i: Expr, j: Expr, k: Expr) -> Expr:
        v = select(k < 16, x[i, j, k], y[i, j, k - 16])
        return select(v < 0, const(0, F32), v)

    scheduled = check(b.finish(b.compute("Z", (7, 7, 32), value)))
    assert len(vectors(scheduled)) == 2, "one for each source, not one for each pixel"


def test_few_elements_are_not_worth_a_cut() -> None:
    func = check(padded((3, 5), (1, 1), (1, 1)))
    assert len(list(blocks(func.body))) <= 2  # whole vectors, and what is left


# -------------------------------------------------------------------------------------------------------- producers


def depthwise(channels: int, size: int, stride: int) -> Func:
    b = FuncBuilder("depthwise")
    x, w = b.param("X", (channels, size, size), F32), b.param("W", (channels, 3, 3), F32)
    out = (size - 1) // stride + 1

    def pad(c: Expr, i: Expr, j: Expr) -> Expr:
        inside = logical_and(const(1) <= i, i < size + 1, const(1) <= j, j < size + 1)
        return select(inside, x[c, i - 1, j - 1], const(0, F32))

    p = b.compute("P", (channels, size + 2, size + 2), pad)
    return b.finish(
        b.reduce(
            "C",
            (channels, out, out),
            (3, 3),
            lambda c, i, j, r, s: (p[c, i * stride + r, j * stride + s], w[c, r, s]),
        )
    )


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [9, 30])
def test_a_border_is_made_where_it_is_read(size: int, stride: int) -> None:
    """One nest: a part pads its channel and convolves it. With a stride no lanes lie side by side, and no family of
    windows takes it.
    """
    func = check(depthwise(32, size, stride))
    if size == 30 and stride == 1:  # enough to share
        (top,) = [n for n in loops(func.body) if n.kind is LoopKind.PARALLEL]
        assert {b.name[0] for b in blocks(top)} >= {"P", "C"}


def test_what_all_parts_need_is_made_before_them() -> None:
    b = FuncBuilder("shared")
    x, w = b.param("X", (64, 64), F32), b.param("W", (64, 128), F32)
    p = b.compute("P", (64, 64), lambda i, j: select(j < 60, x[i, j], const(1, F32)))
    func = check(b.finish(b.reduce("C", (64, 128), (64,), lambda i, j, k: (p[i, k], w[k, j]))))
    tops = func.body.stmts if hasattr(func.body, "stmts") else (func.body,)
    first = next(n for n in tops if any(b.name.startswith("P") for b in blocks(n)))
    assert not any(b.name.startswith("C") for b in blocks(first))


# ------------------------------------------------------------------------------------------------------------ turned


@pytest.mark.parametrize("shape", [(16, 16), (24, 40), (19, 33), (8, 9), (5, 40), (64, 7)])
@pytest.mark.parametrize("target", [AVX2, BASELINE], ids=["avx2", "baseline"])
def test_a_transpose_goes_through_registers(shape: tuple[int, int], target: Target) -> None:
    b = FuncBuilder("transpose")
    x, y = b.param("X", shape, F32), b.param("Y", shape[::-1], F32)
    func = check(b.finish(b.compute("Z", shape[::-1], lambda i, j: x[j, i] * 2 + y[i, j])), target)
    registers = {b.scope is Scope.REGISTER for b in func.locals}
    assert (True in registers) == (min(shape) >= target.lanes(4))


def test_channels_are_put_last_through_registers() -> None:
    b = FuncBuilder("last")
    x = b.param("X", (32, 20, 24), F32)
    func = check(b.finish(b.compute("Z", (20, 24, 32), lambda i, j, c: x[c, i, j])))
    stores = [s for n in vectors(func) for s in walk_stmts(n) if isinstance(s, Store)]
    assert {s.buffer.scope for s in stores} == {Scope.REGISTER, Scope.GLOBAL}


def test_of_what_is_read_twice_the_transposed_half_goes_through_registers() -> None:
    b = FuncBuilder("twice")
    x = b.param("X", (24, 24), F32)
    func = check(b.finish(b.compute("Z", (24, 24), lambda i, j: x[j, i] + x[i, j])))
    assert [b.shape for b in func.locals if b.scope is Scope.REGISTER] == [(8, 8)]


@pytest.mark.parametrize("rows", [3, 6, 24, 25])
def test_a_product_stored_by_columns_is_turned_in_registers(rows: int) -> None:
    b = FuncBuilder("turned")
    x, w, v = b.param("X", (rows, 16), F32), b.param("W", (16, 32), F32), b.param("V", (32,), F32)
    c = b.reduce("C", (rows, 32), (16,), lambda i, j, k: (x[i, k], w[k, j]))
    func = check(b.finish(b.compute("Y", (32, rows), lambda j, i: c[i, j] + v[j])))
    stores = [(n, s) for n in vectors(func) for s in walk_stmts(n) if isinstance(s, Store)]
    assert {n.extent for n, s in stores if s.buffer.name == "Y"} <= ({8} if rows < 4 else {4, 5, 6, 7, 8})

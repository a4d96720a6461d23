"""What runs beyond the size in use reads inside of buffers, and what the size keeps inside stays as it was."""

from collections.abc import Callable

import pytest

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, as_index, const, select
from tilewright.support.sizes import Dim, sym_int
from tilewright.tir.build import FuncBuilder
from tilewright.tir.stmt import Store

F32 = DType.F32
N = sym_int(Dim("n", 1, 64))
Read = Callable[[Buffer, Expr], Expr]


def text(fn: Read, more: int = 0) -> str:
    """How a block of n and `more` elements reads x."""
    b = FuncBuilder("f")
    x = b.param("x", (N,), F32)

    def element(i: Expr) -> Expr:
        return fn(x, i)

    y = b.compute("y", (N + more,), element)
    return next(line for line in str(b.finish(y)).splitlines() if "y[y_vi] =" in line).strip()


def backwards(x: Buffer, i: Expr) -> Expr:
    return x[as_index(N - 1) - i]


def upper_half(x: Buffer, i: Expr) -> Expr:
    return x[i + as_index(N // 2)]


def rows(x: Buffer, i: Expr) -> Expr:
    return x[i * 2 // as_index(N)]


def padded(x: Buffer, i: Expr) -> Expr:
    place = i - 3
    return select(logical_and(const(0) <= place, place < N), x[place], const(0, F32))


def repeated(x: Buffer, i: Expr) -> Expr:
    return select(i < N, x[i], x[i % as_index(N)])


def last(x: Buffer, i: Expr) -> Expr:
    return x[as_index(N - 1)]


@pytest.mark.parametrize(("fn", "bound"), [(backwards, ", 0)]"), (upper_half, ", 63)]"), (rows, ", 63)]")])
def test_an_index_that_may_leave_the_buffer_is_brought_back(fn: Read, bound: str) -> None:
    assert bound in text(fn)


@pytest.mark.parametrize("fn", [padded, repeated, last])
def test_an_index_that_stays_inside_is_left_alone(fn: Read) -> None:
    assert "min(" not in text(fn, 6)
    assert "max(" not in text(fn, 6)


def test_an_update_that_stops_at_the_size_reads_as_it_is() -> None:
    b = FuncBuilder("f")
    x = b.param("x", (N,), F32)
    y = b.ahead("y", (N,), F32)

    def step(i: Expr) -> Store:
        return Store(y, (as_index(N - 1) - i,), backwards(x, i))

    b.update("y", (N,), (), step)
    made = str(b.finish(y))
    assert "max(" not in made
    assert 'spatial(64, y_i, size("n", 1, 64))' in made

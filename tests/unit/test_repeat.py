"""`while` in a block: what the interpreter, the text, the verifier and native code make of it."""

from collections.abc import Callable

import numpy as np
import pytest
from native import TARGETS, run_native

from tilewright.cost.work import block_seconds
from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import Buffer, Expr, Scope, as_index, const
from tilewright.search.default import schedule_func
from tilewright.support.errors import InternalError
from tilewright.target.machine import SHIPPED
from tilewright.tir.build import FuncBuilder
from tilewright.tir.compare import same_func
from tilewright.tir.digest import func_digest
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.parser import parse_func
from tilewright.tir.printer import print_func
from tilewright.tir.stmt import For, Repeat, Stmt, Store, blocks, seq
from tilewright.tir.verify import verify_func

Sound = Callable[[Func], Func]
ROWS, LENGTH = 6, 90


def doubled(scope: Scope) -> Func:
    """How often each number has to be doubled to reach a hundred, and what it is then."""
    b = FuncBuilder("doubled")
    x = b.param("x", (ROWS,), DType.I64)
    times, last = b.ahead("times", (ROWS,), INDEX), b.ahead("last", (ROWS,), INDEX)
    now = Buffer("now", (ROWS, 2), INDEX, scope)

    def body(i: Expr, _: Expr) -> Stmt:
        value, count = now[i, 0], now[i, 1]
        again = seq(
            Store(now, (i, as_index(0)), value * 2),
            Store(now, (i, as_index(1)), count + 1),
        )
        return seq(
            Store(now, (i, as_index(0)), x[i]),
            Store(now, (i, as_index(1)), const(0)),
            Repeat(value < 100, again),
            Store(times, (i,), count),
            Store(last, (i,), value),
        )

    b.update("times", (ROWS, 1), (1,), body)
    return b.finish(times, last)


@pytest.mark.parametrize("scope", [Scope.GLOBAL, Scope.REGISTER])
def test_runs_as_long_as_the_condition_holds(sound: Sound, scope: Scope) -> None:
    func = sound(doubled(scope))
    x = np.array([1, 100, 99, 7, 500, 3])
    expected = [np.array([7, 0, 1, 4, 0, 6]), np.array([128, 100, 198, 112, 500, 192])]
    for got in (
        run_func(func, x),
        *(run_native(schedule_func(func, t).func, [x], t) for t in TARGETS),
    ):
        for g, w in zip(got, expected, strict=True):
            np.testing.assert_array_equal(g, w)


def test_reads_back_as_it_was_printed() -> None:
    func = doubled(Scope.REGISTER)
    text = print_func(func)
    assert "while now[times_vi, 0] < 100:" in text
    assert same_func(parse_func(text), func)


def test_a_condition_is_part_of_the_digest() -> None:
    text = print_func(doubled(Scope.GLOBAL))
    other = parse_func(text.replace("< 100:", "< 101:"))
    assert func_digest(parse_func(text)) != func_digest(other)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("while now[times_vi, 0] < 100:", "while now[times_vi, 0]:", "the condition is i64, not bool"),
        ("now[times_vi, 1] = now[times_vi, 1] + 1", "now[times_vi, 1] = f32(1.0)", "f32, not i64"),
    ],
)
def test_what_is_wrong_in_it_is_found(old: str, new: str, message: str) -> None:
    text = print_func(doubled(Scope.GLOBAL))
    assert old in text
    with pytest.raises(InternalError, match=message):
        verify_func(parse_func(text.replace(old, new)))


def test_it_stands_in_a_block_and_holds_none() -> None:
    x = Buffer("x", (1,), INDEX)
    loop = Repeat(x[0] < 1, Store(x, (as_index(0),), const(1)))
    with pytest.raises(InternalError, match="a while is outside of a block"):
        verify_func(Func("f", (x,), (), loop, (x,)))
    inner = next(blocks(doubled(Scope.GLOBAL).body))
    func = doubled(Scope.GLOBAL)
    held = inner.__class__("outer", (), (), Repeat(const(0) < const(1) + func.params[0][0], func.body))
    with pytest.raises(InternalError, match="a block is inside of a while"):
        verify_func(func.with_body(held))


def test_loops_in_a_block_count_as_often_as_they_run() -> None:
    b = FuncBuilder("rows")
    x = b.param("x", (ROWS, LENGTH), DType.F32)
    y = b.ahead("y", (ROWS,), DType.F32)

    def of(extent: int) -> Callable[[Expr, Expr], Stmt]:
        j = b.var(f"j{extent}")
        return lambda i, _: For(j, extent, Store(y, (i,), y[i] + x[i, j]))

    b.update("few", (ROWS, 1), (1,), of(2))
    b.update("many", (ROWS, 1), (1,), of(LENGTH))
    few, many = (block_seconds(block, 1, SHIPPED) for block in blocks(b.finish(y).body))
    assert many > 4 * few

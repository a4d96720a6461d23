"""What blocks cost, roughly, and which of them a team shares."""

from collections.abc import Callable

import pytest

from tilewright.cost.work import block_seconds
from tilewright.families.parallel import is_worth_sharing, parts_of
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, UnaryOp, unary
from tilewright.search.default import schedule_func
from tilewright.target.machine import SHIPPED
from tilewright.target.target import AVX2
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, blocks

F32 = DType.F32
LANES = AVX2.lanes(4)


def elementwise(size: int, fn: Callable[[Expr], Expr]) -> Func:
    b = FuncBuilder("elementwise")
    x = b.param("X", (size,), F32)
    return b.finish(b.compute("Y", (size,), lambda i: fn(x[i])))


def gemm(rows: int, k: int, cols: int) -> Func:
    b = FuncBuilder("gemm")
    x, w = b.param("X", (rows, k), F32), b.param("W", (k, cols), F32)
    return b.finish(b.reduce("Y", (rows, cols), (k,), lambda i, j, n: (x[i, n], w[n, j])))


def only(func: Func) -> Block:
    (block,) = blocks(func.body)
    return block


def plus(x: Expr) -> Expr:
    return x + 1.0


def power(x: Expr) -> Expr:
    return unary(UnaryOp.EXP, x)


def test_time_grows_with_elements_instructions_and_distance() -> None:
    near, far = (block_seconds(only(elementwise(n, plus)), LANES, SHIPPED) / n for n in (1 << 12, 1 << 24))
    assert far > 2 * near  # in caches, and beyond
    assert block_seconds(only(elementwise(4096, power)), LANES, SHIPPED) > 2 * near * 4096
    assert block_seconds(only(elementwise(4096, plus)), 1, SHIPPED) > 4 * near * 4096  # one by one


def test_an_operand_that_is_read_again_comes_from_afar_once() -> None:
    """A GEMM of 256³ is arithmetic: its operands are a hundredth of what it loads."""
    seconds = block_seconds(only(gemm(256, 256, 256)), LANES, SHIPPED)
    assert seconds == pytest.approx(256**3 / LANES * 0.75 / 3.3e9, rel=0.5)


@pytest.mark.parametrize(
    "func, is_shared",
    [
        (elementwise(2048, plus), False),
        (elementwise(2048, power), False),
        (elementwise(8192, plus), False),
        (elementwise(8192, power), True),
        (elementwise(32768, plus), True),
        (gemm(8, 64, 32), False),
        (gemm(64, 64, 64), True),
        (gemm(1, 256, 256), True),
    ],
    ids=["few", "few powers", "cheap", "powers", "many", "small", "gemm", "weights"],
)
def test_teams_share_what_takes_longer_than_meeting(func: Func, is_shared: bool) -> None:
    assert is_worth_sharing(LANES, only(func)) is is_shared
    assert (parts_of(schedule_func(func, AVX2).func, "Y") > 1) is is_shared

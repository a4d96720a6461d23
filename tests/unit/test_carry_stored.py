"""What an iteration stores and the next one reads: in a register where that is certain, and the same results."""

import numpy as np
import pytest
from native import run_native

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Scope
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.parser import parse_func
from tilewright.tir.passes.carry_stored import carry_stored
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.stmt import Alloc, Store, walk_stmts

F32 = DType.F32


def lowered(body: str, params: str = "x: f32[4, 9], y: out(f32[4, 9])") -> Func:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return lower_blocks(parse_func(f"@func\ndef f({params}):\n{lines}\n"))


def carried(func: Func) -> list[Alloc]:
    return [n for n in walk_stmts(func.body) if isinstance(n, Alloc) and n.buffer.scope is Scope.REGISTER]


def check(func: Func) -> Func:
    after = carry_stored(func)
    x = np.random.default_rng(0).integers(-3, 4, func.params[0].shape).astype(np.float32)
    (want,) = run_func(func, x)
    for got in (run_func(after, x), run_native(after, [x])):
        np.testing.assert_array_equal(got[0], want)
    return after


def scan(value: str, first: str = "y[0, 0] = x[0, 0]") -> str:
    return f"{first}\nfor k in range(8):\n    y[0, k + 1] = {value}"


REST = "for i in range(3):\n    for j in range(9):\n        y[i + 1, j] = x[i + 1, j]\n"


def test_a_running_sum_is_in_a_register() -> None:
    after = check(lowered(REST + scan("y[0, k] + x[0, k + 1]")))
    (register,) = carried(after)
    stores = [n for n in walk_stmts(register.body) if isinstance(n, Store)]
    assert [s.buffer.name for s in stores] == ["y_carried1", "y_carried1", "y"]


def test_rows_do_not_wait_for_each_other() -> None:
    body = "\n".join(f"y[{r}, 0] = x[{r}, 0]" for r in range(4))
    body += "\nfor k in range(8):\n" + "\n".join(
        f"    y[{r}, k + 1] = y[{r}, k] + x[{r}, k + 1]" for r in range(4)
    )
    assert len(carried(check(lowered(body)))) == 4


def test_vectors_are_carried_too() -> None:
    body = """
for j in range(8):
    y[0, j] = x[0, j]
for k in range(3):
    for j in vectorized(8):
        y[k + 1, j] = y[k, j] + x[k + 1, j]
"""
    params = "x: f32[4, 8], y: out(f32[4, 8])"
    (register,) = carried(check(lowered(body, params)))
    assert register.buffer.shape == (8,)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("y[0, max(k - 1, 0)] + x[0, k]", id="two before"),
        pytest.param("select(x[0, k] < 0.0, x[0, k], y[0, k])", id="only sometimes"),
    ],
)
def test_what_is_read_otherwise_stays_in_memory(value: str) -> None:
    assert not carried(check(lowered(REST + scan(value))))


def test_what_another_statement_overwrites_stays_in_memory() -> None:
    body = REST + scan("y[0, k] + x[0, k + 1]") + "\n    y[0, k + 1] = x[0, k + 1] * 2.0"
    assert not carried(check(lowered(body)))


def test_what_is_overwritten_before_it_is_read_stays_in_memory() -> None:
    body = REST + "y[0, 0] = x[0, 0]\nfor k in range(8):\n    y[0, k] = x[0, k] * 2.0\n"
    assert not carried(check(lowered(body + "    y[0, k + 1] = y[0, k] + x[0, k + 1]")))

"""Digests of Funcs: equal up to renaming, different in everything that matters."""

from collections.abc import Callable

import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, const, maximum
from tilewright.tir.build import FuncBuilder
from tilewright.tir.digest import func_digest
from tilewright.tir.func import Func


def chain(
    prefix: str = "",
    shape: tuple[int, int] = (4, 6),
    dtype: DType = DType.F32,
    body: Callable[[Expr], Expr] = lambda x: x + 1.0,
) -> Func:
    b = FuncBuilder(f"{prefix}chain", prefix)
    x = b.param(f"{prefix}X", shape, dtype)
    return b.finish(b.compute("Y", shape, lambda i, j: body(x[i, j])))


def test_names_do_not_matter() -> None:
    assert func_digest(chain()) == func_digest(chain("other_"))


@pytest.mark.parametrize(
    "other",
    [
        chain(shape=(6, 4)),
        chain(dtype=DType.F64),
        chain(body=lambda x: x + 2.0),
        chain(body=lambda x: x - 1.0),
        chain(body=lambda x: maximum(x, 1.0)),
        chain(body=lambda x: const(1.0, DType.F32) + x),
    ],
)
def test_the_computation_matters(other: Func) -> None:
    assert func_digest(chain()) != func_digest(other)


def test_signed_zero_matters() -> None:
    assert func_digest(chain(body=lambda x: x + 0.0)) != func_digest(chain(body=lambda x: x + -0.0))


def test_marks_matter() -> None:
    assert func_digest(chain(), ["constant 0"]) != func_digest(chain())


def test_which_operand_is_which_matters() -> None:
    def difference(swap: bool) -> Func:
        b = FuncBuilder("difference")
        x, y = b.param("X", (4,), DType.F32), b.param("Y", (4,), DType.F32)
        return b.finish(b.compute("Z", (4,), lambda i: y[i] - x[i] if swap else x[i] - y[i]))

    assert func_digest(difference(False)) != func_digest(difference(True))


def test_a_shared_expression_is_written_once() -> None:
    def doubled(x: Expr) -> Expr:
        for _ in range(200):  # a tree of 2^200 nodes, a graph of 200
            x = x * x
        return x

    assert func_digest(chain(body=doubled)) == func_digest(chain("b_", body=doubled))

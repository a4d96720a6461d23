"""Interning: equal nodes are one object, distinct ones are not, and dead ones are forgotten."""

import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import FALSE, TRUE, Binary, BinaryOp, Buffer, Const, Expr, Scope, Var, const
from tilewright.ir.node import interned_count


def test_equal_nodes_are_one_object() -> None:
    a = Binary(BinaryOp.ADD, Var("i"), Const(INDEX, 3))
    assert a is Binary(BinaryOp.ADD, Var("i"), Const(INDEX, 3))
    assert a is not Binary(BinaryOp.ADD, Const(INDEX, 3), Var("i"))
    assert a is not Binary(BinaryOp.SUB, Var("i"), Const(INDEX, 3))
    assert Buffer("A", (2,), DType.F32) is not Buffer("A", (2,), DType.F32, Scope.LOCAL)


def test_literals_that_python_calls_equal_are_different_nodes() -> None:
    values: list[Expr] = [
        Const(INDEX, 1),
        TRUE,
        const(1.0, DType.F32),
        const(1.0, DType.F64),
        const(1, DType.I8),
        const(0.0, DType.F32),
        const(-0.0, DType.F32),
        FALSE,
        Const(INDEX, 0),
    ]
    assert len(set(values)) == len(values)
    assert const(float("nan"), DType.F32) is const(float("nan"), DType.F32)


def test_the_table_holds_nodes_only_while_somebody_does() -> None:
    gc.collect()
    before = interned_count()
    kept = [Var("node_test") * n + n for n in range(2, 200)]
    assert interned_count() > before + 200
    del kept
    gc.collect()
    assert interned_count() <= before + 5  # a concurrent test may have left a few


def test_threads_agree_on_a_node() -> None:
    def make(_: int) -> list[Expr]:
        return [Var("thread_test") * n + 1 for n in range(2, 100)]

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(make, range(8))
    assert all(a is b for other in others for a, b in zip(first, other, strict=True))


def test_a_default_left_out_is_the_default_given() -> None:
    assert Var("i") is Var("i", INDEX)
    assert Buffer("A", (2,), DType.F32) is Buffer("A", (2,), DType.F32, Scope.GLOBAL)


def test_nodes_die_and_are_made_again_in_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that dies is forgotten while others make the same one: neither twice, nor forgotten for good."""
    wrong: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: wrong.append(args.exc_value))  # pyright: ignore

    def work() -> None:
        for n in range(10_000):
            pair = [Var(f"dies{n % 3}") + const(n % 2, DType.I64) for _ in range(2)]
            if pair[0] is not pair[1]:
                wrong.append(pair)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong

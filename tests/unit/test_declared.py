"""Loops and blocks by name: what is remembered is what is there, and nothing is kept alive by it."""

import gc
from collections.abc import Callable, Iterator

import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr
from tilewright.ir.simplify import Interval
from tilewright.schedule.find import path_to
from tilewright.schedule.schedule import Schedule
from tilewright.search.default import schedule_func
from tilewright.target.target import AVX2
from tilewright.tir import declared as declared_module
from tilewright.tir.build import FuncBuilder
from tilewright.tir.declared import Declared, declared
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, Stmt, blocks, loops, walk_stmts

F32 = DType.F32


def nests(count: int) -> Func:
    """As many nests, one after the other; the last makes a sum."""
    b = FuncBuilder("nests")
    x = b.param("X", (4, 8), F32)

    def times(n: int) -> Callable[..., Expr]:
        return lambda i, j: x[i, j] * n

    made = [b.compute(f"t{n}", (4, 8), times(n), axes=("i", "j")) for n in range(count)]
    return b.finish(*made, b.reduce("sum", (4,), (8,), lambda i, k: (x[i, k], x[i, k])))


def expected(s: Stmt) -> Declared:
    ranges = {n.var: Interval(0, n.extent - 1) for n in loops(s)}
    ranges |= {it.var: Interval(0, it.extent - 1) for b in blocks(s) for it in b.iters}
    return Declared({n.var.name: n for n in loops(s)}, {b.name: b for b in blocks(s)}, ranges)


def check(func: Func) -> None:
    for s in walk_stmts(func.body):
        assert declared(s) == expected(s)
        path = path_to(func.body, s)
        assert path[0] is func.body and path[-1] is s
    for n in loops(func.body):
        assert func.loop(n.var.name) is n and n.var.name in func.names
    for b in blocks(func.body):
        assert func.block(b.name) is b and b.name in func.names
        assert all(it.var.name in func.names for it in b.iters)
    assert "elsewhere" not in func.names


def test_all_of_a_statement_and_all_after_each_step() -> None:
    s = Schedule(nests(3))
    check(s.func)
    outer, inner = s.split("t1_j", (None, 4))
    check(s.func)
    s.reorder(inner, "t1_i", outer)
    s.loop_partition("sum_k", (4,))
    check(s.func)
    s.decompose_reduction("sum_p0", "sum_k_p0")
    s.blockize("t2_j")
    check(s.func)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Stmt]]:
    """The statements that are looked at below what is asked for."""
    seen: list[Stmt] = []
    below = declared_module._below  # pyright: ignore[reportPrivateUsage]

    def counting(s: Stmt) -> Declared:
        seen.append(s)
        return below(s)

    monkeypatch.setattr(declared_module, "_below", counting)
    yield seen


def test_a_step_looks_at_one_nest_of_many(looked_at: list[Stmt]) -> None:
    counts: list[int] = []
    for size in (10, 1000):
        s = Schedule(nests(size))
        s.split("t5_j", (None, 4))
        looked_at.clear()
        s.split("t5_i", (None, 2))
        s.vectorize("t5_j_1")
        counts.append(len(looked_at))
    assert counts[0] == counts[1] <= 12


def test_statements_are_no_garbage() -> None:
    """Nothing holds itself, so that what a step replaces is gone at once, without Python's collector."""
    func = nests(3)
    gc.collect()
    gc.disable()
    try:
        schedule_func(func, AVX2)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [x for x in gc.garbage if isinstance(x, For | Block | Declared)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []

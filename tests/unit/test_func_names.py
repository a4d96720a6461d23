"""Loops and blocks of a Func by their names."""

from tilewright.ir.dtype import DType
from tilewright.schedule.schedule import Schedule
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single


def doubled(prefix: str = "") -> Func:
    b = FuncBuilder(f"{prefix}double", prefix)
    x = b.param(f"{prefix}x", (6,), DType.F32)
    return b.finish(b.compute("y", (6,), lambda i: x[i] * 2.0, axes=["i"]))


def test_loops_and_blocks_are_found_by_name() -> None:
    func = doubled()
    loop, block = func.loop("y_i"), func.block("y")
    assert loop is func.body
    assert block is not None and block is loop.body
    assert func.loop("y") is None and func.block("y_i") is None


def test_a_step_makes_a_func_that_knows_only_its_own() -> None:
    s = Schedule(doubled())
    before = s.func
    assert before.loop("y_i") is not None
    outer, inner = s.split("y_i", (None, 2))
    assert s.func.loop("y_i") is None
    assert s.func.loop(outer) is not None and s.func.loop(inner) is not None
    assert before.loop(outer) is None


def test_a_module_knows_which_func_has_a_name() -> None:
    module = single(doubled("a_"))
    assert module.func_of_block("a_y") is module.funcs[0]
    assert module.func_of_loop("a_y_i") is module.funcs[0]
    assert module.func_of_loop("a_y") is None and module.func_of_block("b_y") is None

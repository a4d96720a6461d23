"""Loops and blocks of a Func by their names."""

from tilewright.ir.dtype import DType
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps.join_funcs import JoinFuncs
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.names import LONGEST, first_words, short_name


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


def test_long_names_are_cut_at_words_and_stay_different() -> None:
    assert short_name("k0_conv_clip") == "k0_conv_clip"
    long = [f"k0_{'conv_clip_' * 4}k{n}_add" for n in range(3)]
    short = [short_name(n) for n in long]
    assert len(set(short)) == 3 and all(len(n) <= LONGEST for n in short)
    assert all(n.startswith("k0_conv_clip_conv_clip_") for n in short)
    assert short_name("x" * 100).startswith("x" * 20)


def test_words_that_fit() -> None:
    assert first_words("matmul_add_gelu", 15) == "matmul_add_gelu"
    assert [first_words("matmul_add_gelu", n) for n in (14, 10, 9, 3)] == [
        "matmul_add",
        "matmul_add",
        "matmul",
        "mat",
    ]


def test_a_joined_func_has_a_short_name() -> None:
    join = JoinFuncs("k10_conv_clip_conv_clip", "k11_conv_clip_add")
    assert len(join.name) <= LONGEST and join.name.startswith("k10_conv_clip_conv_clip_")
    assert JoinFuncs("f", "g").name == "f__g"

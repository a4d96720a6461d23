"""Buffers that do not roll: one test per mistake."""

from dataclasses import replace

import pytest

from tilewright.ir.dtype import DType
from tilewright.schedule.edit import replace_stmt
from tilewright.schedule.find import find_block
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    ComputeAt,
    DecomposeReduction,
    Parallel,
    RollingBuffer,
    Split,
    Unroll,
)
from tilewright.schedule.trace import replay
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.parser import parse_func
from tilewright.tir.stmt import Emit

ROLL = RollingBuffer("T", "T")
AT = ComputeAt("T", "D_i")


def blur(stride: int = 1, taps: int = 3) -> Func:
    b = FuncBuilder("blur")
    x = b.param("X", (12, 6), DType.F32)
    t = b.compute("T", (12, 6), lambda i, j: x[i, j] * 2.0)
    last = taps - 1
    return b.finish(b.compute("D", (5, 6), lambda i, j: t[i * stride, j] + t[i * stride + last, j]))


def refused(step: Step, *before: Step, func: Func | None = None) -> str:
    module = replay(single(func or blur()), before)
    with pytest.raises(ScheduleError) as e:
        step.apply(module)
    assert str(e.value).startswith(f"{step}: ")
    return str(e.value)


def test_what_was_not_moved() -> None:
    text = refused(ROLL)
    assert "T is not computed inside a loop of its consumers" in text
    assert "ComputeAt" in text


def test_a_buffer_that_the_block_does_not_write() -> None:
    assert "T does not write X" in refused(RollingBuffer("T", "X"), AT)


def test_a_parameter() -> None:
    b = FuncBuilder("both")
    x = b.param("X", (6,), DType.F32)
    t = b.compute("T", (6,), lambda i: x[i] * 2.0)
    d = b.compute("D", (5,), lambda i: t[i] + t[i + 1])
    assert "T is a parameter" in refused(ROLL, func=b.finish(t, d))


def test_a_buffer_with_two_writers() -> None:
    b = FuncBuilder("sums")
    x = b.param("X", (8, 3), DType.F32)
    t = b.reduce("T", (8,), (3,), lambda i, k: x[i, k])
    func = b.finish(b.compute("D", (7,), lambda i: t[i] + t[i + 1]))
    assert "two writers" in refused(ROLL, AT, DecomposeReduction("T", "T_1"), func=func)


def test_a_loop_that_is_not_serial() -> None:
    assert "it is unrolled" in refused(ROLL, AT, Unroll("D_i"))


def test_rows_in_a_loop_that_is_not_serial() -> None:
    assert "T_0 is unrolled" in refused(ROLL, AT, Unroll("T_0"))


def test_no_overlap() -> None:
    assert "share no rows of T" in refused(ROLL, AT, func=blur(stride=2, taps=2))


def test_rows_that_are_tiled() -> None:
    assert "is not bound to a constant times D_i" in refused(ROLL, AT, Split("T_0", (None, 2)))


def test_a_loop_that_is_a_tile() -> None:
    text = refused(ROLL, Split("D_i", (None, 2)), ComputeAt("T", "D_i_1"))
    assert "is not bound to a constant times D_i_1" in text


def test_a_loop_along_which_nothing_moves() -> None:
    b = FuncBuilder("columns")
    x = b.param("X", (6,), DType.F32)
    t = b.compute("T", (6,), lambda i: x[i] * 2.0)
    func = b.finish(b.compute("D", (4, 6), lambda i, j: t[j]))
    assert "D_i feeds 0 iterators of T" in refused(ROLL, AT, func=func)


def test_a_loop_that_moves_two_iterators() -> None:
    b = FuncBuilder("diagonal")
    x = b.param("X", (6, 6), DType.F32)
    t = b.compute("T", (6, 6), lambda i, j: x[i, j] * 2.0)
    func = b.finish(b.compute("D", (5,), lambda i: t[i, i] + t[i + 1, i + 1]))
    assert "D_i feeds 2 iterators of T" in refused(ROLL, AT, func=func)


def chain() -> Func:
    b = FuncBuilder("chain")
    x = b.param("X", (10,), DType.F32)
    s = b.compute("S", (10,), lambda i: x[i] * 2.0)
    t = b.compute("T", (9,), lambda i: s[i] + s[i + 1])
    return b.finish(b.compute("D", (8,), lambda i: t[i] + t[i + 1]))


def test_inputs_that_are_computed_in_the_loop() -> None:
    text = refused(ROLL, AT, ComputeAt("S", "D_i"), func=chain())
    assert "S writes what T reads, and not before D_i" in text
    assert "roll S first" in text


# Rows of S go round in y, as if they were rolled.
GOES_ROUND = """
@func
def goes_round(X: f32[12], D: out(f32[8])):
    S = alloc(f32[3])
    T = alloc(f32[12])
    for h in range(AHEAD):
        with block("head"):
            hv = spatial(12, h)
            S[hv % 3] = X[hv]
    for y in range(8):
        with block("S"):
            sv = spatial(12, y + 2)
            S[sv % 3] = X[sv]
        for t in range(2):
            with block("T"):
                tv = spatial(12, y + t)
                T[tv] = S[(tv + OFFSET) % 3]
        with block("D"):
            dv = spatial(8, y)
            D[dv] = T[dv] + T[dv + 1]
"""


def goes_round(offset: int, ahead: int = 2) -> Func:
    return parse_func(GOES_ROUND.replace("OFFSET", str(offset)).replace("AHEAD", str(ahead)))


def test_inputs_that_go_round_in_the_loop() -> None:
    replay(single(goes_round(1)), (ROLL,))


@pytest.mark.parametrize(("offset", "ahead"), [(2, 2), (1, 1)], ids=["outside the window", "rows missing"])
def test_inputs_that_go_round_in_another_way(offset: int, ahead: int) -> None:
    assert "S writes what T reads" in refused(ROLL, func=goes_round(offset, ahead))


BY_HAND = """
@func
def by_hand(X: f32[12], D: out(f32[9])):
    T = alloc(f32[ROWS])
    for y in range(9):
        for t in range(3):
            with block("T"):
                tv = spatial(12, y + t)
                where(CONDITION)
                T[INDEX] = X[tv]
        with block("D"):
            dv = spatial(9, y)
            D[dv] = T[READ]
"""


def by_hand(rows: str = "12", condition: str = "True", index: str = "tv", read: str = "dv") -> Func:
    text = BY_HAND.replace("ROWS", rows).replace("CONDITION", condition)
    return parse_func(text.replace("INDEX", index).replace("READ", read))


def test_by_hand_it_rolls() -> None:
    replay(single(by_hand()), (ROLL,))


def test_a_predicate_that_does_more() -> None:
    assert "does more than to keep its iterators" in refused(ROLL, func=by_hand(condition="y < 4"))


def test_rows_that_are_not_an_index() -> None:
    assert "tv is not one index of what T writes" in refused(ROLL, func=by_hand(index="tv // 2"))


def test_rows_that_are_all_there_is() -> None:
    text = refused(ROLL, func=by_hand(rows="3", index="tv - 9"))
    assert "one iteration of y needs all 3 rows of T" in text


def test_reading_rows_outside_of_the_window() -> None:
    text = refused(ROLL, func=by_hand(read="dv + 3"))
    assert (
        "D reads rows of T that are not known to be among those computed in the same iteration of y" in text
    )


AROUND = """
@func
def around(X: f32[12], D: out(f32[9]), E: out(f32[9])):
    T = alloc(f32[12])
    for y in range(9):
        FIRST
        for t in range(3):
            with block("T"):
                tv = spatial(12, y + t)
                T[tv] = X[tv]
        LAST
"""
READS = """with block("D"):
            dv = spatial(9, y)
            D[dv] = T[dv]"""
IDLE = """with block("E"):
            ev = spatial(9, y)
            E[ev] = X[ev]"""


def test_a_consumer_in_front() -> None:
    func = parse_func(AROUND.replace("FIRST", READS).replace("LAST", IDLE))
    assert "D does not read after T inside y" in refused(ROLL, func=func)


def test_no_consumers() -> None:
    func = parse_func(
        AROUND.replace("FIRST", IDLE).replace("LAST", IDLE.replace("E", "D").replace("ev", "dv"))
    )
    assert "nothing in around reads what T writes" in refused(ROLL, func=func)


def test_rolling_twice() -> None:
    assert "two writers" in refused(ROLL, AT, ROLL)


def test_a_tensor_instruction_reads_it() -> None:
    func = by_hand()
    block = find_block(func, "D")
    func = replace_stmt(func, block, replace(block, body=Emit("dot", (), block.body)))
    assert "the intrinsic dot reads its operands by strides" in refused(ROLL, func=func)


def test_a_parallel_loop_does_not_roll() -> None:
    b = FuncBuilder("wide")
    x = b.param("X", (4, 8), DType.F32)
    t = b.compute("T", (4, 8), lambda i, j: x[i, j] * 2.0)
    func = b.finish(b.compute("D", (4, 7), lambda i, j: t[i, j] + t[i, j + 1]))
    module = replay(single(func), (Parallel("D_j"),))
    with pytest.raises(ScheduleError):
        replay(module, (ComputeAt("T", "D_j"), ROLL))

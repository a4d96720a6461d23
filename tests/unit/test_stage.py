"""The step `stage`: an operand computed beforehand."""

import pytest
from schedule_programs import check, matmul, outline
from tensor_programs import conv

from tilewright.ir.dtype import DType
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps import Stage
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import single


def test_an_operand_gets_a_block_and_a_buffer_of_its_own() -> None:
    done = check(matmul(DType.F32), Stage("C", (0,), ("C_vk", "C_vi")))
    assert outline(done.body)[:3] == [
        "for C_stage_0_C_vk_loop in range(5):",
        "    for C_stage_0_C_vi_loop in range(7):",
        "        C_stage_0(C_stage_0_C_vk = C_stage_0_C_vk_loop, C_stage_0_C_vi = C_stage_0_C_vi_loop)",
    ]
    assert [b.name for b in done.locals] == ["C_stage_0"] and done.locals[0].shape == (5, 7)


def test_inlined_padding_keeps_its_guard() -> None:
    func = conv((5, 5), (3, 3), pad=1, inline=True)
    iters = tuple(f"Y_v{a}" for a in "nghwcrs")
    with pytest.raises(ScheduleError, match="name exactly these"):
        check(func, Stage("Y", (0,), iters[2:]))
    check(func, Stage("Y", (0,), iters))


def test_one_of_two_loads_of_a_buffer() -> None:
    b = FuncBuilder("gram")
    x = b.param("X", (4, 6), DType.F32)
    func = b.finish(b.reduce("Y", (4, 4), (6,), lambda i, j, k: (x[i, k], x[j, k])))
    check(func, Stage("Y", (1,), ("Y_vk", "Y_vj")))
    s = Schedule(single(func))
    assert s.stage("Y", (0,), ("Y_vi", "Y_vk")) == "Y_stage_0"


@pytest.mark.parametrize(
    ("position", "iters", "why"),
    [
        ((2,), ("C_vi", "C_vj"), "which the block writes"),
        ((3,), ("C_vi",), "no operand at this position"),
        ((0, 0), ("C_vi",), "no operand at this position"),
        ((0,), ("C_vi",), "depends on C_vi, C_vk"),
    ],
)
def test_what_is_no_operand_is_refused(position: tuple[int, ...], iters: tuple[str, ...], why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        Stage("C", position, iters).apply(single(matmul(DType.F32)))

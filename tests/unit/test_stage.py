"""The step `stage`: an operand computed beforehand."""

import pytest
from schedule_programs import check, matmul, outline
from tensor_programs import conv

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, cast, const, select
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps import Stage
from tilewright.support.errors import ScheduleError
from tilewright.tir.analysis.value_range import fits_dtype, value_range
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single


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


def zero_points() -> Func:
    b = FuncBuilder("quantized")
    x, y = b.param("X", (3, 4), DType.U8), b.param("Y", (4, 5), DType.I8)
    z = b.param("Z", (5,), DType.I8)

    def wide(e: Expr) -> Expr:
        return cast(DType.I32, e)

    return b.finish(b.reduce("C", (3, 5), (4,), lambda i, j, k: (wide(x[i, k]), wide(y[k, j]) - wide(z[j]))))


def test_an_operand_in_a_narrower_type_that_it_fits() -> None:
    done = check(zero_points(), Stage("C", (1, 1), ("C_vk", "C_vj"), DType.I16))
    assert done.locals[0].dtype is DType.I16
    with pytest.raises(ScheduleError, match="not every value of this i32 fits i8"):
        check(zero_points(), Stage("C", (1, 1), ("C_vk", "C_vj"), DType.I8))
    with pytest.raises(ScheduleError, match="not every value of this f32 fits i8"):
        check(matmul(DType.F32), Stage("C", (0,), ("C_vi", "C_vk"), DType.I8))


def test_ranges_of_integer_expressions() -> None:
    x, y = Buffer("X", (4,), DType.U8)[0], Buffer("Y", (4,), DType.I8)[0]
    wide = cast(DType.I32, x)
    assert value_range(x) == (0, 255) and value_range(y) == (-128, 127)
    assert value_range(wide - cast(DType.I32, y)) == (-127, 383)
    assert value_range(wide * cast(DType.I32, y)) == (-255 * 128, 255 * 127)
    assert value_range(-wide) == (-255, 0)
    assert value_range(select(x < 3, wide, const(-7, DType.I32))) == (-7, 255)
    assert value_range(x + x) == (0, 255)  # it wraps
    assert value_range(cast(DType.I8, x)) == (-128, 127)
    assert value_range(const(True, DType.BOOL)) == (1, 1)
    assert fits_dtype(wide, DType.I16) and not fits_dtype(wide, DType.I8)


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

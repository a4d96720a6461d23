"""What `RollingUpdate` refuses, each with the reason."""

import pytest
from online_programs import chain

from tilewright.ir.dtype import DType
from tilewright.ir.expr import UnaryOp, unary
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps.rolling_update import RollingUpdate
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func


def refused(func: Func, step: RollingUpdate) -> str:
    with pytest.raises(ScheduleError) as e:
        Schedule(func).apply(step)
    return e.value.message


@pytest.mark.parametrize("size", [0, 10, 11])
def test_chunks_that_are_no_part(size: int) -> None:
    assert f"{size} are no part of 10 elements" in refused(chain(), RollingUpdate("Y", size))


def test_a_reduction_that_follows_no_other() -> None:
    assert "S follows no other reduction over its axis" in refused(chain(), RollingUpdate("S", 2))


def test_a_reduction_loop_that_is_not_innermost() -> None:
    s = Schedule(chain())
    s.reorder("Y_j", "Y_d")
    with pytest.raises(ScheduleError, match="Y_j is not the innermost loop of Y"):
        s.rolling_update("Y", 2)


def test_nothing_is_hidden() -> None:
    assert "S does not hide what follows" in refused(chain(), RollingUpdate("Y", 2, skip=True))


def test_what_hides_is_not_low() -> None:
    assert "X does not hide" in refused(chain(low=-100.0), RollingUpdate("Y", 2, skip=True))


def test_rows_that_see_nothing() -> None:
    step = RollingUpdate("Y", 2, skip=True)
    assert "X does not hide" in refused(chain(low=-float("inf"), offset=-4), step)


def test_rows_that_see_nothing_and_are_not_hidden() -> None:
    """Their weights would be equal: numbers are low, and not infinitely so."""
    assert "X does not hide" in refused(chain(low=-1e30, offset=-1), RollingUpdate("Y", 2, skip=True))


def powers(kind: str) -> Func:
    b = FuncBuilder("powers")
    x, v = b.param("X", (3, 8), DType.F32), b.param("V", (8, 4), DType.F32)
    m = b.reduce(
        "M", (3,), (8,), lambda i, j: x[2 - i if kind == "row" else i, j], "min" if kind == "min" else "max"
    )
    p = b.compute("P", (3, 8), lambda i, j: unary(UnaryOp.EXP, x[i, j] - m[i]))
    y = b.reduce("Y", (3, 4), (8,), lambda i, d, j: (p[i, j], v[j, d]))
    if kind == "reader":
        return b.finish(y, b.compute("Z", (3, 8), lambda i, j: p[i, j] * 2))
    return b.finish(y)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("row", "M is not the extreme of what it is subtracted from"),
        ("min", "M is not the extreme of what it is subtracted from"),
        ("reader", "Z reads P, of which not all is there at once"),
    ],
)
def test_what_has_no_repair(kind: str, reason: str) -> None:
    assert reason in refused(powers(kind), RollingUpdate("Y", 2))

"""Default schedules: what structure they give to which Funcs, and that they mean what the Func meant."""

import logging

import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.expr import maximum
from tilewright.schedule.recipes import default
from tilewright.schedule.recipes.default import schedule_func
from tilewright.schedule.recipes.draft import Draft
from tilewright.schedule.steps.loop_kind import Parallel
from tilewright.support.errors import ScheduleError
from tilewright.target.target import AVX2, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func

# ----------------------------------------------------------------------------------------------- the ladder of recipes


def relu_of_sum() -> Func:
    b = FuncBuilder("relu_of_sum")
    x, y = b.param("X", (4, 9), DType.F32), b.param("Y", (9,), DType.F32)
    z = b.compute("Z", (4, 9), lambda i, j: x[i, j] + y[j])
    return b.finish(b.compute("W", (4, 9), lambda i, j: maximum(z[i, j], 0)))


def refusing(s: Draft, target: Target, constants: frozenset[str]) -> None:
    s.apply(Parallel("Z_i"))
    raise ScheduleError("not this one")


def test_after_a_refusal_the_next_recipe_starts_from_the_given_func(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    func = relu_of_sum()
    by_blocks = schedule_func(func, AVX2)
    monkeypatch.setattr(default, "LADDER", (refusing, *default.LADDER))
    with caplog.at_level(logging.DEBUG, default.__name__):
        s = schedule_func(func, AVX2)
    assert [r.getMessage() for r in caplog.records] == ["relu_of_sum: refusing is not for it: not this one"]
    assert s.trace == by_blocks.trace


def test_a_func_that_every_recipe_refuses_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    func = relu_of_sum()
    monkeypatch.setattr(default, "LADDER", (refusing, refusing))
    s = schedule_func(func, AVX2)
    assert s.func is func and s.trace == ()


@pytest.mark.parametrize("recipe", default.LADDER, ids=lambda r: r.__name__)
def test_every_rung_takes_steps(recipe: default.Recipe) -> None:
    s = Draft(default.single(relu_of_sum()))
    recipe(s, AVX2, frozenset())
    assert s.trace

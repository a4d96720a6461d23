"""Updates: blocks that change elements at places that data chooses, in an order that no step may change."""

from collections.abc import Callable

import numpy as np
import pytest
from native import TARGETS, run_native

from tilewright.ir.dtype import DType
from tilewright.ir.expr import maximum, minimum
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps.loop_kind import Parallel, Vectorize
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.validate import BlockKind, validate
from tilewright.search.default import schedule_func, spaces
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import LoopKind, Store, loops

Sound = Callable[[Func], Func]


def scatter(n: int = 6, k: tuple[int, int] = (2, 5), width: int = 16) -> Func:
    """y is x, with rows replaced at places that are data; of several the last one stays."""
    b = FuncBuilder("scatter")
    x, u = b.param("x", (n, width), DType.F32), b.param("u", (*k, width), DType.F32)
    at = b.param("at", k, DType.I64)
    y = b.ahead("y", (n, width), DType.F32)
    b.compute("y_copy", (n, width), lambda i, j: x[i, j], out=y)
    b.update(
        "y",
        (*k, width),
        (0, 1),
        lambda p, q, j: Store(y, (minimum(maximum(at[p, q], 0), n - 1), j), u[p, q, j]),
    )
    return b.finish(y)


def test_updates_run_in_order(sound: Sound) -> None:
    func = sound(scatter())
    rng = np.random.default_rng(0)
    x, u = rng.standard_normal((6, 16), np.float32), rng.standard_normal((2, 5, 16), np.float32)
    at = rng.integers(0, 3, (2, 5))
    expected = x.copy()
    for p, q in np.ndindex(2, 5):
        expected[at[p, q]] = u[p, q]
    (out,) = run_func(func, x, u, at)
    np.testing.assert_array_equal(out, expected)
    for target in TARGETS:
        (out,) = run_native(schedule_func(func, target).func, [x, u, at], target)
        np.testing.assert_array_equal(out, expected)


def test_an_update_is_opaque_and_only_the_ordered_family_takes_it() -> None:
    func = scatter()
    validity = validate(func)
    assert validity.is_valid
    assert validity.blocks["y"].kind is BlockKind.OPAQUE
    assert [s.family for s in spaces(func, TARGETS[0])] == ["ordered"]


@pytest.mark.parametrize("step", [Parallel("y_p"), Parallel("y_q"), Vectorize("y_q")])
def test_updates_do_not_run_at_once(step: Parallel | Vectorize) -> None:
    with pytest.raises(ScheduleError, match="feeds the reduce iterator"):
        Schedule(single(scatter())).apply(step)


def test_updates_do_not_change_their_order() -> None:
    with pytest.raises(ScheduleError, match="writes in another iteration"):
        Schedule(single(scatter())).apply(Reorder(("y_q", "y_p")))


def test_what_updates_do_not_share_runs_at_once() -> None:
    s = Schedule(single(scatter()))
    s.apply(Vectorize("y_j"))
    validity = validate(s.func)
    assert validity.is_valid


def test_rows_become_vectors_and_the_rest_stays() -> None:
    func = schedule_func(scatter(), TARGETS[0]).func
    kinds = {
        n.var.name: n.kind
        for n in loops(func.body)
        if n.var.name.startswith("y_") and "copy" not in n.var.name
    }
    assert kinds["y_p"] is kinds["y_q"] is LoopKind.SERIAL
    assert LoopKind.VECTORIZED in kinds.values()

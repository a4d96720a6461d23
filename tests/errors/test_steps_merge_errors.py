"""Merges that are refused: one test per mistake."""

import pytest
from test_steps_loops_errors import refused

from tilewright.ir.dtype import DType
from tilewright.schedule.step import Step
from tilewright.schedule.steps import Annotate, Bind, Merge, Parallel, Split, Unroll
from tilewright.schedule.trace import Trace
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func


def three() -> Func:
    """Y = 2 X, Z = Y transposed, W = X + 1."""
    b = FuncBuilder("three")
    x = b.param("X", (4, 4), DType.F32)
    y = b.compute("Y", (4, 4), lambda i, j: x[i, j] * 2.0)
    z = b.compute("Z", (4, 4), lambda i, j: y[j, i])
    return b.finish(z, b.compute("W", (4, 4), lambda i, j: x[i, j] + 1.0))


CASES: dict[str, tuple[Trace, Step, str]] = {
    "merge_of_one_loop": ((), Merge(("Y_i",)), "needs two or more different loops"),
    "merge_of_a_loop_with_itself": ((), Merge(("Y_i", "Y_i")), "needs two or more different loops"),
    "merge_of_no_such_loop": ((), Merge(("Y_i", "X_i")), "has no loop 'X_i'"),
    "merge_of_nested_loops": ((), Merge(("Y_i", "Y_j")), "Y_j and Y_i are nested, not side by side"),
    "merge_of_loops_at_other_depths": ((), Merge(("Y_i", "Z_j")), "Z_j is 2 loops deep, and Y_i 1"),
    "merge_of_other_extents": (
        (Split("Z_i", (2, 2)),),
        Merge(("Y_i", "Z_i_0")),
        "Z_i_0 has 2 iterations, and Y_i has 4",
    ),
    "merge_over_something_in_between": ((), Merge(("Y_i", "W_i")), "W_i does not stand right behind Y_i"),
    "merge_from_the_end": ((), Merge(("W_i", "Z_i")), "Z_i does not stand right behind W_i"),
    "merge_of_a_parallel_loop": ((Parallel("Y_i"),), Merge(("Y_i", "Z_i")), "Y_i is parallel"),
    "merge_of_an_unrolled_loop": ((Unroll("Z_i"),), Merge(("Y_i", "Z_i")), "Z_i is unrolled"),
    "merge_of_an_annotated_loop": (
        (Annotate("Z_i", "note", 1),),
        Merge(("Y_i", "Z_i")),
        "Z_i has the annotation 'note'",
    ),
    "merge_of_a_transposing_reader": (
        (),
        Merge(("Y_i", "Z_i")),
        "Z uses elements of Y that Y writes in another iteration",
    ),
    "merge_of_launches_that_disagree": (
        (Split("Z_j", (2, 2)), Bind("Z_j_1", "thread_x"), Bind("W_j", "thread_x")),
        Merge(("Z_i", "W_i")),
        "W_j has 4 iterations on thread_x, and Z_j_1 has 2 in the same launch",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(name: str) -> None:
    before, step, message = CASES[name]
    assert message in refused(step, *before, func=three()).message


def test_a_loop_that_shares_the_loop_around_it() -> None:
    b = FuncBuilder("shared")
    x = b.param("X", (4, 5), DType.F32)
    s = b.reduce("S", (4,), (5,), lambda i, k: x[i, k])
    t = b.compute("T", (4, 5), lambda i, k: x[i, k] - s[i])
    func = b.finish(b.compute("U", (4, 5), lambda i, k: t[i, k] * 2.0))
    e = refused(Merge(("S_k", "U_k")), Merge(("S_i", "T_i")), func=func)
    assert "S_k shares the loops around it with other statements" in e.message

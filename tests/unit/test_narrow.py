"""A Func for less than its range does the same where sizes are within it."""

import random

import numpy as np
import pytest

from tests.fuzz.test_random_open_traces import compare, inputs_at, open_func
from tests.native import BEST, run_native
from tilewright.search.default import schedule_func
from tilewright.support.errors import InternalError
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.narrow import narrowed, open_ranges
from tilewright.tir.parser import parse_func
from tilewright.tir.stmt import loops

ROWS = parse_func("""
@func
def rows(A: open(f32[64, 8], size("n", 1, 64), None), Y: out(open(f32[64, 8], size("n", 1, 64), None))):
    for i in range(64):
        for j in range(8):
            with block("Y"):
                vi = spatial(64, i)
                vj = spatial(8, j)
                Y[vi, vj] = A[vi, vj] + f32(1.0)
""")

SUM = parse_func("""
@func
def sum(A: open(f32[4, 64], None, size("n", 1, 64)), Y: out(f32[4])):
    for i in range(4):
        for k in range(64):
            with block("Y"):
                vi = spatial(4, i)
                vk = reduce(64, k, size("n", 1, 64))
                with init():
                    Y[vi] = f32(0.0)
                Y[vi] = Y[vi] + A[vi, vk]
""")


def extents(func: Func) -> list[int]:
    return [n.extent for n in loops(func.body)]


def test_loops_run_as_far_as_the_narrower_range_reaches() -> None:
    assert extents(narrowed(ROWS, {"n": 5})) == [5, 8]
    assert extents(narrowed(SUM, {"n": 5})) == [4, 5]
    assert open_ranges(narrowed(ROWS, {"n": 5})) == {"n": (1, 5)}


def test_buffers_keep_their_shape_but_for_estimates() -> None:
    assert [b.shape for b in narrowed(ROWS, {"n": 5}).params] == [b.shape for b in ROWS.params]
    assert narrowed(ROWS, {"n": 5}, is_compact=True).params[0].shape == (5, 8)


def test_a_dimension_of_one_size_is_a_number() -> None:
    made = narrowed(SUM, {"n": 1})
    assert not open_ranges(made)
    assert "size(" not in str(made)


def test_a_range_that_is_wider_changes_nothing() -> None:
    assert str(narrowed(ROWS, {"n": 100, "m": 1})) == str(ROWS)


@pytest.mark.parametrize("start", range(0, 30, 10))
def test_random_funcs_do_the_same_within_the_range(start: int) -> None:
    """In the interpreter, and in native code with the schedule that the narrower Func has."""
    ran = 0
    for seed in range(start, start + 10):
        found = open_func(seed)
        if found is None:
            continue
        func, dims = found
        rng = random.Random(seed)
        most = {d.name: rng.randint(d.least, d.most) for d in dims}
        part = narrowed(func, most)
        sizes = {d.name: rng.randint(d.least, most[d.name]) for d in dims}
        inputs = inputs_at(func, sizes, np.random.default_rng(seed))
        wanted = run_func(func, *inputs)
        compare(f"{seed}, interpreted", func, wanted, run_func(part, *inputs), sizes)
        try:
            run_native(schedule_func(func, BEST).func, inputs)
        except InternalError:  # what cannot be compiled for all sizes may not be for some
            continue
        compare(f"{seed}, native", func, wanted, run_native(schedule_func(part, BEST).func, inputs), sizes)
        ran += 1
    assert ran > 2

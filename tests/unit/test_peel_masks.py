"""Masks are only where vectors reach beyond an open size, and nothing else changes."""

import numpy as np
import pytest

from tests.native import BEST, run_native
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.parser import parse_func
from tilewright.tir.passes.limit_loops import limit_loops
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.passes.peel_masks import peel_masks
from tilewright.tir.passes.simplify import simplify_func

JOINED = parse_func("""
@func
def joined(A: open(f32[64], size("n", 1, 64)), B: f32[8], size__n: i64[1], Y: out(open(f32[72], size("n", 1, 64) + 8))):
    for i in range(4):
        for j in vectorized(16):
            with block("Y"):
                v = spatial(64, i * 16 + j)
                where(i * 16 + j < size("n", 1, 64))
                Y[v] = A[v] * f32(2.0)
    for k in vectorized(8):
        with block("Z"):
            w = spatial(8, k)
            Y[size("n", 1, 64) + w] = B[w]
""")


def lowered(func: Func) -> Func:
    for run in (limit_loops, lower_blocks, simplify_func):
        func = run(func)
    return func


def test_whole_vectors_have_no_mask() -> None:
    before, after = str(lowered(JOINED)), str(peel_masks(lowered(JOINED)))
    assert before.count("for j") == 1 and after.count("for j") == 2
    assert 'in range(4, size("n", 1, 64) // 16)' in after
    whole, edge = after.split("i_edge in", 1)
    assert "if i * 16" not in whole and "< 0" in edge


@pytest.mark.parametrize("n", [1, 15, 16, 17, 48, 63, 64])
def test_results_are_the_same_at_any_size(n: int) -> None:
    a, b = np.arange(64, dtype=np.float32), -np.arange(8, dtype=np.float32)
    arrays = (a, b, np.array([n]))
    want = np.concatenate([2 * a[:n], b])
    for (got,) in (run_func(JOINED, *arrays), run_native(JOINED, arrays, BEST)):
        np.testing.assert_array_equal(got[: n + 8], want)


def test_a_mask_that_does_not_end_in_a_loop_stays() -> None:
    """It is of every iteration."""
    text = str(JOINED).replace('i * 16 + j < size("n", 1, 64)', 'j < size("n", 1, 64)')
    func = lowered(parse_func(text))
    assert str(peel_masks(func)) == str(func)

"""Reductions that feed others in one Func are not computed over and over again where they are used."""

from math import prod

import numpy as np
from native import TARGETS, run_native

from tilewright.ir.dtype import DType
from tilewright.ops.core.einsum import Einsum
from tilewright.ops.core.resize import AxisSampling, Resize
from tilewright.schedule.find import loops_above
from tilewright.search.default import schedule_func
from tilewright.tir.build import FuncBuilder
from tilewright.tir.stmt import blocks

F32 = DType.F32


def test_a_chain_of_products_is_computed_once() -> None:
    inputs = [np.ones(s, np.float32) for s in ((16, 24), (24, 24), (24, 16))]
    b = FuncBuilder("chain")
    params = [b.param(f"x{i}", x.shape, F32) for i, x in enumerate(inputs)]
    func = b.finish(*Einsum(("ab", "bc", "cd"), "ad").compute(b, params, "out"))
    scheduled = schedule_func(func, TARGETS[0]).func
    once = sum(prod(it.extent for it in block.iters) for block in blocks(func.body))
    done = sum(prod(n.extent for n in loops_above(scheduled, block)) for block in blocks(scheduled.body))
    assert done <= 4 * once
    (out,) = run_native(scheduled, inputs, TARGETS[0])
    np.testing.assert_array_equal(out, np.full((16, 16), 24 * 24, np.float32))


def test_a_reduction_of_several_elements_per_row_keeps_no_partial_results_in_registers() -> None:
    """Both axes shrink by so much that their sums are reductions, one after another."""
    x = np.ones((64, 64), np.float32)
    b = FuncBuilder("shrink")
    axes = (AxisSampling(2, 32, 31, 1, 32.0), AxisSampling(2, 32, 31, 1, 32.0))
    func = b.finish(*Resize(axes).compute(b, [b.param("x", x.shape, F32)], "out"))
    for target in TARGETS:
        (out,) = run_native(schedule_func(func, target).func, [x], target)
        np.testing.assert_allclose(out, 1, rtol=1e-6)

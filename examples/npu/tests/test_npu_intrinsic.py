"""The array as a tensor intrinsic: Tilewright tiles GEMMs and convolutions of bytes for it."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.families.tensor.tensorize import auto_tensorize, tensorize_candidates
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, cast
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.trace import print_trace
from tilewright.support.errors import ScheduleError
from tilewright.target import intrinsics
from tilewright.target.target import Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func
from tilewright_npu.intrinsic import FAMILY, MATMUL, declare

RNG = np.random.default_rng(2)


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    monkeypatch.setattr(intrinsics.ADDED, "items", {})
    yield declare()


def wide(e: Expr) -> Expr:
    return cast(DType.I32, e)


def gemm(m: int, n: int, k: int) -> Func:
    b = FuncBuilder("gemm")
    x, w = b.param("X", (m, k), DType.I8), b.param("W", (k, n), DType.I8)
    return b.finish(b.reduce("Y", (m, n), (k,), lambda i, j, p: wide(x[i, p]) * wide(w[p, j])))


def conv(size: int, channels: int, outputs: int, stride: int = 1) -> Func:
    """Channels last, as the machine has them."""
    b = FuncBuilder("conv")
    out = (size - 3) // stride + 1
    x = b.param("X", (1, size, size, channels), DType.I8)
    w = b.param("W", (3, 3, channels, outputs), DType.I8)

    def taps(n: Expr, h: Expr, v: Expr, o: Expr, r: Expr, s: Expr, c: Expr) -> Expr:
        return wide(x[n, h * stride + r, v * stride + s, c]) * wide(w[r, s, c, o])

    axes = ["n", "h", "v", "o", "r", "s", "c"]
    return b.finish(b.reduce("Y", (1, out, out, outputs), (3, 3, channels), taps, axes=axes))


FUNCS = {
    "gemm": gemm(32, 48, 64),
    "gemm with edges": gemm(21, 35, 40),
    "conv": conv(6, 16, 16),
    "conv with edges": conv(7, 10, 20, 2),
}


def inputs(func: Func) -> list[NDArray[np.int8]]:
    given = [p for p in func.params if p not in func.outputs]
    return [RNG.integers(-128, 128, p.shape).astype(np.int8) for p in given]


@pytest.mark.parametrize("name", FUNCS)
def test_it_is_chosen_and_means_the_same(name: str, npu: Target) -> None:
    func = FUNCS[name]
    s = Schedule(single(func))
    made = auto_tensorize(s, "Y", npu)
    assert made.chosen is not None, made.explain()
    assert made.chosen.intrinsic is MATMUL
    assert MATMUL.name in print_trace(s.trace)
    given = inputs(func)
    np.testing.assert_array_equal(run_func(s.func, *given)[0], run_func(func, *given)[0])


def test_a_convolution_has_many_mappings(npu: Target) -> None:
    found = tensorize_candidates(FUNCS["conv"], "Y", npu)
    assert len(found) > 5 and {c.intrinsic.name for c in found} == {MATMUL.name}
    costs = [c.seconds for c in found]
    assert costs == sorted(costs)


def test_it_can_be_placed_by_hand(npu: Target) -> None:
    func = FUNCS["gemm"]
    s = Schedule(single(func))
    inside = [s.split(f"Y_{axis}", (None, 16)) for axis in "ijp"]
    s.reorder(*(outer for outer, _ in inside), *(inner for _, inner in inside))
    s.decompose_reduction("Y", inside[2][0])
    s.tensorize(inside[0][1], MATMUL.name)
    given = inputs(func)
    np.testing.assert_array_equal(run_func(s.func, *given)[0], run_func(func, *given)[0])


def test_other_targets_do_not_have_it() -> None:
    s = Schedule(single(FUNCS["gemm"]))
    with pytest.raises(ScheduleError, match="npu"):
        s.tensorize("Y_i", "npu.i8.no_such_thing")


def test_it_is_declared_once(npu: Target) -> None:
    assert declare() == npu
    assert tuple(intrinsics.ADDED.items.values()) == FAMILY

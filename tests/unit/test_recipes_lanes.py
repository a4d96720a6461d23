"""Windows of one channel: neighbours share a tile in registers; what their windows have in common is loaded once."""

import numpy as np
import pytest
from native import run_native

from tilewright.families.gemm.recipe import try_contraction
from tilewright.families.window.recipe import is_lane_reduction
from tilewright.families.window.space import window_space
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Load, Scope, walk
from tilewright.search.default import make_request, schedule_func
from tilewright.target.target import AVX2, BASELINE, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.pipeline import lower_func
from tilewright.tir.stmt import Block, For, LoopKind, Store, blocks, loops, stmt_exprs, walk_stmts

F32 = DType.F32


def depthwise(channels: int, size: int, kernel: int, stride: int, *, last: bool) -> Func:
    """A filter per channel, with the channels first or last."""
    b = FuncBuilder("depthwise")
    out = (size - kernel) // stride + 1

    def place(c: Expr, *pixel: Expr) -> tuple[Expr, ...]:
        return (*pixel, c) if last else (c, *pixel)

    whole, made = (
        ((size, size, channels), (out, out, channels))
        if last
        else ((channels, size, size), (channels, out, out))
    )
    x, w = b.param("X", whole, F32), b.param("W", (kernel, kernel, channels), F32)

    def factors(*i: Expr) -> tuple[Expr, Expr]:
        (h, v, c) = i[:3] if last else (i[1], i[2], i[0])
        r, s = i[3:]
        return x[place(c, h * stride + r, v * stride + s)], w[r, s, c]

    return b.finish(b.reduce("C", made, (kernel, kernel), factors, axes=["a", "b", "d", "r", "s"]))


def tile_of(func: Func, target: Target) -> tuple[int, int]:
    space = window_space(make_request(func, target, frozenset()))
    assert space is not None
    chosen = space.decisions(space.ranked()[0][0])
    return chosen["rows"], chosen["vectors"]


def reduction(func: Func) -> Block:
    (block,) = [b for b in blocks(func.body) if b.is_reduction]
    return block


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (2, 2)])
@pytest.mark.parametrize("target", [AVX2, BASELINE], ids=["avx2", "baseline"])
def test_schedules_of_windows_mean_the_same(kernel: int, stride: int, last: bool, target: Target) -> None:
    func = depthwise(9, 15, kernel, stride, last=last)
    scheduled = schedule_func(func, target).func
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, p.shape).astype(np.float32) for p in func.params if p not in func.outputs]
    (want,) = run_func(func, *arrays)
    for (got,) in (run_func(scheduled, *arrays), run_native(scheduled, arrays)):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_windows_of_a_channel_are_no_contraction(last: bool) -> None:
    block = reduction(depthwise(16, 34, 3, 1, last=last))
    assert try_contraction(block) is None
    assert is_lane_reduction(block)


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_a_tile_fits_into_registers_and_has_several_rows(last: bool) -> None:
    # Pixels two apart are not the lanes of one load, so strides are for channels.
    for kernel, stride in ((3, 1), (3, 2), (5, 1)) if last else ((3, 1), (5, 1)):
        rows, vectors = tile_of(depthwise(64, 64, kernel, stride, last=last), AVX2)
        assert rows > 1
        assert rows * vectors < AVX2.vector_registers


def test_a_tile_is_no_larger_than_the_output() -> None:
    assert tile_of(depthwise(8, 4, 3, 1, last=True), AVX2) == (2, 1)


def test_what_windows_share_is_loaded_once() -> None:
    """A tile of three rows by two vectors and a window of 3 × 3: 5 rows of the input, not 9."""
    func = depthwise(32, 50, 3, 1, last=False)
    rows, vectors = tile_of(func, AVX2)
    (phase,) = lower_func(schedule_func(func, AVX2).func)[0]
    inner = [n for n in loops(phase.func.body) if not any(_is_serial(m) for m in loops(n.body))]
    full = max((n for n in inner if _is_serial(n)), key=lambda n: len(_reads(n)))
    assert len(_reads(full)) == (rows + 2) * 3 * vectors


def _is_serial(n: For) -> bool:
    return n.kind is not LoopKind.VECTORIZED


def _reads(loop: For) -> set[Load]:
    found = {e for n in walk_stmts(loop) if isinstance(n, Store) for x in stmt_exprs(n) for e in walk(x)}
    return {
        e for e in found if isinstance(e, Load) and e.buffer.name == "X" and e.buffer.scope is Scope.GLOBAL
    }


@pytest.mark.parametrize("kernel", [3, 5])
def test_tiles_have_enough_sums_and_no_more_than_registers(kernel: int) -> None:
    """Eight sums fill two pipelines of four cycles; what more windows share would not stay in 16 registers."""
    for channels in (8, 16, 24, 88, 96):
        rows, vectors = tile_of(depthwise(channels, 32 + kernel - 1, kernel, 1, last=True), AVX2)
        assert 6 <= rows * vectors <= 9, (channels, rows, vectors)

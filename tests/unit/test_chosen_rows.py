"""Rows and elements that data chooses: what is found once, fetched ahead, laid out before, and not inlined."""

import re

import numpy as np
import pytest
from native import run_native

from tilewright.codegen.kernel import kernel_ir
from tilewright.families.prepare import prepared
from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import cast, const, minimum, select
from tilewright.ops.core.gather import Gather, GatherElements
from tilewright.search.default import schedule_func
from tilewright.target.target import AVX2
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.pipeline import lower_func
from tilewright.tir.stmt import PREFETCH, Store, blocks, loops

F32, I64 = DType.F32, DType.I64


def gathered(rows: int, columns: int, count: int) -> Func:
    b = FuncBuilder("f")
    x, at = b.param("x", (rows, columns), F32), b.param("at", (count,), I64)
    return b.finish(*Gather(0).compute(b, [x, at], "y"))


def code(func: Func) -> str:
    (phase,), _ = lower_func(func)
    return kernel_ir(phase.func)


@pytest.mark.parametrize("columns", [160, 163])
def test_the_next_row_is_fetched_a_line_at_a_time(columns: int) -> None:
    func = schedule_func(gathered(300, columns, 128), AVX2).func
    assert [n.extent for n in loops(func.body) if dict(n.annotations).get(PREFETCH) == 1] == [8]
    fetched = len(re.findall(r"call void @llvm\.prefetch", code(func)))
    assert fetched == (1 if columns % 8 == 0 else 2)  # of two vectors of a line; of what is left over
    x = np.random.default_rng(0).standard_normal((300, columns)).astype(np.float32)
    at = np.random.default_rng(1).integers(-300, 300, 128)
    (got,) = run_native(func, [x, at])
    np.testing.assert_array_equal(got, x[at])


def test_short_rows_are_not_fetched() -> None:
    func = schedule_func(gathered(300, 16, 128), AVX2).func
    assert "llvm.prefetch" not in code(func)


def test_an_index_is_brought_into_range_once_per_row() -> None:
    """Its load is in front of the loop over the row, not in it."""
    text = code(schedule_func(gathered(300, 160, 4), AVX2).func)
    *_, inner = text.split("= phi i64")
    assert "load i64" not in inner and "load <16 x float>" in inner


def test_what_the_kernel_stores_to_is_read_where_it_stands() -> None:
    """The index of each iteration is what the one before has stored."""
    b = FuncBuilder("f")
    x = b.param("x", (9, 32), I64)
    at = b.ahead("at", (33,), I64)
    b.compute("start", (33,), lambda i: const(1, I64), out=at)

    b.update("next", (32,), (0,), lambda k: Store(at, (k + 1,), x[minimum(cast(INDEX, at[k]), 8), k] % 9))
    func = b.finish(at)
    given = np.random.default_rng(0).integers(0, 90, (9, 32))
    want = [1]
    for k in range(32):
        want.append(int(given[min(want[-1], 8), k]) % 9)
    (got,) = run_native(schedule_func(func, AVX2).func, [given])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("axis", [0, 1])
def test_indices_of_lanes_are_computed_in_vectors(axis: int) -> None:
    """Along the lanes, or across them, where each lane also has a column of its own."""
    b = FuncBuilder("f")
    x, at = b.param("x", (4, 64), F32), b.param("at", (4, 64), I64)
    func = schedule_func(b.finish(*GatherElements(axis).compute(b, [x, at], "y")), AVX2).func
    assert "load <16 x i64>" in code(func) and "load i64" not in code(func)
    rng = np.random.default_rng(0)
    table = rng.standard_normal((4, 64)).astype(np.float32)
    chosen = rng.integers(-table.shape[axis], table.shape[axis], (4, 64))
    (got,) = run_native(func, [table, chosen])
    np.testing.assert_array_equal(got, np.take_along_axis(table, chosen % table.shape[axis], axis))


# ----------------------------------------------------------------------------------------------------------- laid out


def sampled(count: int, padded: bool = False) -> Func:
    """Rows of a transposed image, weighted, and transposed back."""
    b = FuncBuilder("f")
    x, at, w = b.param("x", (16, 50), F32), b.param("at", (count,), I64), b.param("w", (count,), F32)
    if padded:
        image = b.compute("image", (16, 51), lambda c, p: select(p < 50, x[c, minimum(p, 49)], const(0, F32)))
        return b.finish(b.compute("y", (16, count), lambda c, i: image[c, cast(INDEX, at[i])] * w[i]))
    rows = b.compute("rows", (50, 16), lambda p, c: x[c, p])
    sums = b.compute("sums", (count, 16), lambda i, c: rows[cast(INDEX, at[i]), c] * w[i])
    return b.finish(b.compute("y", (16, count), lambda c, i: sums[i, c]))


def names(func: Func) -> list[str]:
    return [b.name for b in blocks(prepared(func).func.body)]


def test_rows_are_laid_out_for_many_places() -> None:
    assert names(sampled(70)) == ["rows", "sums", "y"]


def test_a_transpose_before_few_places_is_inlined() -> None:
    assert "rows" not in names(sampled(7))


def test_a_frame_is_laid_out_for_many_places() -> None:
    assert names(sampled(70, padded=True)) == ["image", "y"]


def test_laid_out_or_not_the_result_is_the_same() -> None:
    rng = np.random.default_rng(0)
    for count in (7, 70):
        x, w = rng.integers(-3, 4, (16, 50)).astype(np.float32), rng.integers(1, 4, count).astype(np.float32)
        at = rng.integers(0, 50, count)
        for padded in (False, True):
            (got,) = run_native(schedule_func(sampled(count, padded), AVX2).func, [x, at, w])
            np.testing.assert_array_equal(got, x[:, at] * w)

"""Vectors that are asked for before they are read: one request a line, at the right distance, and the same results."""

import re

import numpy as np
import pytest
from native import arrays_of, check_same_bits, program, run_native

from tilewright.codegen.fetching import PanelFetching
from tilewright.codegen.kernel import kernel_ir
from tilewright.families.gemm.recipe import GemmPlan, schedule_contraction
from tilewright.families.gemm.space import GemmSpace, gemm_space
from tilewright.families.prepare import prepared
from tilewright.families.tensor.space import tensor_space
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Var
from tilewright.ir.simplify import Linear
from tilewright.search.default import make_request
from tilewright.target.target import AVX2
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.pipeline import lower_func
from tilewright.tir.stmt import PREFETCH, PREFETCH_ELEMENTS, For, LoopKind, blocks, loops

F32 = DType.F32


def gemm(rows: int, cols: int, k: int) -> Func:
    b = FuncBuilder("gemm")
    x, y = b.param("A", (rows, k), F32), b.param("B", (k, cols), F32)
    return b.finish(b.reduce("C", (rows, cols), (k,), lambda i, j, r: (x[i, r], y[r, j])))


def scheduled(
    func: Func,
    prefetch: int,
    columns: int = 16,
    unroll: int = 64,
    *,
    next_panel: bool = False,
    outside: bool = True,
) -> Func:
    s = prepared(func)
    name = next(b.name for b in blocks(s.func.body) if b.is_reduction)
    plan = GemmPlan(
        swap=False,
        fuse_rows=1,
        fuse_cols=1,
        rows=6,
        columns=columns,
        pack_a=False,
        pack_b=True,
        columns_outside=outside,
        chunk=0,
        unroll=unroll,
        prefetch=prefetch,
        next_panel=next_panel,
    )
    schedule_contraction(s, name, plan, AVX2)
    return s.func


def noted(func: Func) -> list[For]:
    return [n for n in loops(func.body) if PREFETCH in dict(n.annotations)]


def requests(llvm: str) -> int:
    return len(re.findall(r"call void @llvm\.prefetch", llvm))


def test_the_distance_is_in_steps_of_the_reduction() -> None:
    """Four steps are written out, so sixteen steps are four iterations."""
    (loop,) = noted(scheduled(gemm(6, 16, 64), 16))
    assert loop.kind is LoopKind.SERIAL and dict(loop.annotations)[PREFETCH] == 4


def test_every_tile_asks_for_its_columns() -> None:
    """Rows in tiles of 6 and 5, columns in one of 16 and one of 8."""
    assert len(noted(scheduled(gemm(11, 24, 64), 16))) == 4


def test_a_short_reduction_asks_for_nothing() -> None:
    assert not noted(scheduled(gemm(6, 16, 16), 16))


def test_a_reduction_without_a_loop_asks_for_nothing() -> None:
    assert not noted(scheduled(gemm(6, 16, 4), 2))


@pytest.mark.parametrize("columns", [8, 16, 24])
def test_a_line_is_asked_for_once(columns: int) -> None:
    """Two vectors of eight share a line."""
    (kernel,) = [p.func for p in lower_func(scheduled(gemm(2, columns, 64), 16, columns))[0] if noted(p.func)]
    (loop,) = noted(kernel)
    assert requests(kernel_ir(kernel)) == 64 // loop.extent * columns * 4 / 64


def test_what_a_loop_reads_at_one_place_is_not_asked_for() -> None:
    func = program(
        """
def f(X: f32[8], Y: f32[16, 8], Z: out(f32[16, 8])):
    for i in range(16, prefetch=2):
        for j in vectorized(8):
            Z[i, j] = X[j] + Y[i, j]
"""
    )
    assert requests(kernel_ir(func)) == 1
    check_same_bits(func, arrays_of(func))


def test_a_request_is_for_the_iteration_that_was_named() -> None:
    func = program(
        """
def f(Y: f32[16, 8], Z: out(f32[16, 8])):
    for i in range(16, prefetch=3):
        for j in vectorized(8):
            Z[i, j] = Y[i, j]
"""
    )
    assert re.search(r"getelementptr float, ptr %v\d+, i64 24\n.*llvm\.prefetch", kernel_ir(func))


def test_a_loop_inside_asks_for_itself() -> None:
    func = program(
        """
def f(Y: f32[4, 16, 8], Z: out(f32[4, 16, 8])):
    for n in range(4, prefetch=2):
        for i in range(16):
            for j in vectorized(8):
                Z[n, i, j] = Y[n, i, j]
"""
    )
    assert requests(kernel_ir(func)) == 0


def test_a_loop_inside_may_ask_for_the_next_row() -> None:
    """Both vectors of a step, and nothing of what all rows share."""
    func = program(
        """
def f(X: f32[64], Y: f32[16, 64], Z: out(f32[16, 64])):
    for i in range(16, prefetch=1):
        for k in range(4, prefetch_row=1):
            for j in vectorized(32):
                Z[i, k * 32 + j] = X[k * 32 + j] + Y[i, k * 32 + j]
""".replace("64", "128")
    )
    assert requests(kernel_ir(func)) == 2
    check_same_bits(func, arrays_of(func))


def test_results_stay_the_same() -> None:
    func = gemm(7, 17, 40)
    rng = np.random.default_rng(2)
    arrays = [rng.integers(-3, 4, p.shape).astype(np.float32) for p in func.params if p not in func.outputs]
    np.testing.assert_array_equal(run_func(scheduled(func, 16), *arrays)[0], run_func(func, *arrays)[0])


# ------------------------------------------------------------------------------------------------------------ the cost


def space_of(func: Func) -> GemmSpace:
    found = gemm_space(make_request(func, AVX2, frozenset({"B"})))
    assert isinstance(found, GemmSpace)
    return found


def best(func: Func) -> dict[str, int]:
    space = space_of(func)
    return space.decisions(space.ranked()[0][0])


@pytest.mark.parametrize("shape", [(128, 768, 768), (64, 768, 3072), (49, 2048, 512)], ids=str)
def test_columns_that_come_from_far_away_are_asked_for(shape: tuple[int, int, int]) -> None:
    assert best(gemm(*shape))["prefetch"] > 0


def test_columns_that_stay_near_are_not_asked_for() -> None:
    """A panel that all rows find in the first-level cache."""
    space = space_of(gemm(3000, 64, 64))
    near = space.decisions(space.ranked()[0][0]) | {"columns_outside": 1, "chunk": 0, "pack_b": 1}
    costs = [
        space.cost(np.array([[(near | {"prefetch": p})[k.name] for k in space.knobs]]))[0] for p in (0, 32)
    ]
    assert costs[0] < costs[1]


def test_all_columns_are_read_from_afar_once_in_either_order() -> None:
    """A matrix that no cache holds: chunks of columns inside are no way around it."""
    func = gemm(64, 29 * 1733, 96)  # its only chunks have 29 columns
    assert best(func)["chunk"] == 0


# ------------------------------------------------------------------------------------------ operands that are read once


def scores(heads: int, rows: int, keys: int, size: int) -> Func:
    """Few rows against many keys, whose elements lie side by side along the reduction."""
    b = FuncBuilder("scores")
    q, k = b.param("q", (heads, rows, size), F32), b.param("k", (heads, keys, size), F32)
    return b.finish(b.reduce("C", (heads, rows, keys), (size,), lambda h, i, j, c: (q[h, i, c], k[h, j, c])))


def tensorized(func: Func) -> Func:
    request = make_request(func, AVX2, frozenset())
    space = tensor_space(request)
    assert space is not None
    points, _ = space.ranked()
    return space.build(space.decisions(points[0])).func


def asking(func: Func) -> list[For]:
    return [n for n in loops(func.body) if PREFETCH_ELEMENTS in dict(n.annotations)]


def test_rows_of_a_later_tile_are_asked_for_if_they_come_from_memory() -> None:
    made = tensorized(scores(8, 8, 4096, 128))
    assert asking(made)
    kernel = lower_func(made)[0][-1].func
    # One request for each of the rows of the tile, whatever is written out of the reduction.
    assert requests(kernel_ir(kernel)) in (8, 16)


def test_what_stays_in_a_cache_is_not_asked_for() -> None:
    assert not asking(tensorized(scores(8, 8, 128, 64)))


def test_asking_changes_no_result() -> None:
    func = scores(2, 8, 2048, 80)
    made = tensorized(func)
    assert asking(made)
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(p.shape, np.float32) for p in func.params if p not in func.outputs]
    np.testing.assert_allclose(
        run_native(made, args, AVX2)[0], np.einsum("hic,hjc->hij", *args), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(("tiles", "steps", "step"), [(2, 16, 96), (3, 5, 64), (25, 128, 96), (60, 7, 64)])
def test_rows_past_a_panel_ask_for_all_of_the_next_one(tiles: int, steps: int, step: int) -> None:
    """Each tile of rows asks for its part of it: together for every line, and for few behind it."""
    part, row, k = Var("part"), Var("row"), Var("k")
    panel = steps * step
    fetching = PanelFetching(((row, tiles), (k, steps)), panel)
    found = fetching.pieces(Linear(0, ((part, panel), (k, step))))
    assert found is not None
    (const, terms), elements = found
    at = dict(terms)
    assert const == at[part] == panel
    asked = {
        at[row] * r + at[k] * i + n
        for r in range(tiles)
        for i in range(steps)
        for n in range(0, elements, 16)
    }
    assert {n // 16 for n in range(panel)} <= {n // 16 for n in asked}
    assert max(asked) < 2 * panel


@pytest.mark.parametrize("rows", [(), ((Var("row"), 100),)], ids=["parts of their own", "more than elements"])
def test_a_panel_is_not_asked_for_where_that_is_no_use(rows: tuple[tuple[Var, int], ...]) -> None:
    fetching = PanelFetching((*rows, (Var("k"), 16)), 1024)
    assert fetching.pieces(Linear(0, ((Var("part"), 1024), (Var("k"), 64)))) is None


def test_requests_for_the_next_panel_are_few() -> None:
    """Two tiles of rows: each asks for half of a step's two lines."""
    func = scheduled(gemm(12, 16 * 32, 64), 0, next_panel=True)
    assert (
        sum(requests(kernel_ir(p.func)) for p in lower_func(func)[0]) == 64 * 16 * 4 // 64 // (64 // 4) // 2
    )


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("shape", [(11, 40, 64), (12, 48, 24), (7, 16, 8)], ids=str)
def test_asking_for_the_next_panel_changes_no_result(shape: tuple[int, int, int], outside: bool) -> None:
    plain, asking = (scheduled(gemm(*shape), 0, next_panel=asks, outside=outside) for asks in (False, True))
    arrays = arrays_of(plain)
    given = [arrays[p] for p in plain.params if p not in plain.outputs]
    for a, b in zip(run_native(plain, given), run_native(asking, given), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shape", [(128, 768, 768), (49, 2048, 512)], ids=str)
def test_weights_from_memory_are_asked_for_a_panel_before(shape: tuple[int, int, int]) -> None:
    assert best(gemm(*shape))["next_panel"] == 1


def test_weights_of_one_row_are_not_asked_for_a_panel_before() -> None:
    """They come in order, and once."""
    assert best(gemm(1, 1024, 1024))["next_panel"] == 0

"""The design space of contractions: every point keeps the meaning, and the closed cost counts what is built."""

import math
import time

import numpy as np
import pytest

from tilewright.families.gemm.cost import Choices, vector_operations
from tilewright.families.gemm.space import GemmSpace, gemm_space
from tilewright.families.prepare import prepared
from tilewright.families.tensor.space import tensor_space
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Fma, cast, walk
from tilewright.search.default import make_request
from tilewright.target.target import AVX2
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.pipeline import lower_func
from tilewright.tir.stmt import For, LoopKind, Stmt, Store, children
from tilewright.tir.verify import verify_func

F32 = DType.F32


def gemm(m: int, n: int, k: int, *, transposed: bool = False) -> Func:
    """C = A · B, or A · Bᵀ."""
    b = FuncBuilder("gemm")
    x = b.param("A", (m, k), F32)
    y = b.param("B", (n, k) if transposed else (k, n), F32)
    return b.finish(
        b.reduce("C", (m, n), (k,), lambda i, j, r: (x[i, r], y[j, r] if transposed else y[r, j]))
    )


def convolution(c: int, o: int, size: int, kernel: int, stride: int) -> Func:
    """As a model states it: channels first."""
    out = (size - kernel) // stride + 1
    b = FuncBuilder("convolution")
    x, w = b.param("X", (c, size, size), F32), b.param("W", (o, c, kernel, kernel), F32)
    return b.finish(
        b.reduce(
            "Y",
            (o, out, out),
            (c, kernel, kernel),
            lambda f, h, v, ch, r, s: (x[ch, h * stride + r, v * stride + s], w[f, ch, r, s]),
        )
    )


def stacked(batch: int, m: int, n: int, k: int) -> Func:
    b = FuncBuilder("stacked")
    x, y = b.param("A", (batch, m, k), F32), b.param("B", (batch, k, n), F32)
    return b.finish(b.reduce("C", (batch, m, n), (k,), lambda g, i, j, r: (x[g, i, r], y[g, r, j])))


FUNCS = {
    "gemm": gemm(48, 50, 9),
    "narrow": gemm(5, 7, 3),
    "transposed": gemm(31, 24, 8, transposed=True),
    "convolution": convolution(5, 12, 9, 3, 2),
    "pointwise": convolution(6, 24, 7, 1, 1),
    "stacked": stacked(3, 24, 48, 5),
}


def space_of(func: Func, *constants: str) -> GemmSpace:
    found = gemm_space(make_request(func, AVX2, frozenset(constants)))
    assert isinstance(found, GemmSpace)
    return found


@pytest.mark.parametrize("func", FUNCS.values(), ids=FUNCS)
def test_every_point_keeps_the_meaning(func: Func) -> None:
    space = space_of(func)
    points, _ = space.ranked()
    rng = np.random.default_rng(3)
    arrays = [rng.integers(-3, 4, p.shape).astype(np.float32) for p in func.params if p not in func.outputs]
    (want,) = run_func(func, *arrays)
    chosen = rng.choice(len(points), min(24, len(points)), replace=False)
    for n in (0, *chosen):
        built = space.build(space.decisions(points[n])).func
        verify_func(built)
        np.testing.assert_array_equal(run_func(built, *arrays)[0], want)


def test_a_chunk_larger_than_all_takes_for_ever() -> None:
    """Evolution mixes the knobs of points, and asks for the cost of what comes of it."""
    space = space_of(gemm(1, 64, 32))
    points, _ = space.ranked()
    point = points[:1].copy()
    chunk = list(space.decisions(point[0])).index("chunk")
    point[0, chunk] = 1 << 20
    for threads in (1, 2):
        space.threads = threads
        assert np.isinf(space.cost(point)).all()


@pytest.mark.parametrize("func", FUNCS.values(), ids=FUNCS)
def test_the_cost_counts_what_is_built(func: Func) -> None:
    """Multiply-adds of the lowered kernels, edges and chunks included, are those of the closed form."""
    space = space_of(func, *(p.name for p in func.params))
    points, _ = space.ranked()
    rng = np.random.default_rng(5)
    for n in rng.choice(len(points), min(12, len(points)), replace=False):
        point = points[n : n + 1]
        form = space.forms[tuple(point[0, :3])]
        p = point[:, 3:]
        choices = Choices(p[:, 0], p[:, 1], p[:, 2] > 0, p[:, 3] > 0, p[:, 4] > 0, p[:, 5], p[:, 6], p[:, 7])
        (predicted,) = vector_operations(form, choices, AVX2)
        phases, _ = lower_func(space.build(space.decisions(point[0])).func)
        assert sum(multiply_adds(phase.func.body) for phase in phases) == predicted, space.decisions(point[0])


def multiply_adds(s: Stmt) -> int:
    """Of vectors: a vectorized loop counts once."""
    if isinstance(s, Store):
        return sum(isinstance(e, Fma) for e in walk(s.value))
    inside = sum(map(multiply_adds, children(s)))
    return inside * s.extent if isinstance(s, For) and s.kind is not LoopKind.VECTORIZED else inside


def test_thousands_of_points_are_ranked_at_once() -> None:
    space = space_of(convolution(64, 64, 58, 3, 1))
    start = time.perf_counter()
    points, costs = space.ranked()
    assert len(points) > 2000 and time.perf_counter() - start < 2
    assert (np.diff(costs) >= 0).all() and math.isfinite(costs[-1])


def test_twice_the_work_costs_about_twice_as_much() -> None:
    one, two = (space_of(gemm(m, 256, 256)).ranked()[1][0] for m in (240, 480))
    assert 1.9 < two / one < 2.1


def test_a_tile_of_the_wrong_size_loses() -> None:
    """One row at a time leaves the units idle; the best tile has enough accumulators."""
    space = space_of(gemm(240, 256, 256))
    points, costs = space.ranked()
    best = space.decisions(points[0])
    assert best["rows"] * best["vectors"] >= 8
    narrow = costs[(points[:, 3] == 1) & (points[:, 4] == 1)].min()
    assert narrow > 3 * costs[0]


def test_packing_of_constants_is_free() -> None:
    func = gemm(12, 512, 512)
    free, paid = space_of(func, "B"), space_of(func)
    assert free.decisions(free.ranked()[0][0])["pack_b"] == 1
    assert free.ranked()[1][0] < paid.ranked()[1][0]


def test_rows_of_constants_that_are_near_each_other_are_packed_too() -> None:
    """What is 512 bytes apart shares sets of a cache: a panel of it does not stay there."""
    space = space_of(gemm(784, 128, 512), "B")
    assert space.decisions(space.ranked()[0][0])["pack_b"] == 1


def test_more_cores_want_balanced_parts() -> None:
    func = gemm(96, 512, 64)
    one = GemmSpace(prepared(func), AVX2, frozenset())
    two = GemmSpace(prepared(func), AVX2.for_threads(2), frozenset())
    assert two.ranked()[1][0] < 0.7 * one.ranked()[1][0]


def test_channels_that_both_operands_have_are_no_columns() -> None:
    """A depthwise convolution with channels last: the ordinary vector path takes it."""
    b = FuncBuilder("depthwise")
    x, w = b.param("X", (9, 9, 8), F32), b.param("W", (3, 3, 8), F32)
    func = b.finish(b.reduce("Y", (7, 7, 8), (3, 3), lambda h, v, c, r, s: (x[h + r, v + s, c], w[r, s, c])))
    assert gemm_space(make_request(func, AVX2, frozenset())) is None


@pytest.mark.parametrize(
    "change", [{"rows": 8, "vectors": 3}, {"chunk": 7}, {"rows": 49}], ids=["registers", "chunk", "rows"]
)
def test_what_cannot_be_costs_infinitely_much(change: dict[str, int]) -> None:
    space = space_of(gemm(48, 50, 9))
    decisions = space.decisions(space.ranked()[0][0]) | change
    point = np.array([[decisions[k.name] for k in space.knobs]])
    assert space.cost(point)[0] == math.inf


def test_products_of_bytes_have_a_space_of_intrinsics() -> None:
    b = FuncBuilder("bytes")
    x, y = b.param("A", (12, 16), DType.U8), b.param("B", (16, 24), DType.I8)
    func = b.finish(
        b.reduce(
            "C",
            (12, 24),
            (16,),
            lambda i, j, k: cast(DType.I32, x[i, k]) * cast(DType.I32, y[k, j]),
        )
    )
    space = tensor_space(make_request(func, AVX2))
    assert space is not None
    built = space.build(space.decisions(space.ranked()[0][0]))
    assert "Tensorize" in str(built.trace)
    rng = np.random.default_rng(0)
    arrays = (
        rng.integers(0, 256, (12, 16)).astype(np.uint8),
        rng.integers(-128, 128, (16, 24)).astype(np.int8),
    )
    (got,) = run_func(built.func, *arrays)
    np.testing.assert_array_equal(got, arrays[0].astype(np.int32) @ arrays[1].astype(np.int32))


@pytest.mark.parametrize("size", [512, 1024])
def test_rows_that_lie_far_apart_are_read_again_from_near(size: int) -> None:
    """They come from afar once: in chunks that stay in the second-level cache while all columns pass."""
    space = gemm_space(make_request(gemm(size, size, size), AVX2, frozenset()))
    assert space is not None
    best = space.decisions(space.ranked()[0][0])
    assert best["columns_outside"] and 0 < best["chunk"] * size * 4 < AVX2.machine.l2_bytes


def test_images_of_a_batch_do_not_all_pass_by_each_panel() -> None:
    """What the caches do not hold is not read again for every panel of columns: a chunk of rows meets all panels."""
    b = FuncBuilder("pointwise")
    x, w = b.param("X", (16, 1024, 196), F32), b.param("W", (256, 1024), F32)
    func = b.finish(b.reduce("Y", (16, 196, 256), (1024,), lambda n, p, o, c: (x[n, c, p], w[o, c])))
    space = space_of(func, "W")
    best = space.decisions(space.ranked()[0][0])
    assert best["chunk"] > 0 or not best["columns_outside"]

"""Blocks without a reduction: whatever plan runs them, they compute what they say, interpreted and natively."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from native import run_native

from tilewright.build import build
from tilewright.codegen.kernel import kernel_ir
from tilewright.gir.movement import share_of
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Var, as_index, const, equal, free_vars, loads, maximum, select
from tilewright.runtime.memory import empty_aligned
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps.stream_elements import StreamElements
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.pipeline import lower_func
from tilewright.tir.stmt import STREAM, LoopKind, Store, loops
from tilewright.tir.verify import verify_func

F32 = DType.F32
PLANS = (
    StreamElements("Y", 8),
    StreamElements("Y", 4, 2, parts=3),
    StreamElements("Y", 8, 2, squares=2, streams=True, parts=16),
    StreamElements("Y", 4, across=4, along=8, sources_first=True, streams=True),
)


def random_func(seed: int) -> Func:
    """A sum of operands, each with its own axes missing or in another order, some of them behind a condition."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.choice([1, 3, 8, 13, 16, 24], rng.integers(1, 4)))
    b = FuncBuilder("random")
    operands: list[tuple[Buffer, list[int]]] = []
    for k in range(rng.integers(1, 4)):
        axes = [int(a) for a in rng.permutation(len(shape)) if rng.random() < 0.8]
        operands.append((b.param(f"X{k}", tuple(shape[a] for a in axes), F32), axes))
    cut, at = int(rng.integers(len(shape))), int(rng.integers(1, 20))
    is_cut = rng.random() < 0.5

    def value(*i: Expr) -> Expr:
        total: Expr = const(1, F32)
        for n, (x, axes) in enumerate(operands):
            read = x[tuple(i[a] for a in axes)]
            total = total + (select(i[cut] < at, read, const(2, F32)) if is_cut and not n else read)
        return total

    return b.finish(b.compute("Y", shape, value))


def integers(func: Func) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-9, 9, p.shape).astype(p.dtype.numpy) for p in func.params if p not in func.outputs]


@pytest.mark.parametrize("seed", range(24))
def test_any_plan_computes_the_same(seed: int) -> None:
    func = random_func(seed)
    plan = PLANS[seed % len(PLANS)]
    made = Schedule(func)
    made.apply(plan)
    verify_func(made.func)
    assert plan.broken_promise(func, made.func) is None  # it moves no more
    arrays = integers(func)
    (want,) = run_func(func, *arrays)
    np.testing.assert_array_equal(run_func(made.func, *arrays)[0], want)
    np.testing.assert_array_equal(run_native(made.func, arrays)[0], want)


def transposed(rows: int, columns: int) -> Func:
    b = FuncBuilder("transposed")
    x = b.param("X", (rows, columns), F32)
    return b.finish(b.compute("Y", (columns, rows), lambda i, j: x[j, i]))


def streamed(func: Func, **knobs: int) -> Func:
    s = Schedule(func)
    s.apply(replace(StreamElements("Y", 8, squares=2, streams=True), **knobs))
    return s.func


def code(func: Func) -> str:
    phases, _ = lower_func(func)
    return kernel_ir(phases[0].func)


def test_stores_past_the_caches_are_aligned_and_fenced() -> None:
    text = code(streamed(transposed(64, 64)))
    stores = re.findall(r"store <8 x float> .*!nontemporal.*", text)
    assert len(stores) == 16 and all("align 32" in s for s in stores)
    assert "fence seq_cst" in text


def test_a_loop_of_one_iteration_streams_too() -> None:
    """Squares that are as wide as their block: the loop over rows of squares goes, not what it says."""
    text = code(streamed(transposed(64, 64), lanes=16, squares=1, across=16, along=32))
    assert len(re.findall(r"store <16 x float> .*!nontemporal", text)) == 16


@pytest.mark.parametrize(("rows", "parts"), [(7 * 8, 1), (13 * 8, 1), (12 * 8, 4)])
def test_blocks_are_as_large_as_the_plan_says_even_if_nothing_divides_the_rows(rows: int, parts: int) -> None:
    """13 rows of squares in blocks of up to 4 are 4 + 4 + 4 + 1; with several parts, each has a block."""
    func = transposed(16, rows)
    made = streamed(func, squares=1, across=4 * 8, along=16, parts=parts)
    sizes = [n.extent for n in loops(made.body) if "row" in n.var.name]
    assert sizes == [{7: 4, 13: 4, 12: 3}[rows // 8]]
    assert StreamElements("Y", 8).broken_promise(func, made) is None  # what is not there is not counted
    arrays = integers(func)
    np.testing.assert_array_equal(run_func(made, *arrays)[0], arrays[0].T)
    np.testing.assert_array_equal(run_native(made, arrays)[0], arrays[0].T)


def test_of_rows_that_are_not_whole_vectors_only_every_eighth_is_aligned() -> None:
    assert code(streamed(transposed(61, 64))).count("!nontemporal") == 1


def test_an_output_that_is_not_aligned_is_stored_as_usual() -> None:
    func = streamed(transposed(64, 64))
    x = integers(func)[0]
    room = empty_aligned((64 * 64 + 1,), np.dtype(np.float32))
    for start in (0, 1):
        y = room[start : start + 64 * 64].reshape(64, 64)
        build(func)(x, out=y)
        np.testing.assert_array_equal(y, x.T)


def test_a_loop_says_that_it_streams() -> None:
    assert any(STREAM in dict(n.annotations) for n in loops(streamed(transposed(64, 64)).body))


def test_what_one_part_alone_does_counts_once() -> None:
    """126 elements are 15 vectors, which three parts share, and 6 others, which the last of them has."""
    b = FuncBuilder("sum")
    x, y = b.param("X", (7, 6, 3), F32), b.param("B", (3,), F32)
    func = b.finish(b.compute("Y", (7, 6, 3), lambda i, j, k: x[i, j, k] + y[k]))
    plan = StreamElements("Y", 8, parts=2)
    s = Schedule(func)
    s.apply(plan)
    assert plan.broken_promise(func, s.func) is None


@pytest.mark.parametrize("extents", [(5, 4, 3), (1, 7, 2), (4, 4, 1)])
@pytest.mark.parametrize("steps", [(12, 3, 1), (24, 6, 2), (1, 5, 20), (7, 7, 1)])
def test_the_iterations_that_a_condition_holds_for_are_counted(
    extents: tuple[int, ...], steps: tuple[int, ...]
) -> None:
    """Exactly where variables are digits of a number, which is so in some of these; never too few."""
    axes = {Var(n): e for n, e in zip("abc", extents, strict=True)}
    points = np.stack([g.ravel() for g in np.meshgrid(*map(np.arange, extents), indexing="ij")])
    values = np.array(steps) @ points
    number: Expr = as_index(0)
    for v, k in zip(axes, steps, strict=True):
        number = number + v * k
    used = sorted((k, e) for k, e in zip(steps, extents, strict=True) if e > 1)
    exact = all(k * e == after for (k, e), (after, _) in pairwise(used))
    for limit in range(-2, 70, 3):
        cases = (
            (number < limit, values < limit),
            (as_index(limit) <= number, limit <= values),
            (equal(number, as_index(limit)), values == limit),
        )
        for cond, holds in cases:
            counted = share_of(cond, axes) * values.size
            assert counted == holds.sum() if exact else counted >= holds.sum()


def test_a_sum_is_refused() -> None:
    b = FuncBuilder("sum")
    x = b.param("X", (4, 8), F32)
    s = Schedule(b.finish(b.reduce("Y", (4,), (8,), lambda i, k: x[i, k])))
    with pytest.raises(ScheduleError, match="not one store of elements"):
        s.apply(StreamElements("Y", 8))


def test_numbers_below_one_are_refused() -> None:
    with pytest.raises(ScheduleError, match="at least one"):
        Schedule(transposed(8, 8)).apply(StreamElements("Y", 0))


@pytest.mark.parametrize("columns", [24, 32])
def test_vectors_taken_together_stay_in_one_row(columns: int) -> None:
    """Otherwise lanes are of two rows, and each has to find out which row it reads."""
    b = FuncBuilder("moved")
    x = b.param("X", (16, columns), F32)

    def value(i: Expr, j: Expr) -> Expr:
        return x[maximum(i - 1, 0), maximum(j - 1, 0)]

    made = Schedule(b.finish(b.compute("Y", (16, columns), value)))
    made.apply(StreamElements("Y", 8, 2))
    vectors = [n for n in loops(made.func.body) if n.kind is LoopKind.VECTORIZED]
    assert vectors
    for n in vectors:
        assert isinstance(n.body, Store)
        (read,) = loads(n.body.value)
        assert n.var in free_vars(read.indices[1]) and n.var not in free_vars(read.indices[0])


@pytest.mark.parametrize("rows", [64, 70, 71])
def test_a_triangle_that_is_transposed_is_computed_to_its_last_column(rows: int) -> None:
    """Its condition changes at every element, which is no reason to forget what is left of the tiles."""
    b = FuncBuilder("triangle")
    x = b.param("X", (rows, 16), F32)
    func = b.finish(b.compute("Y", (16, rows), lambda i, j: select(i <= j, x[j, i], const(0, F32))))
    given = np.random.default_rng(0).standard_normal((rows, 16), np.float32)
    for plan in PLANS:
        s = Schedule(func)
        s.apply(plan)
        np.testing.assert_array_equal(build(s)(given), np.tril(given).T)

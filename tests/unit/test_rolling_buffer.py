"""rolling_buffer: rows are computed once, and are there when they are wanted."""

import numpy as np
import pytest
from native import bits, run_native
from schedule_programs import check, outline

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    Expr,
    Scope,
    Var,
    as_index,
    const,
    select,
)
from tilewright.schedule.find import find_block, find_loop
from tilewright.schedule.rolled import try_rolled
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    Annotate,
    CacheRead,
    ComputeAt,
    DecomposeReduction,
    Parallel,
    ReverseComputeInline,
    RollingBuffer,
    SetScope,
    Split,
    Unroll,
    Vectorize,
)
from tilewright.schedule.trace import replay
from tilewright.support.errors import ScheduleError
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import For, Stmt, Store, loops, walk_stmts

AT: tuple[Step, ...] = (ComputeAt("T", "D_i"), RollingBuffer("T", "T"))


def blur(rows: int = 10, taps: int = 3, stride: int = 1, dtype: DType = DType.I32) -> Func:
    """D[i] is the sum of rows i·stride … of T."""
    b = FuncBuilder("blur")
    height = (rows - 1) * stride + taps
    x = b.param("X", (height, 6), dtype)
    t = b.compute("T", (height, 6), lambda i, j: x[i, j] * 3)

    def total(i: Var, j: Var) -> Expr:
        out: Expr = t[i * stride, j]
        for r in range(1, taps):
            out = out + t[i * stride + r, j]
        return out

    return b.finish(b.compute("D", (rows, 6), total))


def convolutions(stride: int = 1, dtype: DType = DType.I32) -> Func:
    b = FuncBuilder("convolutions")
    x, w, u = b.param("X", (13, 9), dtype), b.param("W", (3, 3), dtype), b.param("U", (3, 3), dtype)
    t = b.reduce("T", (11, 7), (3, 3), lambda i, j, r, s: (x[i + r, j + s], w[r, s]))
    rows = (11 - 3) // stride + 1
    return b.finish(b.reduce("D", (rows, 5), (3, 3), lambda i, j, r, s: (t[i * stride + r, j + s], u[r, s])))


def padded(pad: int = 1, dtype: DType = DType.I32) -> Func:
    """The window starts outside of the rows there are."""
    b = FuncBuilder("padded")
    x = b.param("X", (9, 6), dtype)
    t = b.compute("T", (9, 6), lambda i, j: x[i, j] * 3)

    def total(i: Var, j: Var) -> Expr:
        out: Expr = const(0, dtype)
        for r in range(3):
            at = i + (r - pad)
            out = out + select(logical_and(as_index(0) <= at, at < 9), t[at, j], const(0, dtype))
        return out

    return b.finish(b.compute("D", (7 + 2 * pad, 6), total))


def batch(dtype: DType = DType.I32) -> Func:
    b = FuncBuilder("batch")
    x = b.param("X", (3, 8, 4), dtype)
    t = b.compute("T", (3, 8, 4), lambda n, i, j: x[n, i, j] * 3)
    return b.finish(b.compute("D", (3, 6, 4), lambda n, i, j: t[n, i, j] + t[n, i + 1, j] + t[n, i + 2, j]))


def chain(stride: int = 1, dtype: DType = DType.I32) -> Func:
    """Three stencils, one on the other."""
    b = FuncBuilder("chain")
    x = b.param("X", (9 * stride + 7, 5), dtype)
    s = b.compute("S", (9 * stride + 5, 5), lambda i, j: x[i, j] + x[i + 2, j])
    t = b.compute("T", (9 * stride + 3, 5), lambda i, j: s[i, j] + s[i + 1, j] * 3 + s[i + 2, j])
    return b.finish(b.compute("D", (10, 5), lambda i, j: t[i * stride, j] + t[i * stride + 2, j]))


def runs(func: Func, block: str) -> int:
    """How often the blocks `block` and `block`_head run."""

    def count(s: Stmt) -> int:
        inside = sum(count(c) for c in walk_stmts(s) if c is not s and any(c is k for k in _direct(s)))
        if getattr(s, "name", None) in (block, f"{block}_head"):
            return 1
        return inside * getattr(s, "extent", 1)

    return count(func.body)


def _direct(s: Stmt) -> tuple[Stmt, ...]:
    body = getattr(s, "body", None)
    return getattr(s, "stmts", ()) if body is None else (body,)


def local(func: Func, name: str) -> tuple[int, ...]:
    return next(b.shape for b in func.locals if b.name == name)


def test_rows_are_computed_once() -> None:
    before = replay(single(blur()), AT[:1]).funcs[0]
    done = check(blur(), *AT)
    assert local(done, "T") == (3, 6)
    assert runs(before, "T") == 10 * 3 * 6
    assert runs(done, "T") == 12 * 6


def test_the_nests_of_a_rolled_buffer() -> None:
    done = check(blur(), *AT)
    assert outline(done.body) == [
        "for D_i_roll in range(1):",
        "    for T_0_head in range(2):",
        "        for T_1_head in range(6):",
        "            T_head(T_vi_head = T_0_head, T_vj_head = T_1_head)",
        "    for D_i in range(10):",
        "        for T_0 in range(1):",
        "            for T_1 in range(6):",
        "                T(T_vi = D_i + 2, T_vj = T_1)",
        "        for D_j in range(6):",
        "            D(D_vi = D_i, D_vj = D_j)",
    ]


@pytest.mark.parametrize("rows", [2, 3, 5, 10])
@pytest.mark.parametrize(("taps", "stride"), [(2, 1), (3, 1), (3, 2), (5, 2), (5, 3), (4, 3)])
def test_windows_and_strides(taps: int, stride: int, rows: int) -> None:
    done = check(blur(rows, taps, stride), *AT)
    assert local(done, "T") == (taps, 6)
    assert runs(done, "T") == ((rows - 1) * stride + taps) * 6


@pytest.mark.parametrize("stride", [1, 2])
def test_a_reduction_rolls(stride: int) -> None:
    done = check(convolutions(stride), *AT)
    assert local(done, "T") == (3, 7)
    assert find_block(done, "T_head").init is not None


@pytest.mark.parametrize("tile", [2, 3, 4])
def test_tiles_of_rows_roll(tile: int) -> None:
    trace = (Split("D_i", (None, tile)), ComputeAt("T", "D_i_0"), RollingBuffer("T", "T"))
    assert local(check(convolutions(), *trace), "T") == (tile + 2, 7)


@pytest.mark.parametrize("pad", [0, 1, 2])
def test_a_window_that_starts_outside(pad: int) -> None:
    done = check(padded(pad), *AT)
    assert local(done, "T") == (3, 6)
    names = [n.var.name for n in loops(done.body)]
    assert ("T_0_head" in names) == (pad < 2)  # with two rows outside there is nothing to compute ahead


def test_in_a_loop_over_images() -> None:
    s = Schedule(single(batch()))
    s.compute_at("T", "D_i")
    head = s.rolling_buffer("T", "T")
    s.parallel("D_n")
    done = check(batch(), *s.trace)
    assert local(done, "T") == (3, 3, 4)
    assert [n.var.name for n in loops(done.body)][:2] == ["D_n", f"{head[:1]}_0_head"]


CHAIN: tuple[Step, ...] = (
    ComputeAt("T", "D_i"),
    ComputeAt("S", "D_i"),
    RollingBuffer("S", "S"),
    RollingBuffer("T", "T"),
)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_chain_rolls_from_its_start(stride: int) -> None:
    done = check(chain(stride), *CHAIN)
    assert (local(done, "S"), local(done, "T")) == ((5, 5), (3, 5))
    assert runs(done, "S") == (9 * stride + 5) * 5
    assert runs(done, "T") == (9 * stride + 3) * 5


def test_a_chain_of_tiles_rolls() -> None:
    done = check(
        chain(),
        Split("D_i", (None, 4)),
        ComputeAt("T", "D_i_0"),
        ComputeAt("S", "D_i_0"),
        RollingBuffer("S", "S"),
        RollingBuffer("T", "T"),
    )
    assert (local(done, "S"), local(done, "T")) == ((8, 5), (6, 5))


@pytest.mark.parametrize(("offset", "there"), [(0, True), (1, True), (2, False)])
def test_rows_that_are_there_before_the_loop(offset: int, there: bool) -> None:
    done = check(blur(), *AT)
    rolled = try_rolled(done, Dataflow(done), done.locals[0], find_loop(done, "D_i"))
    assert rolled is not None
    assert (rolled.rows, rolled.step, rolled.new) == (3, 1, 2)
    row = Store(
        done.params[1], (as_index(0), as_index(0)), rolled.buffer[(as_index(offset) + Var("h")) % 3, 0]
    )
    assert rolled.reads_ahead_only(For(Var("h"), 1, row)) == there


TRACES: dict[str, tuple[Func, tuple[Step, ...]]] = {
    "blur": (blur(dtype=DType.F32), AT),
    "taps": (blur(7, 5, 2, DType.F32), AT),
    "reduction": (convolutions(1, DType.F32), (*AT, Vectorize("T_1"), Vectorize("T_1_head"), Unroll("T_2"))),
    "tiles": (
        convolutions(1, DType.F32),
        (Split("D_i", (None, 4)), ComputeAt("T", "D_i_0"), Vectorize("T_1"), RollingBuffer("T", "T")),
    ),
    "padded": (padded(1, DType.F32), AT),
    "outside": (padded(2, DType.F32), AT),
    "chain": (chain(1, DType.F32), CHAIN),
    "chain_stride": (chain(2, DType.F32), CHAIN),
    "batch": (batch(DType.F32), (*AT, Parallel("D_n"))),
    "local": (blur(dtype=DType.F32), (*AT, SetScope("T", Scope.LOCAL))),
    "local_batch": (batch(DType.F32), (*AT, SetScope("T", Scope.LOCAL), Parallel("D_n"))),
    "split_after": (blur(dtype=DType.F32), (*AT, Split("D_i", (None, 4)))),
    "unrolled": (blur(4, dtype=DType.F32), (*AT, Unroll("D_i"))),
}


@pytest.mark.parametrize("name", TRACES)
def test_native_code_gives_the_same_bits(name: str) -> None:
    func, trace = TRACES[name]
    done = check(func, *trace)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(p.shape).astype(np.float32) for p in func.params if p not in func.outputs]
    for a, b, c in zip(
        run_func(func, *inputs), run_func(done, *inputs), run_native(done, inputs), strict=True
    ):
        np.testing.assert_array_equal(bits(b), bits(a))
        np.testing.assert_array_equal(bits(c), bits(a))


@pytest.mark.parametrize("rows", [2, 10])
@pytest.mark.parametrize("taps", [2, 3])
def test_rows_that_are_kept_bind_the_iterations(taps: int, rows: int) -> None:
    module = replay(single(blur(rows, taps)), AT)
    for step in (Parallel("D_i"), Vectorize("D_i")):
        with pytest.raises(ScheduleError):
            step.apply(module)


@pytest.mark.parametrize("place", ["D_i", "D_j"])
def test_a_block_stays_where_its_rows_go_round(place: str) -> None:
    module = replay(single(padded(2)), AT)  # no rows are computed ahead: T has one writer
    with pytest.raises(ScheduleError, match="writes elements of T anew while others read them"):
        ComputeAt("T", place).apply(module)


def test_rows_that_go_round_are_not_computed_with_their_input() -> None:
    module = replay(single(padded(2)), (*AT, CacheRead("T", "X", Scope.GLOBAL)))
    with pytest.raises(ScheduleError, match="writes elements of T anew while others read them"):
        ReverseComputeInline("T").apply(module)


@pytest.mark.parametrize("loop", ["D_i_roll", "D_i", "T_2", "T_3"])
def test_rows_are_set_to_zero_when_they_come(loop: str) -> None:
    step = DecomposeReduction("T", loop)
    if loop == "T_2":
        check(convolutions(), *AT, step, DecomposeReduction("T_head", "T_2_head"))
        return
    with pytest.raises(ScheduleError):
        step.apply(replay(single(convolutions()), AT))


def test_a_remark_on_the_loop_stays() -> None:
    done = check(blur(), AT[0], Annotate("D_i", "note", 1), AT[1])
    assert find_loop(done, "D_i").annotations == (("note", 1),)

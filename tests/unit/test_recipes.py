"""Default schedules: what structure they give to which Funcs, and that they mean what the Func meant.

Values are small integers in f32, so every order of a sum gives the same bits and results are compared exactly.
"""

import logging
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from onnx import ModelProto
from schedule_programs import backwards

from examples.models import mlp, resnet18, transformer_encoder
from tilewright.driver.passes import PassContext, ProgramState, run_passes
from tilewright.frontend.onnx.load import load_graph
from tilewright.ir.dtype import DType
from tilewright.ir.expr import TRUE, Expr, Scope, const, maximum, select
from tilewright.schedule import draft
from tilewright.schedule.draft import Draft
from tilewright.schedule.steps.loop_kind import Parallel
from tilewright.schedule.trace import replay
from tilewright.search import default
from tilewright.search.default import schedule_func
from tilewright.support.errors import ScheduleError
from tilewright.target.target import AVX2, BASELINE, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.compare import same_func
from tilewright.tir.digest import func_digest
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import LoopKind, Store, blocks, loops
from tilewright.tir.verify import verify_func

F32 = DType.F32
SIZES = (1, 2, 3, 5, 6, 7, 8, 13, 16, 17, 24, 31, 33)


def inputs_of(func: Func, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    given = [p for p in func.params if p not in func.outputs]
    return [rng.integers(-3, 4, p.shape).astype(p.dtype.numpy) for p in given]


def check(func: Func, target: Target = AVX2, *, constants: Sequence[str] = (), rung: int = 0) -> Func:
    """The schedule that `func` gets on the given rung of the ladder, which gives the same results."""
    s = default.LADDER[rung](func, target, frozenset(constants), default.as_stated).draft
    verify_func(s.func)
    arrays = inputs_of(func)
    want, got = run_func(func, *arrays), run_func(s.func, *arrays)
    for w, g in zip(want, got, strict=True):
        np.testing.assert_array_equal(g, w)
    return s.func


def relu(x: Expr) -> Expr:
    return maximum(x, 0)


# ------------------------------------------------------------------------------------------------------------ drafts


def test_branches_of_a_draft_take_a_step_once() -> None:
    start = Draft(relu_of_sum())
    first, second = start.branch(), start.branch()
    for s in (first, second):
        s.apply(Parallel("Z_i"))
    assert second.module is first.module and second.trace == first.trace
    assert start.trace == () and start.module is not first.module
    second.apply(Parallel("W_i"))
    assert second.module is not first.module and len(first.trace) == 1


def test_a_step_that_one_branch_was_refused_is_refused_to_all() -> None:
    start = Draft(relu_of_sum())
    for s in (start.branch(), start.branch()):
        with pytest.raises(ScheduleError, match="no loop or block"):
            s.apply(Parallel("no such loop"))
        assert s.trace == ()


def test_a_draft_does_not_remember_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "_MOST_KNOWN", 1)
    start = Draft(relu_of_sum())
    first, again = start.branch(), start.branch()
    for s in (first, again):
        for loop in ("Z_i", "W_i"):
            s.apply(Parallel(loop))
    assert again.module is not first.module
    assert same_func(again.func, first.func)


# ----------------------------------------------------------------------------------------------- the ladder of recipes


def relu_of_sum() -> Func:
    b = FuncBuilder("relu_of_sum")
    x, y = b.param("X", (4, 9), F32), b.param("Y", (9,), F32)
    z = b.compute("Z", (4, 9), lambda i, j: x[i, j] + y[j])
    return b.finish(b.compute("W", (4, 9), lambda i, j: relu(z[i, j])))


def refusing(func: Func, target: Target, constants: frozenset[str], refine: default.Refine) -> Draft:
    Draft(single(func)).apply(Parallel("Z_i"))
    raise ScheduleError("not this one")


def test_after_a_refusal_the_next_recipe_starts_from_the_given_func(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    func = relu_of_sum()
    undisturbed = schedule_func(func, AVX2)
    monkeypatch.setattr(default, "LADDER", (refusing, *default.LADDER))
    with caplog.at_level(logging.DEBUG, default.__name__):
        s = schedule_func(func, AVX2)
    assert [r.getMessage() for r in caplog.records] == ["relu_of_sum: refusing is not for it: not this one"]
    assert s.trace == undisturbed.trace


def test_a_func_that_every_recipe_refuses_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    func = relu_of_sum()
    monkeypatch.setattr(default, "LADDER", (refusing, refusing))
    s = schedule_func(func, AVX2)
    assert s.func is func and s.trace == ()


@pytest.mark.parametrize("recipe", default.LADDER, ids=lambda r: r.__name__)
def test_every_rung_takes_steps(recipe: default.Recipe) -> None:
    assert recipe(relu_of_sum(), AVX2, frozenset(), default.as_stated).draft.trace


def test_the_trace_of_a_schedule_replays_to_it() -> None:
    func = matmul(13, 17, 7)
    s = schedule_func(func, AVX2)
    assert same_func(replay(single(func), s.trace).funcs[0], s.func)


@pytest.mark.parametrize("model", [mlp, resnet18, transformer_encoder], ids=lambda f: f.__name__)
def test_no_recipe_is_refused_on_the_example_networks(
    model: Callable[[], ModelProto], caplog: pytest.LogCaptureFixture
) -> None:
    state = run_passes(
        ProgramState(load_graph(model())), PassContext(AVX2, lambda error: False), until="layouts"
    )
    module = state.current
    constants = frozenset(c.buffer.name for c in module.constants)
    with caplog.at_level(logging.DEBUG, default.__name__):
        for func in {func_digest(f): f for f in module.funcs}.values():
            schedule_func(func, AVX2, constants)
    assert not [r.getMessage() for r in caplog.records if r.name == default.__name__]


def test_a_copy_with_edges_in_two_directions_is_scheduled(caplog: pytest.LogCaptureFixture) -> None:
    b = FuncBuilder("turned")
    x = b.param("X", (2, 4, 100, 60), DType.F32)
    func = b.finish(b.compute("Y", (2, 4, 60, 100), lambda n, c, i, j: x[n, c, j, i]))
    with caplog.at_level(logging.DEBUG, default.__name__):
        s = schedule_func(func, AVX2)
    assert not caplog.records
    assert any(n.kind is LoopKind.VECTORIZED for n in loops(s.func.body))


# -------------------------------------------------------------------------------------------------------- contractions


def matmul(
    rows: int,
    cols: int,
    k: int,
    *,
    batch: int = 0,
    flip_a: bool = False,
    flip_b: bool = False,
    name: str = "matmul",
) -> Func:
    b = FuncBuilder(name)
    lead = (batch,) if batch else ()
    x = b.param("A", (*lead, k, rows) if flip_a else (*lead, rows, k), F32)
    y = b.param("B", (*lead, cols, k) if flip_b else (*lead, k, cols), F32)

    def product(*i: Expr) -> tuple[Expr, Expr]:
        *n, r, c, z = i
        return x[(*n, z, r) if flip_a else (*n, r, z)], y[(*n, c, z) if flip_b else (*n, z, c)]

    axes = [*("n" * bool(batch)), "i", "j", "k"]
    return b.finish(b.reduce("C", (*lead, rows, cols), (k,), product, axes=axes))


@pytest.mark.parametrize("rows", SIZES)
def test_product_of_any_size(rows: int) -> None:
    for n, cols in enumerate(SIZES[rows % 2 :: 2]):
        k = SIZES[(2 * n + rows) % len(SIZES)]
        check(matmul(rows, cols, k), (AVX2, BASELINE)[n % 2], constants=["B"] if n % 3 else [])


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("flip_a", [False, True])
@pytest.mark.parametrize("flip_b", [False, True])
def test_stacked_products_of_transposed_operands(batch: int, flip_a: bool, flip_b: bool) -> None:
    for rows, cols, k in ((1, 9, 3), (7, 17, 8), (13, 5, 6), (6, 1, 2)):
        check(matmul(rows, cols, k, batch=batch, flip_a=flip_a, flip_b=flip_b))


def test_a_contraction_is_a_register_tile() -> None:
    """Its accumulators are registers through the reduction, without conditions inside."""
    func = check(matmul(13, 40, 9), constants=["B"])
    registers = [b for b in func.locals if b.scope is Scope.REGISTER]
    assert len(registers) == 1
    accumulating = [b for b in blocks(func.body) if b.is_reduction]
    assert accumulating and all(b.predicate is TRUE for b in accumulating)
    assert {b.body.buffer for b in accumulating if isinstance(b.body, Store)} == set(registers)
    kinds = {n.kind for n in loops(func.body)}
    assert {LoopKind.VECTORIZED, LoopKind.UNROLLED} <= kinds


def test_a_tile_keeps_to_the_registers_of_the_target() -> None:
    for target in (AVX2, BASELINE):
        func = check(matmul(24, 48, 5), target)
        lanes = target.lanes(4)
        widths = [n.extent for n in loops(func.body) if n.kind is LoopKind.VECTORIZED]
        assert max(widths) <= lanes


# ---------------------------------------------------------------------------------- what comes before and after a GEMM

Epilogue = Callable[
    [FuncBuilder, Callable[..., Expr], tuple[int, int]], tuple[tuple[int, ...], Callable[..., Expr]]
]


def with_epilogue(rows: int, cols: int, k: int, epilogue: Epilogue, *, prologue: bool = False) -> Func:
    b = FuncBuilder("epilogue")
    x, y = b.param("A", (rows, k), F32), b.param("B", (k, cols), F32)
    if prologue:  # data movement, which is read through
        given = b.param("T", (k, rows), F32)
        x = b.compute("X", (rows, k), lambda i, j: given[j, i])
    c = b.reduce("C", (rows, cols), (k,), lambda i, j, k: (x[i, k], y[k, j]))
    shape, body = epilogue(b, lambda i, j: c[i, j], (rows, cols))
    return b.finish(b.compute("D", shape, body, axes=[f"d{n}" for n in range(len(shape))]))


def bias(b: FuncBuilder, c: Callable[..., Expr], shape: tuple[int, int]):
    v = b.param("bias", shape[1:], F32)
    return shape, lambda i, j: relu(c(i, j) + v[j])


def per_row(b: FuncBuilder, c: Callable[..., Expr], shape: tuple[int, int]):
    v = b.param("scale", (shape[0], 1), F32)
    return shape, lambda i, j: c(i, j) * v[i, 0]


def residual(b: FuncBuilder, c: Callable[..., Expr], shape: tuple[int, int]):
    r = b.param("R", shape, F32)
    return shape, lambda i, j: relu(c(i, j)) + r[i, j]


def masked(b: FuncBuilder, c: Callable[..., Expr], shape: tuple[int, int]):
    m = b.param("M", shape[1:], DType.BOOL)
    return shape, lambda i, j: select(m[j], c(i, j), const(-1, F32))


def transposed(b: FuncBuilder, c: Callable[..., Expr], shape: tuple[int, int]):
    return (shape[1], shape[0]), lambda i, j: relu(c(j, i))


def flattened(b: FuncBuilder, c: Callable[..., Expr], shape: tuple[int, int]):
    return (math.prod(shape),), lambda i: relu(c(i // shape[1], i % shape[1]))


def sliced(b: FuncBuilder, c: Callable[..., Expr], shape: tuple[int, int]):
    return ((shape[0] + 1) // 2, shape[1]), lambda i, j: c(i * 2, j) + 1


def reversed_columns(b: FuncBuilder, c: Callable[..., Expr], shape: tuple[int, int]):
    return shape, lambda i, j: c(i, shape[1] - 1 - j) + 1


def repeated(b: FuncBuilder, c: Callable[..., Expr], shape: tuple[int, int]):
    return (2, *shape), lambda n, i, j: c(i, j) + 1


def shifted_sum(b: FuncBuilder, c: Callable[..., Expr], shape: tuple[int, int]):
    return (shape[0], shape[1] - 1), lambda i, j: c(i, j) + c(i, j + 1)


EPILOGUES = (
    bias,
    per_row,
    residual,
    masked,
    transposed,
    flattened,
    sliced,
    reversed_columns,
    repeated,
    shifted_sum,
)
FUSED = (bias, per_row, residual, masked, transposed, flattened)


@pytest.mark.parametrize("prologue", [False, True])
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=lambda e: e.__name__)
def test_epilogue_of_a_product(epilogue: Epilogue, prologue: bool) -> None:
    for rows, cols, k in ((5, 3, 4), (13, 17, 5), (7, 33, 2), (6, 16, 8)):
        check(with_epilogue(rows, cols, k, epilogue, prologue=prologue), constants=["B"] if k % 2 else [])


@pytest.mark.parametrize("epilogue", FUSED, ids=lambda e: e.__name__)
def test_epilogue_runs_on_registers(epilogue: Epilogue) -> None:
    """The result of the GEMM itself is never stored."""
    func = check(with_epilogue(13, 17, 5, epilogue))
    assert "C" in {b.name for b in func.locals if b.scope is Scope.REGISTER}


def split_in_heads(b: FuncBuilder, c: Callable[..., Expr], shape: tuple[int, int]):
    width = shape[1] // 4
    return (4, shape[0], width), lambda h, i, j: c(i, h * width + j) + 1


def test_a_product_split_in_heads_has_parallel_tiles_of_every_size() -> None:
    """The element tells which tile it is of, though its place is spread over three dimensions."""
    func = check(with_epilogue(37, 256, 16, split_in_heads), constants=["B"])
    tops = [n for n in loops(func.body) if any(b.name.startswith("C_p") for b in blocks(n))]
    assert {n.kind for n in tops if n in getattr(func.body, "stmts", (func.body,))} == {LoopKind.PARALLEL}
    assert "C" in {b.name for b in func.locals if b.scope is Scope.REGISTER}


# -------------------------------------------------------------------------------------------------- other reductions


def reduction(
    shape: tuple[int, ...], axes: tuple[int, ...], combine: str = "sum", *, after: bool = False
) -> Func:
    b = FuncBuilder("reduction")
    x = b.param("X", shape, F32)
    kept = [d for d in range(len(shape)) if d not in axes]

    def body(*i: Expr) -> Expr:
        place = dict(zip((*kept, *axes), i, strict=True))
        return x[tuple(place[d] for d in range(len(shape)))]

    names = [f"i{d}" for d in (*kept, *axes)]
    out = tuple(shape[d] for d in kept)
    s = b.reduce("S", out, tuple(shape[d] for d in axes), body, combine, axes=names)
    if after:  # subtracted from every element, as norms do
        s = b.compute(
            "Y",
            shape,
            lambda *i: x[i] - s[tuple(i[d] for d in kept)],
            axes=[f"y{d}" for d in range(len(shape))],
        )
    return b.finish(s)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("combine", ["sum", "max"])
def test_reduction_over_any_axes(combine: str, after: bool) -> None:
    cases = [((7,), (0,)), ((40,), (0,)), ((5, 33), (1,)), ((5, 33), (0,)), ((33, 5), (0,)), ((1, 9), (1,))]
    cases += [((2, 7, 9), axes) for axes in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))]
    cases += [((1, 1, 1), (0, 2)), ((3, 1, 17, 1), (2,)), ((1, 3, 1), (0, 2))]
    for n, (shape, axes) in enumerate(cases):
        func = reduction(shape, axes, combine, after=after)
        check(func, (AVX2, BASELINE)[n % 2])
        check(func, rung=1)


@pytest.mark.parametrize("columns", SIZES)
def test_softmax_like_chain_of_any_width(columns: int) -> None:
    b = FuncBuilder("chain")
    x = b.param("X", (3, columns), F32)
    m = b.reduce("M", (3,), (columns,), lambda i, k: x[i, k], "max")
    e = b.compute("E", (3, columns), lambda i, k: (x[i, k] - m[i]) * 2)
    s = b.reduce("S", (3,), (columns,), lambda i, k: e[i, k])
    check(b.finish(b.compute("Y", (3, columns), lambda i, k: e[i, k] + s[i])))


def depthwise_last(channels: int) -> Func:
    b = FuncBuilder("depthwise")
    x, w = b.param("X", (7, 6, channels), F32), b.param("W", (channels, 3, 2), F32)
    return b.finish(
        b.reduce("Y", (5, 5, channels), (3, 2), lambda h, v, c, r, s: (x[h + r, v + s, c], w[c, r, s]))
    )


def depthwise_first(channels: int) -> Func:
    b = FuncBuilder("depthwise")
    x, w = b.param("X", (channels, 7, 6), F32), b.param("W", (channels, 3, 2), F32)
    return b.finish(
        b.reduce("Y", (channels, 5, 5), (3, 2), lambda c, h, v, r, s: (x[c, h + r, v + s], w[c, r, s]))
    )


@pytest.mark.parametrize("channels", [1, 3, 4, 8, 13, 16])
def test_windows_keep_channels_apart(channels: int) -> None:
    """Depthwise convolution and pooling, channels last and channels first."""
    check(depthwise_last(channels), constants=["W"])
    check(depthwise_first(channels), constants=["W"])


# ---------------------------------------------------------------------------------------------------- no reduction


@pytest.mark.parametrize(
    "shape", [(), (1,), (7,), (8,), (2, 3, 4), (2, 5, 7), (3, 1, 5), (2, 3, 2, 5), (4, 33), (9, 8)]
)
def test_copies_of_any_shape_and_order(shape: tuple[int, ...]) -> None:
    rank = len(shape)
    for turn in range(max(rank, 1)):
        perm = [*range(turn, rank), *range(turn)]
        b = FuncBuilder("copy")
        x = b.param("X", shape, F32)
        out = tuple(shape[p] for p in perm)

        def body(*i: Expr, x=x, perm=perm, rank=rank) -> Expr:
            return x[tuple(i[perm.index(d)] for d in range(rank))] + 1

        check(b.finish(b.compute("Y", out, body, axes=[f"y{d}" for d in range(rank)])))


def test_independent_iterations_may_run_backwards() -> None:
    """Vectorized and parallel loops promise that their order does not matter."""
    for func in (matmul(13, 17, 7), with_epilogue(7, 9, 5, masked), reduction((5, 33), (1,), after=True)):
        scheduled = check(func)
        arrays = inputs_of(func)
        for w, g in zip(run_func(func, *arrays), run_func(backwards(scheduled), *arrays), strict=True):
            np.testing.assert_array_equal(g, w)


def test_a_small_product_does_not_wake_the_team() -> None:
    func = check(with_epilogue(13, 32, 5, split_in_heads))
    kinds = {
        n.kind for n in loops(func.body) if any(b.name.startswith("C_p") or b.name == "C" for b in blocks(n))
    }
    assert LoopKind.VECTORIZED in kinds
    assert LoopKind.PARALLEL not in kinds

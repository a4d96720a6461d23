"""Blocks that share a loop which depends on its earlier iterations: how they are built, scheduled and compiled."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from native import BEST, best_target, every_target, run_native

from tilewright.codegen.kernel import parts
from tilewright.codegen.kernel import steps as steps_of
from tilewright.codegen.legalize import legalize
from tilewright.families.recurrent.match import recurrent_nests
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Scope, as_index, const, maximum, select
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.schedule.steps.merge import Merge
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.split import Split
from tilewright.schedule.trace import replay
from tilewright.schedule.validate import check_valid
from tilewright.search.default import schedule_func, spaces
from tilewright.support.errors import ScheduleError
from tilewright.target.target import AVX2, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.compare import same_func
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func
from tilewright.tir.pipeline import lower_func
from tilewright.tir.stmt import For, LoopKind, Seq, Store, blocks, loops, walk_stmts
from tilewright.tir.verify import verify_func

F32 = DType.F32
Sound = Callable[[Func], Func]


def recurrence(groups: int, steps: int, rows: int, size: int) -> Func:
    """h[t] = h[t - 1] · W + 2 x[t] in each of `groups`; y is h backwards."""
    b = FuncBuilder("recurrence")
    x, w = b.param("X", (groups, steps, rows, size), F32), b.param("W", (groups, size, size), F32)
    twice = b.compute("twice", x.shape, lambda g, t, i, j: x[g, t, i, j] * 2)
    turned = b.compute("turned", w.shape, lambda g, k, j: w[g, j, k])
    h = b.ahead("h", x.shape, F32)
    with b.around("step", (groups, steps), ("g", "t")):

        def before(g: Expr, t: Expr, i: Expr, j: Expr) -> Expr:
            return select(t < 1, const(0, F32), h[g, t - 1, i, j])

        p = b.compute("p", x.shape, before)
        total = b.reduce("total", x.shape, (size,), lambda g, t, i, j, k: (p[g, t, i, k], turned[g, k, j]))
        s = b.compute("s", x.shape, lambda g, t, i, j: total[g, t, i, j] + twice[g, t, i, j])
        b.compute("h", x.shape, lambda g, t, i, j: s[g, t, i, j] - p[g, t, i, j], out=h)
    return b.finish(b.compute("y", x.shape, lambda g, t, i, j: h[g, steps - 1 - t, i, j]))


def reference(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    h = np.zeros_like(x)
    for t in range(x.shape[1]):
        before = h[:, t - 1] if t else np.zeros_like(h[:, 0])
        h[:, t] = before @ w.swapaxes(1, 2) + 2 * x[:, t] - before
    return h[:, ::-1]


def integers(func: Func) -> list[np.ndarray]:
    """Small ones: every order of a sum gives the same bits."""
    rng = np.random.default_rng(0)
    return [rng.integers(-1, 2, p.shape).astype(np.float32) for p in func.params if p not in func.outputs]


def test_blocks_inside_share_their_first_loops(sound: Sound) -> None:
    func = sound(recurrence(2, 3, 2, 4))
    assert isinstance(func.body, Seq)
    nest = func.body.stmts[2]
    assert [n.var.name for n in loops(nest)][:3] == ["step_g", "step_t", "p_i"]
    assert [b.name for b in blocks(nest)] == ["p", "total", "s", "h"]
    assert [b.name for b in func.locals] == ["twice", "turned", "p", "total", "s", "h"]
    arrays = integers(func)
    np.testing.assert_array_equal(run_func(func, *arrays)[0], reference(*arrays))


def test_a_block_for_other_extents_than_those_of_the_loops_around() -> None:
    b = FuncBuilder("f")
    with (
        pytest.raises(AssertionError, match="p is not made for the loops around"),
        b.around("s", (3,), ("t",)),
    ):
        b.compute("p", (4, 2), lambda t, i: const(0, F32))


def test_only_loops_with_a_dependence_are_carried() -> None:
    b = FuncBuilder("f")
    x = b.param("X", (3, 4), F32)
    with b.around("row", (3,), ("r",)):
        p = b.compute("p", (3, 4), lambda r, i: x[r, i] * 2)
        q = b.compute("q", (3, 4), lambda r, i: p[r, i] + 1)
    assert not recurrent_nests(b.finish(q))
    for steps in (3, 1):
        (nest,) = recurrent_nests(recurrence(2, steps, 1, 4))
        assert nest.var.name == "step_g"


@pytest.mark.parametrize(
    "extents",
    [(1, 3, 1, 8), (1, 2, 1, 1), (2, 3, 2, 20), (1, 3, 7, 17), (1, 4, 13, 50), (2, 1, 2, 24)],
    ids=str,
)
@best_target
def test_scheduled_and_native_as_written(extents: Sequence[int], target: Target) -> None:
    func = recurrence(*extents)
    s = schedule_func(func, target)
    verify_func(s.func)
    arrays = integers(func)
    want = reference(*arrays)
    np.testing.assert_array_equal(run_func(s.func, *arrays)[0], want)
    np.testing.assert_array_equal(run_native(s.func, arrays, target)[0], want)


def test_the_trace_replays() -> None:
    func = recurrence(2, 3, 3, 24)
    s = schedule_func(func, AVX2)
    assert same_func(replay(single(func), s.trace).funcs[0], s.func)


@pytest.mark.parametrize("every", range(2, 9))
def test_refused_attempts_leave_nothing_in_the_history(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    asked = 0
    apply = Schedule.apply

    def refusing(self: Schedule, step: Step) -> Step:
        nonlocal asked
        asked += 1
        if asked % every == 0:
            raise ScheduleError("not this time")
        return apply(self, step)

    monkeypatch.setattr(Schedule, "apply", refusing)
    func = recurrence(1, 3, 12, 64)
    s = schedule_func(func, AVX2)
    monkeypatch.undo()
    for n in range(len(s.trace) + 1):
        then = s.at(n)
        assert isinstance(then, Func) and same_func(then, replay(single(func), s.trace[:n]).funcs[0])
    while s.trace:
        s.undo()
    assert s.func is func


@pytest.mark.parametrize("steps", [1, 5])
def test_contraction_is_in_registers_and_its_weights_in_panels(steps: int) -> None:
    func = schedule_func(recurrence(1, steps, 1, 96), AVX2).func
    of = {b.name: b for b in func.locals}
    assert of["total"].scope is Scope.REGISTER
    assert len(of["turned"].shape) == 4  # group, panel, k, column
    assert recurrent_nests(func), "the loop over steps is still one"
    lanes = {n.extent for n in loops(func.body) if n.kind is LoopKind.VECTORIZED}
    assert lanes == {8, 16}  # of the product, and of what follows it


def test_every_block_in_the_loop_is_vectorized() -> None:
    func = schedule_func(recurrence(1, 5, 3, 40), AVX2).func
    for block in (b for n in recurrent_nests(func) for b in blocks(n)):
        around = [n for n in loops(func.body) if any(b is block for b in blocks(n))]
        assert around[0].kind is LoopKind.SERIAL
        assert any(n.kind is LoopKind.VECTORIZED for n in (*around, *loops(block))), block.name


def test_groups_without_a_dependence_are_divided_among_workers() -> None:
    func = schedule_func(recurrence(2, 20, 4, 64), AVX2).func
    (nest,) = recurrent_nests(func)
    assert nest.kind is LoopKind.PARALLEL and isinstance(nest.body, For) and nest.body.kind is LoopKind.SERIAL


def test_rows_without_a_dependence_are_divided_among_workers(sound: Sound) -> None:
    func = recurrence(1, 10, 24, 32)
    s = schedule_func(func, BEST)
    (part,) = [n for n in loops(sound(s.func).body) if n.var.name == "p_i_0"]
    assert part.kind is LoopKind.PARALLEL and part.extent == 4
    assert isinstance(part.body, For) and part.body.var.name == "step_t"
    arrays = integers(func)
    with np.errstate(all="ignore"):  # the state grows with every step
        np.testing.assert_allclose(run_native(s.func, arrays, BEST)[0], reference(*arrays), rtol=1e-4)


def gated(steps: int, rows: int, size: int) -> Func:
    """h[t + 1] = h[t] times the two halves of W, one plus twice the other; y is all of h."""
    b = FuncBuilder("gated")
    start, w = b.param("S", (rows, size), F32), b.param("W", (size, 2 * size), F32)
    h = b.ahead("h", (steps + 1, rows, size), F32)
    b.update("first", (rows, size), (), lambda i, j: Store(h, (as_index(0), i, j), start[i, j]))
    with b.around("step", (steps,), ("t",)):
        shape = (steps, rows, 2 * size)
        total = b.reduce("total", shape, (size,), lambda t, i, g, k: (h[t, i, k], w[k, g]))
        gates = b.compute("gates", shape, lambda t, i, g: total[t, i, g] + 1)

        def state(t: Expr, i: Expr, j: Expr) -> Store:
            return Store(h, (t + 1, i, j), gates[t, i, j] + 2 * gates[t, i, j + size])

        b.update("state", (steps, rows, size), (), state)
    return b.finish(b.compute("y", h.shape, lambda t, i, j: h[t, i, j]))


def gated_reference(start: np.ndarray, w: np.ndarray, steps: int) -> np.ndarray:
    h = [start]
    for _ in range(steps):
        one, two = np.split(h[-1] @ w + 1, 2, axis=1)
        h.append(one + 2 * two)
    return np.stack(h)


def test_columns_are_divided_among_workers_in_every_step(sound: Sound) -> None:
    """One row and no other loop: what a part needs of the blocks of a step is its own, and the weights it reads are the
    same in all steps.
    """
    func = gated(5, 1, 128)
    s = schedule_func(func, BEST)
    (part,) = [n for n in loops(sound(s.func).body) if n.var.name == "total_g_1"]
    assert part.kind is LoopKind.PARALLEL and {b.name for b in blocks(part)} >= {"gates", "state"}
    phases, _ = lower_func(s.func, legalize(BEST))
    (kernel,) = [p.func for p in phases if steps_of(p.func) > 1]
    assert (steps_of(kernel), parts(kernel)) == (5, 5 * part.extent) and part.extent > 1
    arrays = integers(func)
    want = gated_reference(*arrays, 5)
    np.testing.assert_array_equal(run_native(s.func, arrays)[0], run_func(s.func, *arrays)[0])
    np.testing.assert_allclose(run_native(s.func, arrays)[0], want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("extents", [(9, 1, 24), (9, 1, 100), (1, 1, 512), (5, 3, 128)], ids=str)
@every_target
def test_whatever_columns_there_are(extents: Sequence[int], target: Target) -> None:
    func = gated(*extents)
    s = schedule_func(func, target)
    arrays = integers(func)
    want = gated_reference(*arrays, extents[0])
    np.testing.assert_allclose(run_native(s.func, arrays, target)[0], want, atol=1e-5 * np.abs(want).max())


def with_cell(steps: int, size: int) -> Func:
    """h[t + 1] = h[t] times W, plus one and half of h[t], in a block that reads what it stores; y is all of h."""
    b = FuncBuilder("with_cell")
    start, w = b.param("S", (1, size), F32), b.param("W", (size, size), F32)
    h = b.ahead("h", (steps + 1, 1, size), F32)
    b.update("first", (1, size), (), lambda i, j: Store(h, (as_index(0), i, j), start[i, j]))
    with b.around("step", (steps,), ("t",)):
        shape = (steps, 1, size)
        total = b.reduce("total", shape, (size,), lambda t, i, j, k: (h[t, i, k], w[k, j]))
        gates = b.compute("gates", shape, lambda t, i, j: total[t, i, j] + 1)

        def state(t: Expr, i: Expr, j: Expr) -> Store:
            return Store(h, (t + 1, i, j), gates[t, i, j] + h[t, i, j] * 0.5)

        b.update("state", shape, (), state)
    return b.finish(b.compute("y", h.shape, lambda t, i, j: h[t, i, j]))


@pytest.mark.parametrize("size", [3, 16, 24, 128, 130])
@best_target
def test_a_cell_that_reads_its_last_value_is_in_vectors(size: int, target: Target, sound: Sound) -> None:
    func = with_cell(4, size)
    s = schedule_func(func, target)
    for block in (b for n in recurrent_nests(sound(s.func)) for b in blocks(n) if b.name.startswith("state")):
        around = [n for n in loops(s.func.body) if any(b is block for b in blocks(n))]
        assert around[-1].kind is LoopKind.VECTORIZED and around[-1].extent <= target.lanes(4)
    arrays = integers(func)
    h = [arrays[0]]
    for _ in range(4):
        h.append(h[-1] @ arrays[1] + 1 + h[-1] / 2)
    want = np.stack(h)
    got = run_native(s.func, arrays, target)[0]
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("target", [AVX2, BEST], ids=["avx2", "best"])
def test_one_row_has_many_points_and_enough_independent_sums(target: Target) -> None:
    """Two vectors of sums wait for each other's latency; weights come from a cache as quickly as four can take them."""
    (space,) = spaces(gated(64, 1, 256), target)
    points, _ = space.ranked()
    assert len(points) >= 100
    best = space.decisions(points[0])
    assert best["vectors"] >= 4 and best["rows"] == 1


def test_columns_that_need_each_other_are_not_divided() -> None:
    """In `recurrence` a copy of the whole state comes first in each step: it would be a step of its own."""
    func = schedule_func(recurrence(1, 3, 1, 256), AVX2).func
    (nest,) = recurrent_nests(func)
    assert all(n.kind is not LoopKind.PARALLEL for n in loops(nest))


def test_a_loop_moves_past_one_that_depends_on_earlier_iterations() -> None:
    func = recurrence(1, 4, 6, 3)
    parts = ("p_i", "total_i", "s_i", "h_i")
    split = [Split(n, (None, 2)) for n in parts]
    merge = Merge(tuple(n.names[0] for n in split))
    after = replay(single(func), (*split, merge, Reorder(("p_i_0", "step_t")))).funcs[0]
    verify_func(after)
    check_valid(after)
    arrays = integers(func)
    np.testing.assert_array_equal(run_func(after, *arrays)[0], reference(*arrays))


def test_loops_that_share_elements_keep_their_order() -> None:
    """Each iteration of v fills `last` for itself, so it could run at any time; but not in the middle of t."""
    b = FuncBuilder("f")
    x = b.param("X", (3, 4), F32)
    last = b.ahead("last", (4,), F32)
    with b.around("s", (3, 4), ("v", "t")):
        b.update("last", (3, 4), (), lambda v, t: Store(last, (t,), x[v, t]))
        y = b.compute("y", (3, 4), lambda v, t: last[t] + last[maximum(t - 1, 0)])
    with pytest.raises(ScheduleError, match="last"):
        Reorder(("s_t", "s_v")).apply(single(b.finish(y)))


def test_what_is_before_the_loop_is_scheduled_too() -> None:
    func = schedule_func(recurrence(1, 6, 3, 40), AVX2).func
    (twice,) = [
        n for n in walk_stmts(func.body) if isinstance(n, For) and _stores(n, "twice") and not _stores(n, "h")
    ][:1]
    assert any(n.kind is LoopKind.VECTORIZED for n in loops(twice))


def _stores(loop: For, buffer: str) -> bool:
    return any(isinstance(n, Store) and n.buffer.name == buffer for n in walk_stmts(loop))


def test_no_other_family_is_for_it() -> None:
    """Their rules would look for one reduction and what is around it."""
    assert [s.family for s in spaces(recurrence(1, 3, 2, 8), AVX2)] == ["recurrent"]


def test_rows_or_columns_are_divided_in_any_way_that_is_possible() -> None:
    (rows,), (columns,) = spaces(recurrence(1, 10, 24, 32), BEST), spaces(gated(5, 1, 128), BEST)
    of = {k.name: k.choices for k in rows.knobs}
    assert (of["row_part"], of["column_part"]) == ((0, 1, 2, 3, 4, 6, 8, 12), (0,))
    of = {k.name: k.choices for k in columns.knobs}
    assert (of["row_part"], of["column_part"], of["rows"]) == ((0,), (0, 64), (1,))
    (neither,) = spaces(recurrence(1, 3, 1, 256), BEST)  # a step begins with a copy of the whole state
    assert {k.name: k.choices for k in neither.knobs}["column_part"] == (0,)


@pytest.mark.parametrize("func", [recurrence(1, 10, 24, 32), gated(5, 1, 128)], ids=lambda f: f.name)
def test_every_division_and_every_tile_gives_the_same(func: Func, sound: Sound) -> None:
    (space,) = spaces(func, BEST)
    points, costs = space.ranked()
    assert len(points) == len(space.points()) and (np.diff(costs) >= 0).all()
    arrays = integers(func)
    want = run_func(func, *arrays)[0]
    seen: set[tuple[str, int]] = set()
    for point in points:
        decisions = space.decisions(point)
        if seen >= decisions.items():
            continue  # the others of this point were tried with other neighbours
        seen |= decisions.items()
        s = space.build(decisions)
        parallel = max((n.extent for n in loops(s.func.body) if n.kind is LoopKind.PARALLEL), default=1)
        assert parallel > 1 or not decisions["row_part"] + decisions["column_part"]
        got = run_native(sound(s.func), arrays, BEST)[0]
        np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max(), err_msg=str(decisions))


def test_dividing_rows_costs_one_core_the_weights_again() -> None:
    """16 rows of 512 columns: weights of a MiB, which are read anew by every part."""
    (space,) = spaces(recurrence(1, 8, 16, 512), BEST)
    points = np.array([(part, 0, 2, 4, 64, 0) for part in (8, 4, 2)], np.int64)
    costs = space.cost(points)
    assert costs[0] < costs[1] < costs[2]

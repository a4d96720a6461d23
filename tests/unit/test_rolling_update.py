"""Keys taken up in chunks: what `RollingUpdate` makes of attention, and what that means."""

import numpy as np
import pytest
from graph_cases import f32
from native import BEST, run_native
from online_programs import chain
from schedule_programs import check_native
from test_attention import Mask, attention, exactly, feeds, func_of, given, hidden, padded, scaled, space_of

from tilewright.families.chain.space import ChainSpace
from tilewright.families.space import KnobValues
from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph, Value
from tilewright.ir.expr import Scope
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.logic import Where
from tilewright.ops.core.softmax import Softmax
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps.rolling_update import RollingUpdate
from tilewright.schedule.trace import replay
from tilewright.support.arrays import Array
from tilewright.tir.compare import same_func
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func
from tilewright.tir.pipeline import lower_func as pipeline
from tilewright.tir.printer import print_expr
from tilewright.tir.stmt import Alloc, For, If, blocks, walk_stmts
from tilewright.tir.verify import verify_func

# ------------------------------------------------------------------------------------------------------------- the step


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_blocks_of_keys(size: int) -> None:
    func = check_native(chain(), RollingUpdate("Y", size))
    loop = func.loop("Y_chunks")
    assert loop is not None and loop.extent == 10 // size
    inside = [b.name for b in blocks(loop)]
    assert inside == ["S", "M_part", "M", "M_used", "M_change", "P", "T_part", "T", "Y_part", "Y"]
    rest = [b.name for b in blocks(func.body) if b.name.endswith("_rest")]
    assert rest == ([f"{n}_rest" for n in inside] if 10 % size else [])


def test_what_is_before_and_after_stays() -> None:
    func = check_native(chain(low=-1e30), RollingUpdate("Y", 4))
    names = [b.name for b in blocks(func.body)]
    assert names[0] == "M_start" and names[-1] == "Z" and names[1:3] == ["S", "X"]


NAN, INF = np.nan, np.inf
SCORES: dict[str, list[float]] = {
    "rising": [20.0 * n - 100 for n in range(10)],
    "nan": [1, 2, 3, NAN, 5, 6, 7, 8, 9, 1],
    "infinite": [1, 2, 3, 4, 5, 6, 7, INF, 9, 1],
    "hidden": [-INF] * 10,
    "hidden at first": [-INF] * 6 + [1, 2, 3, -INF],
    "hidden at last": [3, 2, -INF, 1] + [-INF] * 6,
    "hidden, then nan": [-INF] * 9 + [NAN],
}


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES)
def test_nan_and_infinity_are_where_they_were(scores: list[float], size: int) -> None:
    func = chain(2, 10, 1)
    online = replay(single(func), (RollingUpdate("Y", size),)).funcs[0]
    arrays = (
        np.ones((2, 1), np.float32),
        np.array(scores, np.float32)[:, None],
        np.eye(10, dtype=np.float32)[:, 2:3],
    )
    with np.errstate(all="ignore"):
        (want,), (got,) = run_func(func, *arrays), run_func(online, *arrays)
        (native,) = run_native(online, arrays)
    for made in (got, native):
        np.testing.assert_array_equal(np.isnan(made), np.isnan(want))
        np.testing.assert_allclose(made, want, rtol=1e-6, atol=1e-30)


def test_what_others_do_not_see_is_skipped() -> None:
    func = check_native(chain(3, 10, low=-np.inf), RollingUpdate("Y", 2, skip=True))
    assert "if Y_chunks < 2:" in str(func)


def test_rows_of_a_nest_skip_what_they_do_not_see() -> None:
    s = Schedule(chain(8, 8, low=-1e30))
    rows, _ = s.split("Z_i", (None, 2))
    for name in ("Y", "T", "P", "M", "X", "S"):
        s.compute_at(name, rows)
    s.rolling_update("Y", 2, skip=True)
    (seen,) = [n.cond for n in walk_stmts(s.func.body) if isinstance(n, If)]
    assert print_expr(seen) == "Y_chunks - Z_i_0 < 1"
    check_native(chain(8, 8, low=-1e30), *s.trace)


# ----------------------------------------------------------------------------------------------------------- the recipe


def online(space: ChainSpace, *, block: int = 0, keys: int = 0) -> KnobValues:
    """The cheapest point with blocks of keys."""
    for p in space.ranked()[0]:
        if p[1] and block in (0, p[0]) and keys in (0, p[1]):
            return space.decisions(p)
    raise AssertionError("there is no such point")


def check_online(graph: Graph, *, block: int = 0, keys: int = 0, **special: Array) -> Func:
    """Native code by blocks of keys, held to 1e-6 of the largest element."""
    func = func_of(graph)
    space = space_of(func, BEST)
    scheduled = space.build(online(space, block=block, keys=keys)).module.funcs[0]
    verify_func(scheduled)
    arrays = feeds(graph) | special
    with np.errstate(all="ignore"):
        want = exactly(graph, arrays)
    (got,) = run_native(scheduled, given(func, graph, arrays))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    most = np.abs(want[np.isfinite(want)]).max(initial=1e-30)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * most)
    return scheduled


@pytest.mark.parametrize(
    ("rows", "keys", "block"),
    [(24, 256, 12), (37, 256, 13), (24, 264, 24), (37, 275, 19)],
    ids=["even", "rows left", "keys left", "both left"],
)
def test_ragged_blocks(rows: int, keys: int, block: int) -> None:
    check_online(attention((2, rows, 8), (2, keys, 8), (2, keys, 12)), block=block)


@pytest.mark.parametrize("mask", [padded, hidden, scaled])
def test_masks(mask: Mask) -> None:
    shape = (2, 2, 264, 8)
    check_online(attention((2, 2, 20, 8), shape, shape, mask))


def first_keys_hidden(b: GraphBuilder, scores: Value) -> Value:
    """Whole blocks of keys are hidden before the first that is not."""
    seen = b.constant("seen", np.arange(scores.shape[-1]) > 150)
    return b.apply(Where(), seen, scores, b.constant("low", np.array(-np.inf, np.float32)))


def test_blocks_that_are_hidden() -> None:
    check_online(attention((2, 20, 8), (2, 300, 8), (2, 300, 8), first_keys_hidden))


def test_only_blocks_of_scores_are_there() -> None:
    func = func_of(attention((8, 128, 16), (8, 512, 16), (8, 512, 16)))
    space = space_of(func)
    decisions = online(space, block=64, keys=128)
    s = space.build(decisions)
    assert same_func(replay(single(func), s.trace).funcs[0], s.module.funcs[0])
    kernel = pipeline(s.module.funcs[0])[0][-1].func
    kept = [
        n.buffer
        for n in walk_stmts(kernel.body)
        if isinstance(n, Alloc) and n.buffer.scope is not Scope.REGISTER
    ]
    assert kept and max(b.size for b in kept) == 64 * 128
    assert isinstance(kernel.body, For)


@pytest.mark.parametrize(("tokens", "is_online"), [(128, False), (512, False), (4096, True), (8192, True)])
def test_long_rows_are_taken_up_in_blocks(tokens: int, is_online: bool) -> None:
    shape = (8, tokens, 64)
    best = space_of(func_of(attention(shape, shape, shape))).ranked()[0][0]
    assert bool(best[1]) == is_online


def test_weights_that_are_changed_follow_the_sum_too() -> None:
    b = GraphBuilder()
    q, k, v = b.input("q", f32(16, 8)), b.input("k", f32(8, 256)), b.input("v", f32(256, 8))
    weights = b.apply(Softmax((1,)), b.apply(MatMul(), q, k))
    chosen, zero = b.constant("kept", np.arange(256) % 3 > 0), b.constant("zero", np.zeros(1, np.float32))
    kept = b.apply(Where(), chosen, weights, zero)
    check_online(b.finish(b.apply(MatMul(), kept, v)))

"""What costs are made of: the terms of every family add up to its cost, and learned models know all names."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from tilewright.cost.parallel import even_terms, evenly, ranked_seconds, ranked_terms
from tilewright.cost.terms import (
    TERMS,
    Amounts,
    Ledger,
    TermName,
    added,
    chosen_terms,
    only,
    scaled_to,
    summed,
)
from tilewright.families.space import Points, Space
from tilewright.graph.build import GraphBuilder
from tilewright.graph.passes import prepare
from tilewright.graph.passes.lower import lower_graph
from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, UnaryOp, as_index, cast, const, maximum, minimum, select, unary
from tilewright.learned.features import FAMILY_NAMES, KNOB_NAMES
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.conv import Conv
from tilewright.ops.core.movement import Transpose
from tilewright.ops.core.pool import MaxPool
from tilewright.ops.core.softmax import Softmax
from tilewright.ops.core.window import Window
from tilewright.ops.opdef import TensorType
from tilewright.search.default import spaces
from tilewright.search.grain import GrainSpace
from tilewright.support.sizes import Dim, sym_int
from tilewright.target.machine import SHIPPED
from tilewright.target.target import AVX2, AVX512
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.stmt import Store

F32 = DType.F32
TARGETS = {"one core": AVX2, "a team": AVX512.for_threads(4)}
LIST = "src/tilewright/learned/features.py"


# --------------------------------------------------------------------------------------------------------------- Funcs


def gemm(rows: int, cols: int, k: int) -> Func:
    b = FuncBuilder("gemm")
    x, y = b.param("A", (rows, k), F32), b.param("B", (k, cols), F32)
    c = b.reduce("C", (rows, cols), (k,), lambda i, j, n: (x[i, n], y[n, j]))
    return b.finish(b.compute("Y", (rows, cols), lambda i, j: maximum(c[i, j], 0)))


def bytes_gemm() -> Func:
    b = FuncBuilder("bytes")
    x, y = b.param("A", (12, 16), DType.U8), b.param("B", (16, 24), DType.I8)
    wide = DType.I32
    return b.finish(b.reduce("C", (12, 24), (16,), lambda i, j, k: cast(wide, x[i, k]) * cast(wide, y[k, j])))


def convolution(channels: int, size: int) -> Func:
    """As a model states it: channels first, a group a channel of results."""
    b = FuncBuilder("convolution")
    x, w = b.param("X", (channels, size, size), F32), b.param("W", (16, channels, 3, 3), F32)
    return b.finish(
        b.reduce(
            "Y",
            (16, size - 2, size - 2),
            (channels, 3, 3),
            lambda f, h, v, c, r, s: (x[c, h + r, v + s], w[f, c, r, s]),
        )
    )


def winograd(size: int, algorithm: int) -> Func:
    types = [TensorType(F32, s) for s in ((1, 16, size, size), (32, 16, 3, 3), (32,))]
    op = Conv.sample(*(np.zeros(t.shape, np.float32) for t in types), pads=[1, 1, 1, 1]).op
    b = FuncBuilder("layer")
    params = [b.param(n, t.shape, t.dtype) for n, t in zip("xwc", types, strict=True)]
    return b.finish(*op.alternatives(types)[algorithm].compute(b, params, "conv"))


def depthwise(channels: int) -> Func:
    b = FuncBuilder("depthwise")
    x, w = b.param("X", (20, 20, channels), F32), b.param("W", (3, 3, channels), F32)
    return b.finish(
        b.reduce("Y", (18, 18, channels), (3, 3), lambda h, v, c, r, s: (x[h + r, v + s, c], w[r, s, c]))
    )


def chain_of_windows(channels: int, outputs: int = 0) -> Func:
    """relu(X · U), padded windows of it, and a projection if there are outputs."""
    b = FuncBuilder("chain")
    x, u = b.param("X", (1, 12, 12, 8), F32), b.param("U", (8, channels), F32)
    v = b.param("V", (channels, 3, 3), F32)
    made = (1, 12, 12, channels)
    acc = b.reduce("acc", made, (8,), lambda n, h, w, c, i: (x[n, h, w, i], u[i, c]))
    t = b.compute("t", made, lambda n, h, w, c: maximum(acc[n, h, w, c], const(0, F32)))

    def padded(n: Expr, h: Expr, w: Expr, c: Expr) -> Expr:
        low = as_index(1)
        inside = logical_and(low <= h, h < 13, low <= w, w < 13)
        return select(inside, t[n, h - 1, w - 1, c], const(0, F32))

    p = b.compute("p", (1, 14, 14, channels), padded)
    total: Buffer = b.reduce(
        "total", made, (3, 3), lambda n, h, w, c, r, s: (p[n, h + r, w + s, c], v[c, r, s])
    )
    if not outputs:
        return b.finish(b.compute("Y", made, lambda n, h, w, c: maximum(total[n, h, w, c], const(0, F32))))
    z = b.param("Z", (channels, outputs), F32)
    return b.finish(
        b.reduce("Y", (1, 12, 12, outputs), (channels,), lambda n, h, w, o, c: (total[n, h, w, c], z[c, o]))
    )


def pool() -> Func:
    b = FuncBuilder("pooled")
    x = b.param("x", (1, 16, 20, 20), F32)
    (y,) = MaxPool(Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))).compute(b, [x], "y")
    return b.finish(y)


def softmax(rows: int, columns: int) -> Func:
    b = FuncBuilder("softmax")
    x = b.param("X", (rows, columns), F32)
    most = b.reduce("most", (rows,), (columns,), lambda i, k: x[i, k], "max")
    e = b.compute("e", (rows, columns), lambda i, k: unary(UnaryOp.EXP, x[i, k] - most[i]))
    total = b.reduce("total", (rows,), (columns,), lambda i, k: e[i, k])
    return b.finish(b.compute("Y", (rows, columns), lambda i, k: e[i, k] / total[i]))


def sum_over_rows(rows: int, columns: int) -> Func:
    b = FuncBuilder("sum")
    x = b.param("X", (rows, columns), F32)
    return b.finish(b.reduce("Y", (columns,), (rows,), lambda j, i: x[i, j]))


def transposed() -> Func:
    b = FuncBuilder("transposed")
    x, z = b.param("X", (256, 512), F32), b.param("Z", (512, 256), F32)
    return b.finish(b.compute("Y", (512, 256), lambda i, j: x[j, i] + z[i, j]))


def attention(heads: int, rows: int, keys: int, width: int) -> Func:
    b = GraphBuilder()
    shapes = (heads, rows, width), (heads, keys, width), (heads, keys, width)
    q, k, v = (b.input(n, TensorType(F32, s)) for n, s in zip("qkv", shapes, strict=True))
    scores = b.apply(MatMul(), q, b.apply(Transpose((0, 2, 1)), k))
    graph = b.finish(b.apply(MatMul(), b.apply(Softmax((2,)), scores), v))
    (func,) = lower_graph(prepare(graph)).funcs
    return func


def recurrence(rows: int, size: int) -> Func:
    b = FuncBuilder("recurrence")
    x, w = b.param("X", (1, 6, rows, size), F32), b.param("W", (1, size, size), F32)
    h = b.ahead("h", x.shape, F32)
    with b.around("step", (1, 6), ("g", "t")):

        def before(g: Expr, t: Expr, i: Expr, j: Expr) -> Expr:
            return select(t < 1, const(0, F32), h[g, t - 1, i, j])

        p = b.compute("p", x.shape, before)
        total = b.reduce("total", x.shape, (size,), lambda g, t, i, j, k: (p[g, t, i, k], w[g, k, j]))
        b.compute("h", x.shape, lambda g, t, i, j: total[g, t, i, j] + x[g, t, i, j], out=h)
    return b.finish(b.compute("y", x.shape, lambda g, t, i, j: h[g, 5 - t, i, j]))


def scatter() -> Func:
    b = FuncBuilder("scatter")
    x, u = b.param("x", (6, 16), F32), b.param("u", (5, 16), F32)
    at, y = b.param("at", (5,), DType.I64), b.ahead("y", (6, 16), F32)
    b.compute("y_copy", (6, 16), lambda i, j: x[i, j], out=y)
    b.update("y", (5, 16), (0,), lambda p, j: Store(y, (minimum(maximum(at[p], 0), 5), j), u[p, j]))
    return b.finish(y)


class Case(NamedTuple):
    make: Callable[[], Func]
    constants: tuple[str, ...] = ()


CASES = {
    "gemm": Case(lambda: gemm(48, 50, 9)),
    "large gemm": Case(lambda: gemm(320, 640, 768), ("B",)),
    "one row": Case(lambda: gemm(1, 1024, 512), ("B",)),
    "open gemm": Case(lambda: gemm(sym_int(Dim("m", 1, 64)), 32, 16), ("B",)),
    "gemm of bytes": Case(bytes_gemm),
    "convolution": Case(lambda: convolution(5, 9), ("W",)),
    "winograd": Case(lambda: winograd(16, 0), ("w", "c")),
    "winograd in blocks": Case(lambda: winograd(32, -1), ("w", "c")),
    "depthwise": Case(lambda: depthwise(32), ("W",)),
    "bands": Case(lambda: chain_of_windows(32), ("U", "V")),
    "projected bands": Case(lambda: chain_of_windows(32, 16), ("U", "V", "Z")),
    "pool": Case(pool),
    "softmax": Case(lambda: softmax(24, 100)),
    "long softmax": Case(lambda: softmax(1, 100_000)),
    "sum over rows": Case(lambda: sum_over_rows(1024, 64)),
    "transposed": Case(transposed),
    "attention": Case(lambda: attention(4, 64, 384, 32)),
    "decoding": Case(lambda: attention(2, 8, 8192, 128)),
    "few results": Case(lambda: gemm(4, 16, 16384), ("B",)),
    "recurrence": Case(lambda: recurrence(1, 64), ("W",)),
    "recurrence of rows": Case(lambda: recurrence(16, 64), ("W",)),
    "scatter": Case(scatter),
}


@cache
def spaces_of(case: str, target: str) -> tuple[Space, ...]:
    func, constants = CASES[case].make(), frozenset(CASES[case].constants)
    return spaces(func, TARGETS[target], constants)


def every_space() -> list[Space]:
    return [s for case in CASES for target in TARGETS for s in spaces_of(case, target)]


# -------------------------------------------------------------------------------------------------------------- spaces


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_terms_add_up_to_the_cost(case: str, target: str) -> None:
    for own in spaces_of(case, target):
        check_terms(own, own.points())
        grained = GrainSpace(own)
        check_terms(grained, grained.points()[::17])


def check_terms(space: Space, points: Points) -> None:
    costs, terms = space.cost(points), space.terms(points)
    assert terms, f"{space.family} does not tell"
    assert set(terms) <= set(TERMS)
    possible = np.isfinite(costs)
    for name, seconds in terms.items():
        assert seconds.shape == costs.shape, f"{name} of {space.family}"
        assert (seconds[possible] >= 0).all(), f"{name} of {space.family}"
    total = np.sum([*terms.values()], axis=0)
    np.testing.assert_allclose(total[possible], costs[possible], rtol=1e-9, err_msg=space.family)


@pytest.mark.parametrize("case", CASES)
def test_terms_of_some_points_are_those_that_they_have_among_all(case: str) -> None:
    for space in spaces_of(case, "one core"):
        points, _ = space.ranked()
        some = points[:: max(len(points) // 7, 1)]
        among, alone = space.terms(points), space.terms(some)
        for name in TERMS:
            none = np.zeros(len(points))
            want = among.get(name, none)[:: max(len(points) // 7, 1)]
            np.testing.assert_allclose(alone.get(name, none[: len(some)]), want, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("case", CASES)
def test_mixtures_of_points_cost_something_or_are_impossible(case: str) -> None:
    """A search changes knobs one by one, and mixes those of two points: not all that it tries are points."""
    rng = np.random.default_rng(0)
    for space in (s for s in spaces_of(case, "one core") if s.knobs):
        mixed = np.stack([rng.choice(k.choices, 64) for k in space.knobs], axis=1)
        assert (space.cost(mixed) > 0).all(), space.family


def test_all_families_tell() -> None:
    assert {s.family for s in every_space()} == set(FAMILY_NAMES)


def best_terms(case: str, family: str, target: str = "one core") -> dict[TermName, float]:
    """Shares of the cheapest point."""
    (space,) = (s for s in spaces_of(case, target) if s.family == family)
    points, costs = space.ranked()
    return {name: t / float(costs[0]) for name, t in only(space.terms(points[:1])).items()}


def test_terms_say_what_a_kernel_waits_for() -> None:
    assert best_terms("large gemm", "gemm")["arithmetic"] > 0.9
    assert best_terms("one row", "gemm")["far"] > 0.9, "weights come from memory"
    assert best_terms("winograd in blocks", "winograd")["copies"] > 0.02, "images are transformed"
    assert best_terms("attention", "chain")["beside"] > 0.05, "softmax is between the contractions"
    assert best_terms("bands", "bands", "a team")["team"] > best_terms("bands", "bands")["team"]


def test_packing_is_a_term() -> None:
    (space,) = (s for s in spaces_of("gemm", "one core") if s.family == "gemm")
    points = space.points()
    pack = [k.name for k in space.knobs].index("pack_b")
    copies, finite = space.terms(points)["copies"], np.isfinite(space.cost(points))
    assert (copies[finite & (points[:, pack] > 0)] > 0).all()


# --------------------------------------------------------------------------------------------------------------- names


def test_learned_models_know_all_families() -> None:
    new = sorted({s.family for s in every_space()} - set(FAMILY_NAMES))
    assert not new, f"add {', '.join(new)} to FAMILY_NAMES in {LIST}"


def test_learned_models_know_all_knobs() -> None:
    offered = {k.name for own in every_space() for k in GrainSpace(own).knobs}
    new = sorted(offered - set(KNOB_NAMES))
    assert not new, f"add {', '.join(new)} to KNOB_NAMES in {LIST}"
    reached = offered | {"group_3"}  # of intrinsics of other packages, which may have four roles
    gone = sorted(set(KNOB_NAMES) - reached)
    assert not gone, f"no case here has {', '.join(gone)}: add one, or remove them from KNOB_NAMES in {LIST}"


# --------------------------------------------------------------------------------------------------------------- terms


def test_a_ledger_keeps_what_it_is_told() -> None:
    told = Ledger()
    told.add("arithmetic", 1.0)
    told.add("arithmetic", np.array([1.0, 2.0]))
    told.add_moved(np.array([3.0, 4.0]), np.array([True, False]))
    told.add_all({"copies": 2.0}, 3.0)
    found = {name: np.broadcast_to(t, (2,)).tolist() for name, t in told.terms.items()}
    assert found == {"arithmetic": [2.0, 3.0], "near": [0.0, 4.0], "far": [3.0, 0.0], "copies": [6.0, 6.0]}


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_what_a_team_adds_is_a_term(threads: int) -> None:
    m = SHIPPED.for_threads(threads)
    alone: Amounts = {"arithmetic": np.array([1e-3, 2e-3, 1e-9]), "near": np.array([5e-4, 0.0, 1e-9])}
    parts = np.array([1.0, 64.0, 5.0])
    terms = ranked_terms(alone, parts, m)
    np.testing.assert_allclose(summed(terms), ranked_seconds(np.asarray(summed(alone)), parts, m), rtol=1e-12)
    assert all((np.asarray(t) >= 0).all() for t in terms.values())
    whole: Amounts = {"beside": 2e-3, "far": 1e-3}
    assert summed(even_terms(whole, m)) == pytest.approx(evenly(3e-3, m))


def test_terms_are_scaled_to_a_sum() -> None:
    terms: Amounts = {"arithmetic": np.array([1.0, 1.0, 0.0, 1.0]), "far": np.array([3.0, 0.0, 0.0, 1.0])}
    found = scaled_to(terms, np.array([8.0, 0.5, 2.0, np.inf]))
    assert np.asarray(found["arithmetic"]).tolist() == [2.0, 0.5, 0.0, 1.0]
    assert np.asarray(found["team"]).tolist() == [0.0, 0.0, 2.0, np.inf], "of nothing, and what is impossible"
    assert np.asarray(summed(found)).tolist() == [8.0, 0.5, 2.0, np.inf]


def test_terms_are_put_together_by_name() -> None:
    assert added({"near": 1.0, "far": 2.0}, {"far": 3.0}) == {"near": 1.0, "far": 5.0}
    found = chosen_terms(np.array([True, False]), {"near": 1.0}, {"far": np.array([2.0, 3.0])})
    assert {n: np.asarray(t).tolist() for n, t in found.items()} == {"near": [1.0, 0.0], "far": [0.0, 3.0]}

"""Random chains of reductions, in chunks by `RollingUpdate` and as they are: the same numbers, NaN where it was."""

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from native import run_native

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, UnaryOp, const, equal, select, unary
from tilewright.schedule.steps.rolling_update import RollingUpdate
from tilewright.schedule.trace import replay
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func
from tilewright.tir.verify import verify_func

F32 = DType.F32
LOW = const(-np.inf, F32)
SCORES = ("scale", "bias", "alibi", "soft cap", "causal", "window", "padding")
ENDS = ("values", "weighted", "normalised", "squares", "dropped", "log")


def changed(kind: str, x: Expr, i: Expr, j: Expr, bias: Buffer) -> Expr:
    """A modification of scores, as models have them."""
    match kind:
        case "scale":
            return x * const(0.25, F32)
        case "bias":
            return x + bias[j]
        case "alibi":
            return x + bias[i] * bias[j]
        case "soft cap":
            return const(5, F32) * unary(UnaryOp.TANH, x / const(5, F32))
        case "causal":
            return select(j <= i + 1, x, LOW)
        case "window":
            return select(i <= j + 2, x, LOW)
        case _:
            return select(bias[j] < 1.0, x, LOW)


def attention_like(rows: int, keys: int, changes: list[str], ends: list[str], *, contracted: bool) -> Func:
    """Scores, their maximum, powers, and what is folded of these; the last is a contraction with values."""
    b = FuncBuilder("chain")
    q, k = b.param("Q", (rows, 3), F32), b.param("K", (keys, 3), F32)
    v, bias = b.param("V", (keys, 2), F32), b.param("B", (keys + rows,), F32)
    if contracted:
        x = b.reduce("S", (rows, keys), (3,), lambda i, j, c: (q[i, c], k[j, c]))
    else:
        x = b.compute("S", (rows, keys), lambda i, j: q[i, 0] * k[j, 1])
    for n, kind in enumerate(changes):
        x = b.compute(f"X{n}", (rows, keys), lambda i, j, x=x, kind=kind: changed(kind, x[i, j], i, j, bias))
    m = b.reduce("M", (rows,), (keys,), lambda i, j: x[i, j], "max")
    p = b.compute("P", (rows, keys), lambda i, j: unary(UnaryOp.EXP_NONPOSITIVE, x[i, j] - m[i]))
    t = b.reduce("T", (rows,), (keys,), lambda i, j: p[i, j])
    outs: list[Buffer] = []
    if "squares" in ends:
        outs.append(b.reduce("T2", (rows,), (keys,), lambda i, j: (p[i, j], p[i, j])))
    if "weighted" in ends:
        outs.append(b.reduce("W", (rows,), (keys,), lambda i, j: p[i, j] * bias[j]))
    if "log" in ends:
        outs.append(b.compute("L", (rows,), lambda i: unary(UnaryOp.LOG, t[i]) + m[i]))
    if "normalised" in ends:
        p = b.compute("N", (rows, keys), lambda i, j, p=p: p[i, j] / t[i])
    if "dropped" in ends:
        p = b.compute("D", (rows, keys), lambda i, j, p=p: select(bias[j] < 0.5, p[i, j], const(0, F32)))
    y = b.reduce("Y", (rows, 2), (keys,), lambda i, d, j: (p[i, j], v[j, d]))
    return b.finish(*outs, b.compute("Z", (rows, 2), lambda i, d: y[i, d] / t[i]))


def arrays(func: Func, seed: int, special: list[float]) -> list[Array]:
    rng = np.random.default_rng(seed)
    made = [rng.standard_normal(p.shape).astype(np.float32) for p in func.params if p not in func.outputs]
    for n, value in enumerate(special):
        made[1].flat[(7 * n + seed) % made[1].size] = value
    return made


def check(func: Func, step: RollingUpdate, given: list[Array], *, natively: bool = False) -> None:
    rolled = replay(single(func), (step,)).funcs[0]
    verify_func(rolled)
    with np.errstate(all="ignore"):
        want = run_func(func, *given)
        found = [run_func(rolled, *given), *([run_native(rolled, given)] if natively else [])]
    for got in found:
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(2, 12),
    st.lists(st.sampled_from(SCORES), max_size=3),
    st.lists(st.sampled_from(ENDS), max_size=4),
    st.booleans(),
    st.lists(st.sampled_from([-np.inf, 50.0, -80.0]), max_size=2),
    st.data(),
)
def test_what_follows_a_maximum(
    rows: int,
    keys: int,
    changes: list[str],
    ends: list[str],
    contracted: bool,
    special: list[float],
    data: st.DataObject,
) -> None:
    func = attention_like(rows, keys, changes, ends, contracted=contracted)
    size, seed = data.draw(st.integers(1, keys - 1)), data.draw(st.integers(0, 99))
    natively = data.draw(st.integers(0, 9)) == 0
    check(func, RollingUpdate("Y", size), arrays(func, seed, special), natively=natively)


def moments(rows: int, keys: int) -> Func:
    """Mean, variance around it, and a sum of what is normalised by neither."""
    b = FuncBuilder("moments")
    x = b.param("X", (rows, keys), F32)
    s = b.reduce("S", (rows,), (keys,), lambda i, j: x[i, j])
    mean = b.compute("mean", (rows,), lambda i: s[i] / const(keys, F32))
    d = b.compute("D", (rows, keys), lambda i, j: x[i, j] - mean[i])
    return b.finish(b.reduce("V", (rows,), (keys,), lambda i, j: (d[i, j], d[i, j])), mean)


def shifted(rows: int, keys: int) -> Func:
    """The largest of what lies around a mean, and where the largest is."""
    b = FuncBuilder("shifted")
    x = b.param("X", (rows, keys), F32)
    s = b.reduce("S", (rows,), (keys,), lambda i, j: x[i, j])
    return b.finish(b.reduce("V", (rows,), (keys,), lambda i, j: x[i, j] - s[i], "max"))


def chosen(rows: int, keys: int) -> Func:
    b = FuncBuilder("chosen")
    x, w = b.param("X", (rows, keys), F32), b.param("W", (keys,), F32)
    m = b.reduce("M", (rows,), (keys,), lambda i, j: x[i, j], "max")
    return b.finish(
        b.reduce("V", (rows,), (keys,), lambda i, j: select(equal(x[i, j], m[i]), w[j], LOW), "max")
    )


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([moments, shifted, chosen]), st.integers(1, 3), st.integers(2, 11), st.data())
def test_what_follows_a_sum_or_an_extreme(
    maker: Callable[[int, int], Func], rows: int, keys: int, data: st.DataObject
) -> None:
    func = maker(rows, keys)
    size, seed = data.draw(st.integers(1, keys - 1)), data.draw(st.integers(0, 99))
    check(func, RollingUpdate("V", size), arrays(func, seed, []))


def test_a_result_that_others_read_is_that_of_all() -> None:
    func = attention_like(2, 9, ["scale"], ["log"], contracted=True)
    check(func, RollingUpdate("Y", 2), arrays(func, 0, []), natively=True)

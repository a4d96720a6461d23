"""Causal masks that are known at compile time: found, stated by position, and their blocks of keys left out."""

import numpy as np
import pytest
from graph_cases import f32
from native import BEST, run_native
from test_attention import Mask, attention, causal, feeds, func_of, given, number, scaled, space_of
from test_rolling_update import check_online, online

from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph, Value
from tilewright.graph.passes import prepare
from tilewright.graph.passes.lower import lower_graph
from tilewright.ops.core.arithmetic import Add
from tilewright.ops.core.causal_mask import CausalMask
from tilewright.ops.core.logic import GreaterOrEqual, Not, Where
from tilewright.support.errors import UserError
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import If, walk_stmts

KEYS = 300


def seen(rows: int, keys: int, offset: int = 0) -> np.ndarray:
    return np.tri(rows, keys, offset, dtype=np.bool_)


def added(b: GraphBuilder, scores: Value) -> Value:
    """As transformers export it: 0, or the lowest number."""
    low = np.finfo(np.float32).min
    mask = np.where(seen(*scores.shape[-2:]), np.float32(0), low)[None, None]
    return b.apply(Add(), scaled(b, scores), b.constant("mask", mask))


def negated(b: GraphBuilder, scores: Value) -> Value:
    hidden = b.apply(Not(), b.constant("seen", seen(*scores.shape[-2:])))
    return b.apply(Where(), hidden, number(b, -1e38), scaled(b, scores))


def compared(b: GraphBuilder, scores: Value) -> Value:
    """The last rows, with a cache of earlier keys before them."""
    rows, keys = scores.shape[-2:]
    at, of = (
        b.constant(n, a.astype(np.int64)) for n, a in (("at", places(rows, keys)), ("of", np.arange(keys)))
    )
    return b.apply(Where(), b.apply(GreaterOrEqual(), at, of), scaled(b, scores), number(b, -np.inf))


def places(rows: int, keys: int) -> np.ndarray:
    return (np.arange(rows) + keys - rows)[:, None]


def window(b: GraphBuilder, scores: Value) -> Value:
    rows, keys = scores.shape[-2:]
    near = b.constant("near", seen(rows, keys) & ~seen(rows, keys, -9))
    return b.apply(Where(), near, scores, number(b, -np.inf))


def graph_of(mask: Mask, rows: int = KEYS, keys: int = KEYS) -> Graph:
    return attention((1, 2, rows, 8), (1, 2, keys, 8), (1, 2, keys, 8), mask)


def found(graph: Graph) -> list[CausalMask]:
    return [n.op for n in prepare(graph).nodes if isinstance(n.op, CausalMask)]


@pytest.mark.parametrize(
    ("mask", "rows", "offset"),
    [(causal, KEYS, 0), (added, KEYS, 0), (negated, KEYS, 0), (compared, 37, KEYS - 37)],
)
def test_masks_by_position(mask: Mask, rows: int, offset: int) -> None:
    graph = graph_of(mask, rows)
    assert [op.offset for op in found(graph)] == [offset]
    assert not any(p.name in ("mask", "seen") for f in lower_graph(prepare(graph)).funcs for p in f.params)
    func = check_online(graph)
    assert any(isinstance(n, If) for n in walk_stmts(func.body))


@pytest.mark.parametrize(("mask", "keys"), [(causal, 128), (window, KEYS), (scaled, KEYS)])
def test_what_stays_as_it_is(mask: Mask, keys: int) -> None:
    assert not found(graph_of(mask, keys, keys))


@pytest.mark.parametrize(("rows", "keys"), [(256, 256), (290, 290), (256, 300), (40, 290)])
def test_ragged_blocks_are_skipped(rows: int, keys: int) -> None:
    check_online(graph_of(compared, rows, keys))


def test_keys_that_no_row_sees() -> None:
    check_online(graph_of(causal, 256, 300))


def test_half_of_the_scores_are_left_out() -> None:
    shape = (8, 1024, 64)
    whole, half = (space_of(func_of(attention(shape, shape, shape, m))).ranked() for m in (scaled, causal))
    assert half[0][0][1] > 0 and half[1][0] < 0.65 * whole[1][0]


def test_values_that_nobody_sees_are_not_read() -> None:
    """0 · NaN would be NaN in rows that do not see the key: this is said in docs/rewrites.md."""
    graph = graph_of(causal)
    func = func_of(graph)
    arrays = feeds(graph)
    arrays["v"][:, :, -1] = np.nan
    space = space_of(func, BEST)
    scheduled = space.build(online(space, block=60, keys=128)).module.funcs[0]
    (got,) = run_native(scheduled, given(func, graph, arrays))
    assert not np.isnan(got[:, :, :120]).any() and np.isnan(got[:, :, -1]).all()


def test_the_op() -> None:
    for sample in CausalMask.samples(np.random.default_rng(0)):
        b = GraphBuilder()
        x = np.asarray(sample.inputs[0])
        (func,) = lower_graph(b.finish(*b.add(sample.op, [b.input("x", f32(*x.shape))]).outputs)).funcs
        (got,), (want,) = run_func(func, x.astype(np.float32)), sample.op.reference([x.astype(np.float32)])
        np.testing.assert_array_equal(got, want)


def test_the_op_of_a_row() -> None:
    with pytest.raises(UserError, match="only matrices of floats"):
        CausalMask(0, -np.inf).infer([f32(4)])

"""Contractions in flow graphs: what is computed together block of rows by block, and rows inside of loops."""

import numpy as np
import pytest
from native import AVX2, run_native

from tilewright.families.chain.match import try_contraction_chain
from tilewright.families.chain.space import ChainSpace, chain_space
from tilewright.gir.compare import same_flow_graph
from tilewright.gir.from_func import joined_graph, own_blocks
from tilewright.gir.from_nests import nested_graph_of
from tilewright.gir.interp import interpret_flow_graph, run_flow_graph
from tilewright.gir.parser import parse_flow_graph
from tilewright.gir.region import region_of
from tilewright.ir.dtype import DType
from tilewright.ir.expr import UnaryOp, maximum, unary
from tilewright.schedule.nests import find_run, shared_buffers
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps.stream_rows import StreamRows
from tilewright.search.default import make_request
from tilewright.support.arrays import Array
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.pipeline import lower_func

F32 = DType.F32
Q, K, D = 20, 37, 8


def attention() -> Func:
    f = FuncBuilder("attention")
    q, k, v = f.param("q", (Q, D), F32), f.param("k", (K, D), F32), f.param("v", (K, D), F32)
    s = f.reduce("s", (Q, K), (D,), lambda i, j, c: (q[i, c], k[j, c]), "sum")
    z = f.compute("z", (Q, K), lambda i, j: unary(UnaryOp.TANH, s[i, j]))
    m = f.reduce("m", (Q,), (K,), lambda i, j: z[i, j], "max")
    p = f.compute("p", (Q, K), lambda i, j: unary(UnaryOp.EXP, z[i, j] - m[i]))
    t = f.reduce("t", (Q,), (K,), lambda i, j: p[i, j], "sum")
    o = f.reduce("o", (Q, D), (K,), lambda i, d, j: (p[i, j], v[j, d]), "sum")
    return f.finish(f.compute("y", (Q, D), lambda i, d: o[i, d] / t[i]))


def classifier(rows: int = 30, classes: int = 50, size: int = 12) -> Func:
    f = FuncBuilder("classifier")
    x, w = f.param("x", (rows, size), F32), f.param("w", (size, classes), F32)
    s = f.reduce("s", (rows, classes), (size,), lambda i, j, c: (x[i, c], w[c, j]), "sum")
    m = f.reduce("m", (rows,), (classes,), lambda i, j: s[i, j], "max")
    p = f.compute("p", (rows, classes), lambda i, j: unary(UnaryOp.EXP, s[i, j] - m[i]))
    t = f.reduce("t", (rows,), (classes,), lambda i, j: p[i, j], "sum")
    return f.finish(f.compute("y", (rows, classes), lambda i, j: p[i, j] / t[i]))


def two_layers(rows: int = 50, wide: int = 40, size: int = 16) -> Func:
    f = FuncBuilder("two_layers")
    x, w = f.param("x", (rows, size), F32), f.param("w", (size, wide), F32)
    u = f.param("u", (wide, size), F32)
    s = f.reduce("s", (rows, wide), (size,), lambda i, j, c: (x[i, c], w[c, j]), "sum")
    r = f.compute("r", (rows, wide), lambda i, j: maximum(s[i, j], 0.0))
    o = f.reduce("o", (rows, size), (wide,), lambda i, d, j: (r[i, j], u[j, d]), "sum")
    return f.finish(f.compute("y", (rows, size), lambda i, d: o[i, d] + x[i, d]))


def inputs(func: Func) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(p.shape, np.float32) for p in func.params if p not in func.outputs]


CHAINS = {"attention": attention, "classifier": classifier, "two layers": two_layers}


@pytest.mark.parametrize("build", CHAINS.values(), ids=CHAINS)
def test_a_graph_with_contractions_is_text_and_computes_what_its_blocks_do(build: object) -> None:
    assert callable(build)
    func = build()
    assert isinstance(func, Func)
    graph, _ = joined_graph(func.name, func.params, own_blocks(func))
    assert same_flow_graph(parse_flow_graph(str(graph)), graph)
    args = inputs(func)
    (got,) = run_flow_graph(graph, *args)
    np.testing.assert_allclose(got, run_func(func, *args)[0], rtol=1e-5, atol=1e-5)


def test_what_depends_on_the_first_contraction_shares_its_rows() -> None:
    region = region_of(attention())
    assert [n.name for n in region.contractions] == ["s", "o"]
    assert [n.name for n in region.chained] == ["s", "z", "m", "p", "t", "o", "y"]
    assert [region.graph.extents[a] for a in region.rows] == [Q]


def test_an_operand_is_no_part_of_the_chain() -> None:
    f = FuncBuilder("f")
    x, w = f.param("x", (6, 8), F32), f.param("w", (5, 8), F32)
    t = f.compute("t", (8, 5), lambda c, j: w[j, c] * 2.0)
    s = f.reduce("s", (6, 5), (8,), lambda i, j, c: (x[i, c], t[c, j]), "sum")
    m = f.reduce("m", (6,), (5,), lambda i, j: s[i, j], "max")
    region = region_of(f.finish(f.compute("y", (6, 5), lambda i, j: s[i, j] - m[i])))
    assert [n.name for n in region.operands] == ["t"]
    assert [n.name for n in region.chained] == ["s", "m", "y"]


def test_what_has_no_contraction_is_no_region() -> None:
    f = FuncBuilder("f")
    x = f.param("x", (6, 8), F32)
    m = f.reduce("m", (6,), (8,), lambda i, c: x[i, c] * x[i, c], "sum")
    with pytest.raises(ScheduleError, match="f has no contraction"):
        region_of(f.finish(m))


def test_rows_that_are_mixed_are_no_region() -> None:
    """The maximum of columns needs all rows."""
    f = FuncBuilder("f")
    x, w = f.param("x", (6, 8), F32), f.param("w", (8, 5), F32)
    s = f.reduce("s", (6, 5), (8,), lambda i, j, c: (x[i, c], w[c, j]), "sum")
    m = f.reduce("m", (5,), (6,), lambda j, i: s[i, j], "max")
    t = f.reduce("t", (6,), (5,), lambda i, j: s[i, j] - m[j], "sum")
    with pytest.raises(ScheduleError, match="nothing has the rows of s throughout"):
        region_of(f.finish(t))


# ----------------------------------------------------------------------------------------------------------- the family


def space_of(func: Func) -> ChainSpace:
    found = chain_space(make_request(func, AVX2, frozenset()))
    assert found is not None
    return found


@pytest.mark.parametrize("build", CHAINS.values(), ids=CHAINS)
def test_every_block_of_rows_means_the_same(build: object) -> None:
    assert callable(build)
    func = build()
    assert isinstance(func, Func)
    space, args = space_of(func), inputs(func)
    want = run_func(func, *args)[0]
    points = space.points()
    for block, keys in np.unique(points[:, :2], axis=0):
        chosen = points[(points[:, 0] == block) & (points[:, 1] == keys)][0]
        scheduled = space.build(space.decisions(chosen)).func
        np.testing.assert_allclose(run_native(scheduled, args, AVX2)[0], want, rtol=1e-4, atol=1e-5)


def test_rows_behind_a_contraction_are_one_kernel_with_it() -> None:
    space = space_of(classifier(96, 64))
    point = next(p for p in space.points() if p[0])
    kernels, shared = lower_func(space.build(space.decisions(point)).func)
    assert len(kernels) == 1 and not shared  # scores are never there as a whole


def test_a_contraction_with_an_epilogue_alone_is_no_chain() -> None:
    f = FuncBuilder("f")
    x, w = f.param("x", (6, 8), F32), f.param("w", (8, 5), F32)
    s = f.reduce("s", (6, 5), (8,), lambda i, j, c: (x[i, c], w[c, j]), "sum")
    assert try_contraction_chain(f.finish(f.compute("y", (6, 5), lambda i, j: maximum(s[i, j], 0.0)))) is None


# ------------------------------------------------------------------------------------------------- rows inside of loops

ROWS = ("z", "m", "p", "t")


def in_blocks(size: int) -> Schedule:
    s = Schedule(attention())
    block, _ = s.split("y_i", (None, size))
    for name in ("t", "o", "p", "m", "z", "s"):
        s.compute_at(name, block)
    return s


@pytest.mark.parametrize("kept", [(), ("z",)])
@pytest.mark.parametrize("width", [8, 32])
def test_rows_stream_inside_of_a_loop(width: int, kept: tuple[str, ...]) -> None:
    s = in_blocks(4)
    s.apply(StreamRows(ROWS, width, 4, kept))
    assert [b for b in s.func.names if b in ROWS] == []
    args = inputs(s.func)
    want = run_func(attention(), *args)[0]
    np.testing.assert_allclose(run_func(s.func, *args)[0], want, rtol=1e-5, atol=1e-6)
    s.parallel("y_i_0")
    np.testing.assert_allclose(run_native(s.func, args)[0], want, rtol=1e-5, atol=1e-6)


def test_the_graph_of_nests_says_where_its_rows_begin() -> None:
    s = in_blocks(4)
    run = find_run(s.func, ROWS)
    graph = nested_graph_of(run.nests, shared_buffers(s.func, run), run.around).graph
    assert list(graph.around.values()) == [Q // 4]
    assert "around(5)" in str(graph) and same_flow_graph(parse_flow_graph(str(graph)), graph)
    rng = np.random.default_rng(0)
    arrays = {p: rng.standard_normal(p.shape, np.float32) for p in graph.params}
    interpret_flow_graph(graph, arrays)
    named = {b.name: a for b, a in arrays.items()}
    z = np.tanh(named["s"])
    power = np.exp(z - z.max(1, keepdims=True))
    np.testing.assert_allclose(named["p"], power, rtol=1e-5)
    np.testing.assert_allclose(named["t"], power.sum(1), rtol=1e-5)


def test_a_part_of_a_fold_is_refused() -> None:
    f = FuncBuilder("f")
    x = f.param("x", (4, 64), F32)
    s = Schedule(f.finish(f.reduce("m", (4,), (64,), lambda i, j: x[i, j], "max")))
    outer, _ = s.split("m_j", (None, 8))
    s.reorder(outer, "m_i")
    with pytest.raises(ScheduleError):
        s.apply(StreamRows(("m",), 8, 1))


def test_workers_do_not_meet_inside_of_loops() -> None:
    s = in_blocks(4)
    with pytest.raises(ScheduleError, match="split and depth are for whole kernels"):
        s.apply(StreamRows(ROWS, 8, 4, split=2))


def test_other_nests_between_are_refused() -> None:
    s = in_blocks(4)
    with pytest.raises(ScheduleError, match="other nests stand between"):
        s.apply(StreamRows(("z", "t"), 8, 4))

"""Access regions hold what is accessed, and are exact where they say so; dataflow; solving indices for iterators."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    TRUE,
    Buffer,
    Const,
    Expr,
    Var,
    as_index,
    const,
    select,
)
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.analysis.regions import (
    BufferRegion,
    Span,
    accesses,
    box,
    contains,
    exact_union,
    loop_extents,
    region,
)
from tilewright.tir.analysis.solve import try_solve
from tilewright.tir.build import FuncBuilder
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, For, Iter, Store, seq

I32 = DType.I32
OUTER, ROW, COL = Var("o"), Var("i"), Var("j")
ZERO = as_index(0)


def value(e: Expr, env: dict[Var, int]) -> int:
    """`e` with these values; the constructors fold it."""
    folded = substitute(e, {v: const(n) for v, n in env.items()})
    assert isinstance(folded, Const)
    return int(folded.value)


# ------------------------------------------------------------------------------------------------------------ boxes

affine = st.builds(
    lambda o, i, j, c: OUTER * o + ROW * i + COL * j + c,
    st.integers(-2, 8),
    st.integers(-2, 8),
    st.integers(-2, 8),
    st.integers(-3, 3),
)
quasi = st.one_of(
    affine,
    st.builds(lambda e, n: e // n, affine, st.integers(2, 5)),
    st.builds(lambda e, n: e % n, affine, st.integers(2, 5)),
    st.builds(lambda e, n, k: (e // n) * k + COL, affine, st.integers(2, 5), st.integers(1, 6)),
)
limits = st.one_of(
    st.just(TRUE),
    st.builds(lambda k, n: ROW * k + COL < n, st.integers(1, 6), st.integers(1, 20)),
    st.builds(lambda k, n: OUTER * k + ROW < n, st.integers(1, 6), st.integers(2, 12)),
)


@settings(max_examples=100, deadline=None)
@given(indices=st.tuples(quasi, quasi), where=limits)
def test_a_box_holds_what_is_accessed_and_nothing_else_if_exact(
    indices: tuple[Expr, Expr], where: Expr
) -> None:
    a, b = Var("a"), Var("b")
    t = Buffer("T", (99, 99), I32)
    block = Block("B", (Iter(a, 99), Iter(b, 99)), indices, Store(t, (a, b), const(1, I32)), None, where)
    nest = For(OUTER, 3, For(ROW, 4, For(COL, 6, block)))
    simplify = Simplifier(ranges(nest))
    (access,) = accesses(nest)
    found = box(access, {ROW: 4, COL: 6}, simplify)
    for o in range(3):
        touched: set[tuple[int, ...]] = set()
        for i, j in itertools.product(range(4), range(6)):
            env = {OUTER: o, ROW: i, COL: j}
            if value(where, env):
                touched.add(tuple(value(e, env) for e in indices))
        spans = [None if s is None else (value(s.min, {OUTER: o}), s.extent) for s in found.spans]
        for place in touched:
            for n, s in zip(place, spans, strict=True):
                assert s is None or s[0] <= n < s[0] + s[1]
        if found.exact and not found.conditions:
            every = itertools.product(*(range(s[0], s[0] + s[1]) for s in spans if s is not None))
            assert set(every) == touched


def test_conditions_that_keep_an_iterator_in_its_domain_are_recognised() -> None:
    i, v = ROW * 4 + COL, Var("v")
    t = Buffer("T", (10,), I32)
    nest = For(
        ROW, 3, For(COL, 4, Block("B", (Iter(v, 10),), (i,), Store(t, (v,), const(1, I32)), None, i < 10))
    )
    simplify = Simplifier(ranges(nest))
    (access,) = accesses(nest)
    inner = box(access, {COL: 4}, simplify)
    assert inner.spans == (Span(simplify(ROW * 4), 4),)
    assert [access.keeps_domain(c, simplify) for c in inner.conditions] == [True]
    assert box(access, {ROW: 3, COL: 4}, simplify) == ((Span(ZERO, 10),), True, ())


def test_region_of_a_convolution_window() -> None:
    b = FuncBuilder("conv")
    x, w = b.param("X", (2, 9, 9), I32), b.param("W", (2, 3, 3), I32)
    f = b.finish(
        b.reduce("Y", (4, 4), (2, 3, 3), lambda i, j, c, r, s: (x[c, i * 2 + r, j * 2 + s], w[c, r, s]))
    )
    row = f.body
    assert isinstance(row, For)
    found = region(row.body, x, Simplifier(ranges(f.body)), writes=False)
    assert found == (Span(ZERO, 2), Span(row.var * 2, 3), Span(ZERO, 9))


def test_region_joins_accesses_and_stays_inside_the_buffer() -> None:
    b = FuncBuilder("pad")
    x = b.param("X", (6,), I32)
    p = b.compute(
        "P",
        (8,),
        lambda i: select(logical_and(const(1) <= i, i < 7), x[i - 1], const(0, I32)) + x[i % 6],
    )
    f = b.finish(p)
    assert isinstance(f.body, For)
    simplify = Simplifier(ranges(f.body))
    assert region(f.body, x, simplify) == (Span(ZERO, 6),)
    assert region(f.body, p, simplify, reads=False) == (Span(ZERO, 8),)
    assert region(f.body, x, simplify, reads=False) is None
    guarded = [a.guarded for a in accesses(f.body) if not a.is_write]
    assert sorted(guarded) == [False, True]


def test_accesses_see_through_nested_blocks() -> None:
    i, j, vi, vj = Var("i"), Var("j"), Var("vi"), Var("vj")
    t = Buffer("T", (8, 3), I32)
    inner = Block("in", (Iter(vj, 3),), (j,), Store(t, (vi, vj), const(1, I32)))
    outer = For(i, 2, Block("out", (Iter(vi, 8),), (i * 4 + 1,), For(j, 3, inner)))
    (access,) = accesses(outer)
    assert access.indices == (i * 4 + 1, j)
    assert access.place == (vi, vj)
    assert [it.var for it, _ in access.iters] == [vi, vj]
    assert loop_extents(outer) == {i: 2, j: 3}


# ----------------------------------------------------------------------------------------------------------- unions


def flat(*spans: tuple[int, int]) -> BufferRegion:
    return tuple(Span(OUTER * 10 + lo, n) for lo, n in spans)


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([flat((0, 4)), flat((4, 2))], flat((0, 6))),
        ([flat((4, 2)), flat((0, 4))], flat((0, 6))),
        ([flat((0, 6)), flat((1, 2))], flat((0, 6))),
        ([flat((0, 4)), flat((5, 2))], None),
        (
            [flat((0, 2), (0, 3)), flat((0, 2), (3, 1)), flat((2, 1), (0, 3)), flat((2, 1), (3, 1))],
            flat((0, 3), (0, 4)),
        ),
        ([flat((0, 2), (0, 3)), flat((2, 1), (3, 1))], None),
    ],
)
def test_exact_union(parts: list[BufferRegion], whole: BufferRegion | None) -> None:
    simplify = Simplifier({OUTER: Interval(0, 2)})
    found = exact_union(parts, simplify)
    assert found == (None if whole is None else tuple(Span(simplify(s.min), s.extent) for s in whole))


def test_contains() -> None:
    simplify = Simplifier({OUTER: Interval(0, 2), ROW: Interval(0, 3)})
    tile = Span(OUTER * 4, 4)
    assert contains(tile, Span(OUTER * 4 + ROW, 1), 12, simplify)
    assert not contains(tile, Span(OUTER * 4 + ROW, 2), 12, simplify)
    assert not contains(tile, Span(ROW, 1), 12, simplify)
    assert contains(Span(ZERO, 12), Span(OUTER * 4 - 1, 6), 12, simplify)


# ------------------------------------------------------------------------------------------------ dataflow, solving


def test_dataflow() -> None:
    b = FuncBuilder("f")
    x = b.param("X", (4, 3), I32)
    t = b.compute("T", (4, 3), lambda i, j: x[i, j] * 2)
    s = b.reduce("S", (4,), (3,), lambda i, k: t[i, k])
    f = b.finish(b.compute("Y", (4, 3), lambda i, j: t[i, j] + s[i]))
    flow = Dataflow(f)
    block = {name: u.block for name, u in flow.uses.items()}
    assert [b.name for b in flow.writers(t)] == ["T"]
    assert [b.name for b in flow.readers(t)] == ["S", "Y"]
    assert [b.name for b in flow.readers(s)] == ["S", "Y"]  # a reduction reads its accumulator
    assert [b.name for b in flow.consumers(block["T"])] == ["S", "Y"]
    assert [b.name for b in flow.producers(block["S"])] == ["T"]
    assert set(flow.reads(block["Y"])) == {t, s}
    assert [flow.position(block[n]) for n in ("T", "S", "Y")] == [0, 1, 2]


I_, J_, K_ = Var("vi"), Var("vj"), Var("vk")
DOMAIN = (Iter(I_, 5), Iter(J_, 6), Iter(K_, 4))
SOLVABLE = {
    "plain": (I_, J_, K_),
    "permuted": (K_, I_, J_),
    "offset": (I_ + 3, J_ - 1, K_),
    "split": (I_, J_ // 4, J_ % 4, K_),  # 4 does not divide 6
    "split twice": (I_, J_ // 4, J_ % 4 // 2, J_ % 4 % 2, K_),
    "fused": (I_ * 24 + J_ * 4 + K_,),
    "fused and split": ((I_ * 6 + J_) // 4, (I_ * 6 + J_) % 4, K_),
    "strided": (I_ * 3, J_, K_),
}


@pytest.mark.parametrize("indices", SOLVABLE.values(), ids=SOLVABLE.keys())
def test_solve(indices: tuple[Expr, ...]) -> None:
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in DOMAIN})
    for place in itertools.product(*(range(it.extent) for it in DOMAIN)):
        env = {it.var: n for it, n in zip(DOMAIN, place, strict=True)}
        values = [const(value(e, env)) for e in indices]
        solved = try_solve(indices, values, DOMAIN, simplify)
        assert solved is not None
        assert {v: value(e, {}) for v, e in solved.items()} == env


@pytest.mark.parametrize(
    "indices", [(I_, J_), (I_ + J_, K_, J_), (I_, J_ // 2, K_), (I_, J_ % 4, K_)], ids=str
)
def test_what_cannot_be_solved(indices: tuple[Expr, ...]) -> None:
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in DOMAIN})
    assert try_solve(indices, indices, DOMAIN, simplify) is None


def test_a_seq_of_stores_is_listed_in_order() -> None:
    t = Buffer("T", (4,), I32)
    v, i = Var("v"), Var("i")
    body = seq(Store(t, (v,), const(1, I32)), Store(t, (v,), t[v] + 1))
    nest = For(i, 4, Block("B", (Iter(v, 4),), (i,), body))
    assert [a.is_write for a in accesses(nest)] == [True, False, True]
    assert all(a.block is nest.body for a in accesses(nest))

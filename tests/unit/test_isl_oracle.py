"""The index mathematics agrees with isl, the integer set library: bijections, regions, region cover, dependences.

isl decides these questions exactly, by algorithms that have nothing in common with ours. Where we claim something, isl
must find it true; where isl finds a binding one to one, we must have found it too (these domains are small, so what is
not recognised is counted).
"""

import math

import islpy as isl
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_bijection import bindings

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    TRUE,
    Binary,
    BinaryOp,
    Buffer,
    Const,
    Expr,
    Var,
    as_index,
    const,
)
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.bindings import binding
from tilewright.schedule.sites import sites
from tilewright.schedule.validate import validate
from tilewright.tir.analysis.bijection import Image, image
from tilewright.tir.analysis.independence import dependence
from tilewright.tir.analysis.independent_loops import independent_loops
from tilewright.tir.analysis.regions import accesses, box, loop_extents
from tilewright.tir.func import Func
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, For, Iter, LoopKind, Stmt, Store, seq

CHECKED = settings(max_examples=60, deadline=None)
I32 = DType.I32

_TEXT = {BinaryOp.ADD: "+", BinaryOp.SUB: "-", BinaryOp.MUL: "*", BinaryOp.LT: "<", BinaryOp.LE: "<="}


def text(e: Expr) -> str:
    """An index expression or condition as isl writes it."""
    match e:
        case Var():
            return e.name
        case Const():
            return str(int(e.value))
        case Binary(op=BinaryOp.FLOORDIV):
            return f"floor(({text(e.a)})/{text(e.b)})"
        case Binary(op=BinaryOp.MOD):
            return f"(({text(e.a)}) mod {text(e.b)})"
        case Binary(op=BinaryOp.AND):
            return f"({text(e.a)} and {text(e.b)})"
        case Binary():
            return f"({text(e.a)} {_TEXT[e.op]} {text(e.b)})"
        case _:
            raise AssertionError(e)


def bounds(extents: dict[Var, int]) -> str:
    return " and ".join(f"0 <= {v.name} < {n}" for v, n in extents.items()) or "1 = 1"


def touching(indices: list[Expr], extents: dict[Var, int], conditions: tuple[Expr, ...] = ()) -> isl.Map:
    """From iterations to what they touch."""
    where = " and ".join((bounds(extents), *(text(c) for c in conditions if c is not TRUE)))
    names = ", ".join(v.name for v in extents)
    return isl.Map(f"{{ [{names}] -> [{', '.join(text(i) for i in indices)}] : {where} }}")


def rectangle(starts: list[int], extents: list[int]) -> isl.Set:
    names = [f"d{n}" for n in range(len(starts))]
    where = [f"{s} <= {n} < {s + e}" for n, s, e in zip(names, starts, extents, strict=True)]
    return isl.Set(f"{{ [{', '.join(names)}] : {' and '.join(where) or '1 = 1'} }}")


# ------------------------------------------------------------------------------------------------------- bijections


@CHECKED
@given(bindings())
def test_bijections(case: tuple[list[Expr], list[int], dict[Var, int], tuple[Expr, ...]]) -> None:
    values, domain, loops, conditions = case
    exact = touching(values, loops, conditions)
    is_whole = exact.is_injective() and exact.range().is_equal(rectangle([0] * len(domain), domain))
    simplify = Simplifier({v: Interval(0, n - 1) for v, n in loops.items()})
    found = image(values, domain, conditions, loops, simplify)
    if isinstance(found, Image):
        starts = [simplify.constant(s.min) for s in found.spans]
        assert exact.is_injective(), found
        if math.prod(s.extent for s in found.spans):
            assert exact.range().is_equal(
                rectangle([s for s in starts if s is not None], [s.extent for s in found.spans])
            )
    iters = tuple(Iter(Var(f"v{n}"), extent) for n, extent in enumerate(domain))
    out = Buffer("out", tuple(domain), I32)
    store = Store(out, tuple(it.var for it in iters), const(1, I32))
    nest: Stmt = Block("b", iters, tuple(values), store, None, logical_and(*conditions))
    for v, n in reversed(loops.items()):
        nest = For(v, n, nest)
    func = Func("f", (out,), (), nest, (out,))
    assert bool(binding(sites(func).all[0]).affine) == is_whole


# ---------------------------------------------------------------------------------------------------- regions and cover

S, A, B = Var("o"), Var("a"), Var("b")
SIZE = 40

affine = st.builds(
    lambda o, k, c: (o, k, c), st.integers(0, 4), st.sampled_from([1, 1, 1, 2, 3]), st.integers(0, 4)
)


def pair(
    draw: st.DrawFn, kind: LoopKind = LoopKind.SERIAL
) -> tuple[Func, dict[str, tuple[Expr, dict[Var, int]]]]:
    """for o: { for a: T[…o…a…] = 1;  for b: out[o, b] = T[…o…b…] }, and how the two touch T."""
    outer, n, m = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(1, 6))
    forms: list[Expr] = []
    for inner in (A, B):
        o, k, c = draw(affine)
        e = S * o + inner * k + c
        match draw(st.integers(0, 5)):
            case 0:
                e = e // draw(st.integers(2, 3))
            case 1:
                e = e % draw(st.integers(3, 9))
            case _:
                pass
        forms.append(as_index(e))
    write, read = forms
    t, out = Buffer("T", (SIZE,), I32), Buffer("out", (outer, m), I32)
    p = Block(
        "P", (Iter(Var("po"), outer), Iter(Var("pa"), n)), (S, A), Store(t, (_at(write, "p"),), const(1, I32))
    )
    c = Block(
        "C",
        (Iter(Var("co"), outer), Iter(Var("cb"), m)),
        (S, B),
        Store(out, (Var("co"), Var("cb")), t[(_at(read, "c"),)]),
    )
    func = Func("f", (out,), (t,), For(S, outer, seq(For(A, n, p), For(B, m, c)), kind), (out,))
    return func, {"write": (write, {S: outer, A: n}), "read": (read, {S: outer, B: m})}


def _at(e: Expr, prefix: str) -> Expr:
    """The index over the block's iterators."""
    match e:
        case Var():
            return Var(prefix + e.name)
        case Const():
            return e
        case _:
            return e.rebuild(tuple(_at(c, prefix) for c in e.children()))


pairs = st.composite(pair)
parallel_pairs = st.composite(lambda draw: pair(draw, LoopKind.PARALLEL))


@CHECKED
@given(pairs())
def test_region_cover_in_serial_loops(
    case: tuple[Func, dict[str, tuple[Expr, dict[Var, int]]]],
) -> None:
    """What is read in iteration o was written in an iteration up to o."""
    func, touched = case
    (write, made), (read, used) = touched["write"], touched["read"]
    until = touching([Var("turn"), write], made | {Var("turn"): made[S]}, (Var("turn") >= S,)).range()
    wanted = touching([S, read], used).range()
    assert bool(validate(func).blocks["C"].region_cover) == wanted.is_subset(until)


@CHECKED
@given(parallel_pairs())
def test_region_cover_in_parallel_loops(
    case: tuple[Func, dict[str, tuple[Expr, dict[Var, int]]]],
) -> None:
    func, touched = case
    (write, made), (read, used) = touched["write"], touched["read"]
    is_covered = touching([S, read], used).range().is_subset(touching([S, write], made).range())
    assume(made[S] > 1)
    assert bool(validate(func).blocks["C"].region_cover) == is_covered


@CHECKED
@given(pairs())
def test_regions_hold_what_is_accessed(case: tuple[Func, dict[str, tuple[Expr, dict[Var, int]]]]) -> None:
    func, _ = case
    simplify = Simplifier(ranges(func.body))
    extents = loop_extents(func.body)
    for access in accesses(func.body):
        found = box(access, extents, simplify)
        touched = touching(list(access.indices), extents, access.conditions).range()
        spans = [s for s in found.spans if s is not None]
        starts = [simplify.constant(s.min) for s in spans]
        assert len(spans) == len(access.indices) and None not in starts
        whole = rectangle([s or 0 for s in starts], [s.extent for s in spans])
        assert touched.is_subset(whole)
        if found.exact and not found.conditions:
            assert touched.is_equal(whole)


# -------------------------------------------------------------------------------------------------------- dependences


@CHECKED
@given(pairs())
def test_loops_without_dependence_have_none(
    case: tuple[Func, dict[str, tuple[Expr, dict[Var, int]]]],
) -> None:
    """Two iterations that touch one element of T, one of them writing it, depend on each other."""
    func, touched = case
    (write, made), (read, used) = touched["write"], touched["read"]
    stores = touching([S, write], made).range()
    loads = touching([S, read], used).range()
    first = isl.Map("{ [s, e] -> [e, s, t] : s != t }")  # iteration s touches e, another iteration t …
    second = isl.Map("{ [t, e] -> [e, s, t] : s != t }")  # … touches it too
    meets = any(not stores.apply(first).intersect(y.apply(second)).is_empty() for y in (stores, loads))
    loop = func.body
    assert isinstance(loop, For)
    if loop.extent > 1 and dependence(func, loop, private=False) is None:
        assert not meets
    if S in independent_loops(func.body):
        assert not meets or loop.extent == 1

"""Tensorize on GEMMs whose loops were split and reordered at random: refused, or the same to the bit."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native import BEST, bits, run_native

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Scope, cast
from tilewright.schedule.find import chain, find_loop
from tilewright.schedule.schedule import Schedule
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import Emit, LoopKind, loops, walk_stmts
from tilewright.tir.verify import verify_func


@st.composite
def a_product(draw: st.DrawFn, dtype: DType, fits: bool) -> Func:
    """C[i, j] = Σ A[i, k] · B[k, j], with the dimensions of A and B in any order, or in the one that fits."""
    rows, columns, steps = (draw(st.sampled_from(sizes)) for sizes in ([2, 4, 6], [8, 16], [2, 4]))
    shapes = {"i": rows, "j": columns, "k": steps}
    dims = (
        ["ik", "kj" if dtype.is_float else "jk"] if fits else [draw(st.permutations(d)) for d in ("ik", "kj")]
    )
    if fits and not dtype.is_float:
        shapes["k"] = steps = 2
    b = FuncBuilder("product")
    x, y = (b.param(n, [shapes[d] for d in order], dtype) for n, order in zip("AB", dims, strict=True))

    def term(i: Expr, j: Expr, k: Expr) -> Expr | tuple[Expr, Expr]:
        at = {"i": i, "j": j, "k": k}
        p, q = (z[tuple(at[d] for d in order)] for z, order in zip((x, y), dims, strict=True))
        if dtype.is_float:
            return (p, q) if swapped else (q, p)
        p, q = cast(DType.I32, p), cast(DType.I32, q)
        return p * q if swapped else q * p

    swapped = draw(st.booleans())
    return b.finish(b.reduce("C", (rows, columns), (steps,), term))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_refused_or_the_same(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([DType.F32, DType.I16]))
    fits = data.draw(st.booleans())  # else anything
    func = data.draw(a_product(dtype, fits))
    s = Schedule(single(func))
    if dtype is DType.F32:
        s.cache_write("C", "C", Scope.REGISTER)
    names = ["C_i", "C_j", "C_k"]
    fitting = {"C_j": 8, "C_k": 2} if dtype is DType.I16 else {}
    for name in list(names):
        factors = [f for f in (1, 2, 4, 8) if find_loop(s.module.funcs[0], name).extent % f == 0]
        factor = fitting.get(name) if fits else data.draw(st.sampled_from([None, *factors]))
        if factor is not None:
            names.remove(name)
            names += s.split(name, (None, factor))
    names = data.draw(st.permutations(names))
    if fits:
        last = ("C_j_1", "C_k_1") if dtype is DType.I16 else ("C_i", "C_j")
        names.sort(key=lambda n: n.startswith(last))
    s.reorder(*names)
    outer = next(n for n in names if n.startswith("C_k"))
    s.decompose_reduction("C", outer)
    plain = s.module.funcs[0]
    below = names[names.index(outer) :]
    at = below[-2] if fits and dtype is DType.I16 else data.draw(st.sampled_from(below))
    extents = {n.var.name: n.extent for n in chain(find_loop(plain, at))}
    rows, columns = (int(np.prod([e for n, e in extents.items() if n.startswith(p)])) for p in ("C_i", "C_j"))
    name = f"x86.f32.tile_{rows}x{columns}" if dtype is DType.F32 else "x86.i16.dot2_8"
    try:
        s.tensorize(at, name)
    except ScheduleError as e:
        assert f"Tensorize(at={at!r}, intrinsic={name!r}): " in str(e)
        return
    done = s.module.funcs[0]
    verify_func(done)
    rng = np.random.default_rng(0)
    a, b = (
        rng.standard_normal(p.shape).astype(np.float32)
        if p.dtype.is_float
        else rng.integers(-(2**15), 2**15, p.shape, np.int16)
        for p in func.params[:2]
    )
    (expected,) = run_func(plain, a, b)
    np.testing.assert_array_equal(bits(run_func(done, a, b)[0]), bits(expected))
    if dtype is DType.F32:
        assert any(n.kind is LoopKind.VECTORIZED for n in loops(done.body))
    else:
        assert any(isinstance(n, Emit) for n in walk_stmts(done.body))
        np.testing.assert_array_equal(run_native(done, [a, b], BEST)[0], expected)

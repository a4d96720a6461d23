"""A program around each tensor intrinsic: its output is loaded, the intrinsic adds to it, and it is stored."""

import numpy as np
from numpy.random import Generator

from tilewright.ir.expr import Buffer, Expr, Scope, Var, maximum, minimum
from tilewright.schedule.steps import Tensorize
from tilewright.schedule.trace import replay
from tilewright.support.arrays import Array
from tilewright.target.intrinsic import Intrinsic
from tilewright.tir.func import Func, single
from tilewright.tir.rewrite import redirect
from tilewright.tir.stmt import Block, For, Iter, LoopKind, Stmt, Store, seq


def meaning_of(intrinsic: Intrinsic, scope: Scope, *, is_clamped: bool = True) -> Func:
    """The program, not tensorized. The accumulators are in `scope`. Operands that lie within bounds are clamped."""
    out, *inputs = intrinsic.meaning.params
    start, result = Buffer("start", out.shape, out.dtype), Buffer("result", out.shape, out.dtype)
    acc = Buffer("acc", out.shape, out.dtype, scope)
    clamped = {
        p: (Buffer(f"{p.name}_clamped", p.shape, p.dtype, Scope.LOCAL), o.within)
        for p, o in zip(intrinsic.meaning.params, intrinsic.operands, strict=True)
        if o.within is not None and is_clamped
    }
    nest = redirect(intrinsic.meaning.body, {out: acc, **{p: b for p, (b, _) in clamped.items()}})
    before = [_copy(f"clamp_{p.name}", b, p, within) for p, (b, within) in clamped.items()]
    # One loop around all, for registers live inside of a kernel, and each nest may become one.
    body = For(Var("once"), 1, seq(*before, _copy("load", acc, start), nest, _copy("store", result, acc)))
    name = intrinsic.name.replace(".", "_")
    buffers = (acc, *(b for b, _ in clamped.values()))
    return Func(name, (start, *inputs, result), buffers, body, (result,))


def tensorized(intrinsic: Intrinsic, scope: Scope) -> Func:
    step = Tensorize(intrinsic.loops[0].var.name, intrinsic.name)
    return replay(single(meaning_of(intrinsic, scope)), (step,)).funcs[0]


def _copy(name: str, to: Buffer, of: Buffer, within: tuple[int, int] | None = None) -> Stmt:
    loops = [Var(f"{name}_{d}") for d in range(len(to.shape))]
    iters = tuple(Iter(Var(f"{name}_v{d}"), n) for d, n in enumerate(to.shape))
    at: tuple[Expr, ...] = tuple(it.var for it in iters)
    value: Expr = of[at]
    if within is not None:
        value = minimum(maximum(value, within[0]), within[1])
    nest: Stmt = Block(name, iters, tuple(loops), Store(to, at, value))
    for v, n in reversed(list(zip(loops, to.shape, strict=True))):
        nest = For(v, n, nest, LoopKind.UNROLLED)
    return nest


def inputs_of(func: Func, kind: str, rng: Generator) -> list[Array]:
    """Arrays of random values, or of values from the ends of the range: for floats with the special ones."""
    found: list[Array] = []
    for p in func.params:
        if p in func.outputs:
            continue
        if p.dtype.is_float:
            a = rng.standard_normal(p.shape).astype(p.dtype.numpy)
            if kind == "extreme":
                odd = np.array(
                    [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3.4e38, 1e-30], p.dtype.numpy
                )
                a = np.where(rng.random(p.shape) < 0.3, rng.choice(odd, p.shape), a)
        else:
            info = np.iinfo(p.dtype.numpy)
            a = rng.integers(info.min, info.max, p.shape, p.dtype.numpy, endpoint=True)
            if kind == "extreme":
                a = rng.choice(np.array([info.min, info.max], p.dtype.numpy), p.shape)
        found.append(a)
    return found

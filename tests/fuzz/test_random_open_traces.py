"""Random traces over functions with open dimensions keep their meaning at every size, or are refused.

A case is a random function, whose reductions, products and windows go over open dimensions, and random steps. What lies
beyond the size in use is NaN, or a large number. The interpreter gives the same for the original and the scheduled
function, before and after lowering, and native code does: where outputs are in use.
"""

import contextlib
import random
from collections.abc import Sequence

import numpy as np
import pytest

from tests.fuzz.random_funcs import random_func
from tests.fuzz.test_random_traces import draw_trace, schedule, unbound
from tests.native import run_native
from tilewright.ir.expr import Buffer, DimSize, Expr, Scope, const
from tilewright.ir.rewrite import transform
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.trace import Trace, print_trace
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.support.sizes import Dim, SizeError, sym_int
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.passes.place_sizes import size_name
from tilewright.tir.printer import print_func

QUICK, SEEDS = 4, 6  # tests, each of as many seeds
_FAR = 1_000_003  # what integers are beyond the size in use


def open_func(seed: int) -> tuple[Func, tuple[Dim, ...]] | None:
    """A function of one or two open dimensions; None if a size may be less than one."""
    rng = random.Random(seed)
    dims = tuple(
        Dim(name, rng.choice((1, 2, 4)), rng.choice((5, 7, 9))) for name in "nm"[: rng.choice((1, 1, 2))]
    )
    try:
        func = random_func(seed, [sym_int(d) for d in dims])
    except SizeError:
        return None
    least = {d.name: d.least for d in dims}
    every = [_size(e, least) for b in (*func.params, *func.locals) for e in b.sizes if e is not None]
    return (func, dims) if min(every, default=0) >= 1 else None


def _size(e: Expr, sizes: dict[str, int]) -> int:
    known = transform(e, lambda n: const(sizes[n.name]) if isinstance(n, DimSize) else None)
    return int(Simplifier({}).bounds(known).hi)


def used(b: Buffer, sizes: dict[str, int]) -> tuple[slice, ...]:
    return tuple(slice(None if e is None else _size(e, sizes)) for e in b.sizes)


def inputs_at(func: Func, sizes: dict[str, int], rng: np.random.Generator) -> list[Array]:
    """Numbers where the inputs are in use, and what must not matter elsewhere."""
    found: list[Array] = []
    for p in func.params:
        if p in func.outputs:
            continue
        name = size_name(p)
        if name is not None:
            found.append(np.array([sizes[name]], np.int64))
            continue
        whole = np.full(p.shape, np.nan if p.dtype.is_float else _FAR, p.dtype.numpy)
        part = whole[used(p, sizes)]
        if p.dtype.is_float:
            part[...] = rng.standard_normal(part.shape)
        else:
            part[...] = rng.integers(-9, 10, part.shape)
        found.append(whole)
    return found


def failure(func: Func, dims: Sequence[Dim], tried: Trace, seed: int) -> str | None:
    """What is wrong after these steps, at some size; None if nothing is."""
    rng = np.random.default_rng(seed)
    try:
        done, _, _ = schedule(func, tried)
        for turn in range(5):
            sizes = {
                d.name: (d.most, d.least)[turn] if turn < 2 else int(rng.integers(d.least, d.most + 1))
                for d in dims
            }
            inputs = inputs_at(func, sizes, rng)
            want = run_func(func, *inputs)
            compare(f"scheduled at {sizes}", func, want, run_func(done, *inputs), sizes)
            if not any(b.scope is Scope.REGISTER for b in done.locals):
                with contextlib.suppress(UserError):  # local memory that two nests share cannot be compiled
                    compare(f"native at {sizes}", func, want, run_native(unbound(done), inputs), sizes)
    except Exception as e:  # whatever it is, it is not a refusal
        return f"{type(e).__name__}: {e}"
    return None


def compare(
    what: str, func: Func, want: Sequence[Array], got: Sequence[Array], sizes: dict[str, int]
) -> None:
    for o, a, b in zip(func.outputs, want, got, strict=True):
        at = used(o, sizes)
        if o.dtype.is_float:
            np.testing.assert_allclose(b[at], a[at], rtol=1e-4, atol=1e-4, err_msg=what)
        else:
            np.testing.assert_array_equal(b[at], a[at], err_msg=what)


def fails_closed(seed: int, dims: Sequence[Dim], tried: Trace) -> bool:
    """Does a step fail on the function of the largest sizes, too? Then it is not for its open dimensions."""
    return failure(random_func(seed, [d.most for d in dims]), (), tried, seed) is not None


def check_seed(seed: int) -> str | None:
    made = open_func(seed)
    if made is None:
        return None
    func, dims = made
    tried = draw_trace(func, random.Random(seed))
    wrong = failure(func, dims, tried, seed)
    if wrong is None or fails_closed(seed, dims, tried):
        return None
    kind = wrong.split(":")[0]
    for n in reversed(range(len(tried))):
        shorter = (*tried[:n], *tried[n + 1 :])
        if (failure(func, dims, shorter, seed) or "").startswith(kind):
            tried = shorter
    return f"seed {seed}: {failure(func, dims, tried, seed)}\n{print_trace(tried)}\n{print_func(func)}"


def check(seeds: range) -> None:
    failures = [f for f in map(check_seed, seeds) if f is not None]
    assert not failures, "\n\n".join(failures)


@pytest.mark.parametrize("n", range(QUICK))
def test_random_open_traces(n: int) -> None:
    check(range(n * SEEDS, (n + 1) * SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("n", range(40))
def test_many_random_open_traces(n: int) -> None:
    check(range(10_000 + n * 50, 10_000 + (n + 1) * 50))


def test_most_functions_have_open_dimensions_that_are_followed() -> None:
    made = [open_func(seed) for seed in range(60)]
    assert sum(m is not None for m in made) > 40

"""Any trace that is not refused keeps the meaning of a program; what is refused is refused in good order.

A case is a random function and random steps, over all steps there are. After each step the debug mode checks the rules
and conditions of programs. At the end the interpreter gives the same for the original and the scheduled function, and
native code gives the same for the scheduled one: integers exactly; floats to the bit, as long as no step adds in
another order. A failure prints its seed and the shortest trace that shows it.
"""

import contextlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest

from tests.fuzz.random_funcs import random_func
from tests.fuzz.random_steps import FIELDS, random_step
from tests.native import bits, run_native
from tilewright.ir.expr import Scope, const, free_vars
from tilewright.schedule.find import path_to
from tilewright.schedule.sampling import SamplingStep
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    STEPS,
    ComputeAt,
    FuseIters,
    Rfactor,
    RollingBuffer,
    RollingUpdate,
    SampleCategorical,
    StreamRows,
    StreamWindows,
)
from tilewright.schedule.trace import Trace, parse_trace, print_trace
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.compare import same_func
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.parser import parse_func
from tilewright.tir.printer import print_func
from tilewright.tir.rewrite import substitute_stmt, transform_stmt
from tilewright.tir.stmt import For, IterKind, LoopKind, Stmt, blocks

QUICK, SEEDS = 6, 5  # tests, each of as many seeds
ATTEMPTS = 25  # steps that are tried on one function; some six of them are legal


# --------------------------------------------------------------------------------------------------------------- cases


def reduction_orders(func: Func) -> dict[str, list[str]]:
    """For each block, the loops that feed its reduce iterators, outermost first."""
    out: dict[str, list[str]] = {}
    for b in blocks(func.body):
        pairs = zip(b.iters, b.bindings, strict=True)
        used = {v for it, e in pairs if it.kind is IterKind.REDUCE for v in free_vars(e)}
        out[b.name] = [
            n.var.name for n in path_to(func.body, b) if isinstance(n, For) and n.var in used and n.extent > 1
        ]
    return out


def reassociates(step: Step, before: Func, after: Func) -> bool:
    """May the step have changed the order in which a reduction adds?"""
    if isinstance(step, Rfactor | RollingUpdate | StreamRows | StreamWindows):
        return True
    if isinstance(step, SampleCategorical) and "Rfactor" in str(step):
        return True
    if isinstance(step, FuseIters):  # its loops have new names, so their order is that of the iterators
        (block,) = [b for b in blocks(before.body) if b.name == step.block]
        reduce = [it.var.name for it in block.iters if it.kind is IterKind.REDUCE]
        at = [reduce.index(n) for n in step.iters if n in reduce]
        if at and at != list(range(at[0], at[0] + len(at))):
            return True
    old, new = reduction_orders(before), reduction_orders(after)
    for name, order in new.items():
        common = [n for n in old.get(name, ()) if n in order]
        if common != [n for n in order if n in common]:
            return True
    return False


def schedule(func: Func, trace: Trace) -> tuple[Func, Trace, bool]:
    """`func` after those steps of the trace that apply, these steps, and whether the bits of floats may differ."""
    s = Schedule(func, debug=True)
    inexact = False
    for step in trace:
        before = s.module
        if isinstance(step, SamplingStep):
            with contextlib.suppress(UserError):
                step.choices(s.module)
        try:
            s.apply(step)
        except UserError as e:
            assert str(step) in str(e), f"the refusal does not name the step {step}: {e}"
            assert s.module is before
            continue
        inexact = inexact or reassociates(step, before.funcs[0], s.func)
    return s.func, s.trace, inexact


def windows(func: Func, rng: random.Random) -> list[Step]:
    """A producer moves under a loop of its consumer and keeps what the next iteration needs: chance alone rarely does
    both. Empty if there is no such place.
    """
    flow = Dataflow(func)
    places = [
        (b, n.var.name)
        for b in blocks(func.body)
        for c in flow.consumers(b)
        for n in path_to(func.body, c)
        if isinstance(n, For)
    ]
    for producer, loop in rng.sample(places, len(places)):
        steps = [ComputeAt(producer.name, loop), RollingBuffer(producer.name, flow.writes(producer)[0].name)]
        s = Schedule(func)
        with contextlib.suppress(UserError):
            for step in steps:
                s.apply(step)
            return steps
    return []


def draw_trace(func: Func, rng: random.Random) -> Trace:
    """Steps that were tried; the legal ones change what the later ones are drawn from."""
    s = Schedule(func)
    tried: list[Step] = []
    first = windows(func, rng) if rng.random() < 0.7 else []
    for _ in range(rng.randint(1, ATTEMPTS)):
        step = first.pop(0) if first else random_step(rng, s.module)
        tried.append(step)
        try:
            s.apply(step)
        except UserError:
            pass
        except Exception:
            return tuple(tried)  # `failure` meets it again, and tells
    return tuple(tried)


def inputs_of(func: Func, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(p.shape).astype(p.dtype.numpy)
        if p.dtype.is_float
        else rng.integers(-9, 10, p.shape).astype(p.dtype.numpy)
        for p in func.params
        if p not in func.outputs
    ]


def backwards(func: Func) -> Func:
    """Loops that promise independent iterations as serial ones that count down."""

    def turn(s: Stmt) -> Stmt | None:
        if isinstance(s, For) and s.kind.is_at_once:
            return For(s.var, s.extent, substitute_stmt(s.body, {s.var: const(s.extent - 1) - s.var}))
        return None

    return func.with_body(transform_stmt(func.body, turn))


def unbound(func: Func) -> Func:
    """Loops on the axes of a GPU as serial ones: there is native code for CPUs only."""

    def turn(s: Stmt) -> Stmt | None:
        return replace(s, kind=LoopKind.SERIAL) if isinstance(s, For) and s.kind.is_thread_axis else None

    return func.with_body(transform_stmt(func.body, turn))


def failure(func: Func, tried: Trace, seed: int, *, native: bool) -> str | None:
    """What is wrong after these steps; None if nothing is."""
    try:
        done, trace, inexact = schedule(func, tried)
        assert same_func(parse_func(print_func(done)), done), "the text reads back as another function"
        assert parse_trace(print_trace(trace)) == trace, "the text reads back as another trace"
        inputs = inputs_of(func, seed)
        want, got = run_func(func, *inputs), run_func(done, *inputs)
        compare("scheduled", want, got, exact=not inexact)
        compare("backwards", got, run_func(backwards(done), *inputs), exact=True)
        if native and not any(b.scope is Scope.REGISTER for b in done.locals):
            with contextlib.suppress(UserError):  # local memory that two nests share cannot be compiled
                compare("native", got, run_native(unbound(done), inputs), exact=True)
    except Exception as e:  # whatever it is, it is not a refusal
        return f"{type(e).__name__}: {e}"
    return None


def compare(what: str, want: Sequence[Array], got: Sequence[Array], *, exact: bool) -> None:
    for a, b in zip(want, got, strict=True):
        if exact:
            np.testing.assert_array_equal(bits(b), bits(a), err_msg=what)
        else:
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4, err_msg=what)


def shortest(func: Func, tried: Trace, seed: int, kind: str, *, native: bool) -> Trace:
    """Steps left out as long as it still fails in the same way."""
    n = len(tried) - 1
    while n >= 0:
        shorter = (*tried[:n], *tried[n + 1 :])
        if (failure(func, shorter, seed, native=native) or "").startswith(kind):
            tried = shorter
        n -= 1
    return tried


def check_seed(seed: int, *, native: bool) -> str | None:
    func, rng = random_func(seed), random.Random(seed)
    tried = draw_trace(func, rng)
    wrong = failure(func, tried, seed, native=native)
    if wrong is None:
        return None
    tried = shortest(func, tried, seed, wrong.split(":")[0], native=native)
    wrong = failure(func, tried, seed, native=native) or wrong
    return f"seed {seed}: {wrong}\n{print_trace(tried)}\n{print_func(func)}"


def check(seeds: range, *, native: bool) -> None:
    failures = [f for f in (check_seed(s, native=native) for s in seeds) if f is not None]
    assert not failures, "\n\n".join(failures)


# --------------------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("n", range(QUICK))
def test_random_traces(n: int) -> None:
    check(range(n * SEEDS, (n + 1) * SEEDS), native=n % 2 == 0)


@pytest.mark.parametrize("seed", [126, 272, 372])
def test_traces_that_once_failed(seed: int) -> None:
    """Windows over what nobody reads, and over what is not stored at its axes; a part that has the rest of elements."""
    check(range(seed, seed + 1), native=False)


@pytest.mark.slow
@pytest.mark.parametrize("n", range(60))
def test_many_random_traces(n: int) -> None:
    check(range(10_000 + n * 50, 10_000 + (n + 1) * 50), native=True)


def test_every_step_can_be_drawn_and_most_are_legal_somewhere() -> None:
    missing = {f.name for cls in STEPS for f in fields(cls)} - FIELDS.keys()
    assert not missing, f"tests/fuzz/random_steps.py does not draw the fields {missing}"
    legal = Counter[str]()
    for seed in range(60):
        _, trace, _ = schedule(random_func(seed), draw_trace(random_func(seed), random.Random(seed)))
        legal.update(type(s).__name__ for s in trace)
    assert len(legal) >= len(STEPS) * 2 // 3, sorted({c.__name__ for c in STEPS} - legal.keys())

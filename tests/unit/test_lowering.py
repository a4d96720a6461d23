"""Lowering: each pass keeps the meaning of any scheduled program, and does what it says."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from native import TARGETS, bits, check_same_bits, kernels_of, program, target_name
from schedule_programs import PROGRAMS
from test_steps_property import a_step

from tilewright.codegen.kernel import kernel_ir
from tilewright.codegen.legalize import legalize
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Fma, Scope, Unary, UnaryOp
from tilewright.ir.expr import walk as walk_expr
from tilewright.schedule.schedule import Schedule
from tilewright.search.default import schedule_func
from tilewright.support.arrays import Array
from tilewright.support.errors import ScheduleError
from tilewright.target.target import AVX2, BASELINE, Target
from tilewright.tir import pipeline
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.interp import interpret_func, poisoned_array
from tilewright.tir.parser import parse_func
from tilewright.tir.passes.carry_stored import carry_stored
from tilewright.tir.passes.compact_buffers import compact_buffers
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.passes.place_allocations import place_allocations
from tilewright.tir.passes.simplify import simplify_func
from tilewright.tir.passes.split_phases import split_phases
from tilewright.tir.passes.unroll_loops import unroll_loops
from tilewright.tir.pipeline import PhaseMemo, lower_func
from tilewright.tir.printer import print_func
from tilewright.tir.stmt import Alloc, For, Seq, loops, stmt_exprs, walk_stmts
from tilewright.tir.verify import verify_func


def inputs_of(func: Func) -> dict[Buffer, Array]:
    rng = np.random.default_rng(7)
    return {
        p: rng.standard_normal(p.shape).astype(p.dtype.numpy)
        if p.dtype.is_float
        else rng.integers(-9, 10, p.shape).astype(p.dtype.numpy)
        for p in func.params
        if p not in func.outputs
    }


def outputs_of(func: Func, *phases: Func, shared: tuple[Buffer, ...] = ()) -> list[Array]:
    """The outputs of `func` as its phases compute them (or it itself), in the interpreter."""
    arrays = inputs_of(func) | {b: poisoned_array(b) for b in (*func.outputs, *shared)}
    for phase in phases or (func,):
        interpret_func(phase, {p: arrays[p] for p in phase.params})
    return [arrays[o] for o in func.outputs]


def assert_same_bits(actual: list[Array], expected: list[Array], what: str) -> None:
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(bits(a), bits(e), err_msg=what)


@st.composite
def scheduled(draw: st.DrawFn) -> Func:
    """A program after some legal steps."""
    s = Schedule(single(PROGRAMS[draw(st.sampled_from(sorted(PROGRAMS)))]))
    for _ in range(draw(st.integers(0, 8))):
        try:
            s.apply(draw(a_step(s.module.funcs[0])))
        except ScheduleError:
            continue
    return s.module.funcs[0]


relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck))


# ------------------------------------------------------------------------------------------------- any program


@settings(relaxed, max_examples=25)
@given(scheduled())
def test_every_pass_keeps_every_bit(func: Func) -> None:
    expected = outputs_of(func)
    lowered = lower_blocks(func)
    assert_same_bits(outputs_of(lowered), expected, "lower_blocks")
    tidy = simplify_func(lowered)
    assert_same_bits(outputs_of(tidy), expected, "simplify")
    assert_same_bits(outputs_of(place_allocations(tidy)), expected, "place_allocations")
    nests = tidy.body if isinstance(tidy.body, Seq) else Seq((tidy.body,))
    phases, shared = split_phases(tidy.with_body(nests))
    kernels = [p.func for p in phases]
    assert_same_bits(outputs_of(func, *kernels, shared=shared), expected, "split_phases")
    for p in (compact_buffers, *pipeline.AFTER_SPLIT):
        kernels = [p(k) for k in kernels]
        assert_same_bits(outputs_of(func, *kernels, shared=shared), expected, p.__name__)


@settings(relaxed, max_examples=30)
@given(scheduled())
def test_lowered_kernels_keep_the_rules_and_every_bit(func: Func) -> None:
    phases, shared = lower_func(func)
    for p in phases:
        verify_func(p.func, lowered=True)
        assert not p.func.locals
        assert {*p.reads, *p.writes} == {*p.func.params}
    assert_same_bits(outputs_of(func, *(p.func for p in phases), shared=shared), outputs_of(func), "lower")


@settings(relaxed, max_examples=30)
@given(scheduled(), st.sampled_from(TARGETS))
def test_native_code_and_interpreter_agree_to_the_bit(func: Func, target: Target) -> None:
    assume(not any(n.kind.is_thread_axis for n in loops(func.body)))  # native code is for CPUs
    kernels, shared = kernels_of(func, target)
    arrays = inputs_of(func) | {b: poisoned_array(b) for b in (*func.outputs, *shared)}
    for kernel in kernels:
        arrays |= check_same_bits(kernel, {p: arrays[p] for p in kernel.params}, target)
    for o, expected in zip(func.outputs, outputs_of(func), strict=True):
        np.testing.assert_allclose(arrays[o], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS, ids=target_name)
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_default_schedules_agree_to_the_bit(name: str, target: Target) -> None:
    func = schedule_func(PROGRAMS[name], target).func
    kernels, shared = kernels_of(func, target)
    arrays = inputs_of(func) | {b: poisoned_array(b) for b in (*func.outputs, *shared)}
    for kernel in kernels:
        verify_func(kernel, lowered=True)
        arrays |= check_same_bits(kernel, {p: arrays[p] for p in kernel.params}, target)


# -------------------------------------------------------------------------------------------------- lower_blocks


def test_blocks_become_conditions_and_stores() -> None:
    func = parse_func("""
@func
def f(A: i32[7, 3], C: out(i32[7])):
    for i in range(4):
        for j in range(2):
            for k in range(3):
                with block("C"):
                    v = spatial(7, i * 2 + j)
                    r = reduce(3, k)
                    where(i * 2 + j < 7)
                    with init():
                        C[v] = i32(5)
                    C[v] = C[v] + A[v, r]
""")
    assert (
        body_of(lower_blocks(func))
        == """
    for i in range(4):
        for j in range(2):
            for k in range(3):
                if i * 2 + j < 7:
                    if k == 0:
                        C[i * 2 + j] = i32(5)
                    C[i * 2 + j] = C[i * 2 + j] + A[i * 2 + j, k]
"""
    )


def body_of(func: Func) -> str:
    return "\n" + print_func(func).split("):\n", 1)[1].rstrip() + "\n"


# ------------------------------------------------------------------------------------------------------ simplify


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("for i in range(1):\n  Y[i] = X[i]", "Y[0] = X[0]"),
        ("for i in range(0):\n  Y[i] = X[i]\n Y[1] = X[1]", "Y[1] = X[1]"),
        ("for i in range(4):\n  if 4 <= i:\n   Y[i] = X[i]\n Y[1] = X[1]", "Y[1] = X[1]"),
        ("for i in range(4):\n  if i < 4:\n   Y[i] = X[i]", "for i in range(4):\n  Y[i] = X[i]"),
        (
            "for i in range(2):\n  for j in range(4):\n   if i < 1 and j < 3:\n    Y[j] = X[i]",
            "for i in range(2):\n  if i < 1:\n   for j in range(4):\n    if j < 3:\n     Y[j] = X[i]",
        ),
        # A parallel loop stays outermost, even of one iteration: it says how many parts there are.
        ("for i in parallel(1):\n  Y[i] = X[i]", "for i in parallel(1):\n  Y[0] = X[0]"),
        (
            "for i in parallel(2):\n  if X[9] < 3:\n   Y[i] = X[i]",
            "for i in parallel(2):\n  if X[9] < 3:\n   Y[i] = X[i]",
        ),
        # A condition on what the loop does not write leaves it; one on what it writes may change with every iteration.
        (
            "for i in range(4):\n  if X[9] < 3:\n   Y[i] = X[i]",
            "if X[9] < 3:\n  for i in range(4):\n   Y[i] = X[i]",
        ),
        (
            "for i in range(4):\n  if Y[0] < 3:\n   Y[i] = X[i]",
            "for i in range(4):\n  if Y[0] < 3:\n   Y[i] = X[i]",
        ),
        # A loop that is left without a body goes, and so does all around it.
        (
            "for k in range(3):\n  for i in range(2):\n   if 5 < i:\n    Y[i] = X[i]\n Y[1] = X[1]",
            "Y[1] = X[1]",
        ),
    ],
)
def test_simplify(before: str, after: str) -> None:
    funcs = [program(f"def f(X: i32[16], Y: out(i32[16])):\n {t}") for t in (before, after)]
    done = simplify_func(funcs[0])
    assert print_func(done) == print_func(funcs[1])
    given = {p: np.arange(-3, 13, dtype=np.int32) for p in funcs[0].params}
    check_same_bits(done, given)


# ---------------------------------------------------------------------------------------------- place, compact


def test_a_buffer_of_one_iteration_moves_into_it_and_shrinks() -> None:
    func = program("""
def f(X: f32[8, 6], Y: out(f32[8, 6])):
    T = alloc(f32[8, 6])
    for i in range(4):
        for j in range(2):
            for k in range(6):
                T[i * 2 + j, k] = X[i * 2 + j, k] + f32(1)
        for j2 in range(2):
            for k2 in range(6):
                Y[i * 2 + j2, k2] = T[i * 2 + (1 - j2), k2]
""")
    done = compact_buffers(place_allocations(func))
    (alloc,) = (n for n in walk_stmts(done.body) if isinstance(n, Alloc))
    assert isinstance(done.body, For) and done.body.body is alloc and alloc.buffer.shape == (2, 6)
    assert_same_bits(outputs_of(done), outputs_of(func), "compact")


def test_a_running_sum_stays_outside_of_its_loop() -> None:
    func = program("""
def f(X: f32[8], Y: out(f32[8])):
    T = alloc(f32[9])
    for i in range(8):
        T[i + 1] = select(i == 0, f32(0), T[i]) + X[i]
        Y[i] = T[i + 1]
""")
    done = compact_buffers(place_allocations(func))
    assert isinstance(done.body, Alloc) and done.body.buffer.size >= 8
    assert_same_bits(outputs_of(done), outputs_of(func), "place")


def test_an_accumulator_stays_outside_of_its_reduction() -> None:
    func = program("""
def f(X: f32[4, 8], Y: out(f32[4])):
    T = alloc(f32[4])
    for i in range(4):
        for k in range(8):
            if k == 0:
                T[i] = f32(0)
            T[i] = T[i] + X[i, k]
        Y[i] = T[i]
""")
    done = compact_buffers(place_allocations(func))
    assert isinstance(done.body, For) and isinstance(done.body.body, Alloc)
    assert done.body.body.buffer.shape == (1,)
    assert_same_bits(outputs_of(done), outputs_of(func), "place")


def test_overlapping_windows_that_are_filled_first_are_private() -> None:
    """A halo: iterations touch the same elements, but each fills what it reads."""
    func = program("""
def f(X: f32[12], Y: out(f32[5])):
    T = alloc(f32[12])
    for i in range(5):
        for r in range(4):
            T[i * 2 + r] = X[i * 2 + r] * f32(3)
        Y[i] = T[i * 2] + T[i * 2 + 3]
""")
    done = compact_buffers(place_allocations(func))
    (alloc,) = (n for n in walk_stmts(done.body) if isinstance(n, Alloc))
    assert isinstance(done.body, For) and alloc.buffer.shape == (4,)
    assert_same_bits(outputs_of(done), outputs_of(func), "place")


def test_an_index_that_reads_memory_is_not_compacted() -> None:
    func = program("""
def f(X: f32[8], I: i64[4], Y: out(f32[4])):
    for i in range(4):
        with alloc(f32[8], "local") as T:
            for j in range(8):
                T[j] = X[j] * f32(2)
            Y[i] = T[I[i]]
""")
    arrays = {
        p: a
        for p, a in zip(func.params, (np.arange(8, dtype=np.float32), np.array([7, 0, 3, 3])), strict=False)
    }
    arrays[func.params[2]] = poisoned_array(func.params[2])
    done = compact_buffers(func)
    assert [n.buffer.shape for n in walk_stmts(done.body) if isinstance(n, Alloc)] == [(8,)]
    assert check_same_bits(done, arrays)[func.params[2]].tolist() == [14, 0, 6, 6]


def test_an_unused_allocation_goes() -> None:
    func = program('def f(Y: out(f32[1])):\n    with alloc(f32[8], "local") as T:\n        Y[0] = f32(1)\n')
    assert not any(isinstance(n, Alloc) for n in walk_stmts(compact_buffers(func).body))


# ---------------------------------------------------------------------------------------------------- unroll_loops


def test_unrolled_loops_become_sequences() -> None:
    func = program("""
def f(X: f32[2, 3], Y: out(f32[2, 3])):
    for i in unrolled(2):
        for j in unrolled(3):
            Y[i, j] = X[i, j]
""")
    done = unroll_loops(func)
    assert not list(loops(done.body)) and len(list(walk_stmts(done.body))) == 7
    assert_same_bits(outputs_of(done), outputs_of(func), "unroll")


# ---------------------------------------------------------------------------------------------------- split_phases


def test_each_nest_is_a_kernel_and_what_flows_between_them_is_shared() -> None:
    b = FuncBuilder("f")
    x = b.param("X", (4, 8), DType.F32)
    t = b.compute("T", (4, 8), lambda i, j: x[i, j] + 1.0)
    func = b.finish(b.compute("Y", (8, 4), lambda i, j: t[j, i]))
    phases, shared = lower_func(func)
    assert [p.func.name for p in phases] == ["f_0", "f_1"] and [s.name for s in shared] == ["T"]
    assert [[b.name for b in p.reads] for p in phases] == [["X"], ["T"]]
    assert [[b.name for b in p.writes] for p in phases] == [["T"], ["Y"]]


def test_fills_that_follow_each_other_are_one_kernel() -> None:
    func = parse_func("""
@func
def f(X: f32[4], A: out(f32[8]), Y: out(f32[4])):
    for i in range(2):
        A[i] = 0.0
    for j in range(2):
        A[j + 6] = 1.0
    for k in range(4):
        A[k + 2] = X[k]
    for m in parallel(4):
        Y[m] = 2.0
""")
    phases, _ = lower_func(func)
    assert [[b.name for b in p.writes] for p in phases] == [["A"], ["A"], ["Y"]]


def test_registers_used_by_two_nests_are_refused() -> None:
    func = parse_func("""
@func
def f(X: f32[4], Y: out(f32[4])):
    T = alloc(f32[4], "register")
    for i in vectorized(4):
        T[i] = X[i]
    for j in vectorized(4):
        Y[j] = T[j]
""")
    with pytest.raises(ScheduleError, match="f: T in register scope is used by two nests"):
        lower_func(func)


def test_local_memory_carried_between_parts_is_refused() -> None:
    func = parse_func("""
@func
def f(X: f32[4], Y: out(f32[4])):
    T = alloc(f32[1], "local")
    for i in parallel(4):
        T[0] = X[i]
        Y[i] = T[0]
""")
    with pytest.raises(
        ScheduleError, match="f: T in local scope is carried between iterations of the parallel loop i"
    ):
        lower_func(func)


def test_memory_of_a_serial_nest_belongs_to_its_worker() -> None:
    func = parse_func("""
@func
def f(X: f32[4], Y: out(f32[4])):
    T = alloc(f32[1])
    for i in range(4):
        T[0] = X[i]
        Y[i] = T[0]
""")
    (phase,), shared = lower_func(func)
    assert not shared
    assert [n.buffer.scope for n in walk_stmts(phase.func.body) if isinstance(n, Alloc)] == [Scope.LOCAL]


# ------------------------------------------------------------------------------------------------------- pipeline


def test_passes_run_in_this_order() -> None:
    assert (lower_blocks, simplify_func) == pipeline.BEFORE_SPLIT
    assert (unroll_loops, simplify_func, carry_stored) == pipeline.AFTER_SPLIT


def test_a_target_keeps_only_operations_that_it_has() -> None:
    func = program("""
def f(X: f32[8], Y: out(f32[8])):
    for i in vectorized(8):
        Y[i] = floor(fma(exp(X[i]), X[i], X[i]))
""")
    for p in legalize(BASELINE):
        func = p(func)
    nodes = {n for s in walk_stmts(func.body) for e in stmt_exprs(s) for n in walk_expr(e)}
    assert not any(isinstance(n, Fma) for n in nodes)
    assert {n.op for n in nodes if isinstance(n, Unary)} <= {UnaryOp.ABS, UnaryOp.NEG}


SMALL_MATMUL = """
@func
def matmul(A: f32[4, 6], B: f32[6, 8], D: out(f32[4, 8])):
    C = alloc(f32[4, 8], "register")
    for i in parallel(2):
        for i0 in unrolled(2):
            for j0 in vectorized(8):
                with block("zero"):
                    zi = spatial(4, i * 2 + i0)
                    zj = spatial(8, j0)
                    C[zi, zj] = f32(0)
        for k in range(6):
            for i1 in unrolled(2):
                for j1 in vectorized(8):
                    with block("C"):
                        ci = spatial(4, i * 2 + i1)
                        cj = spatial(8, j1)
                        ck = reduce(6, k)
                        C[ci, cj] = fma(A[ci, ck], B[ck, cj], C[ci, cj])
        for i2 in unrolled(2):
            for j2 in vectorized(8):
                with block("D"):
                    di = spatial(4, i * 2 + i2)
                    dj = spatial(8, j2)
                    D[di, dj] = select(C[di, dj] < 0, f32(0), C[di, dj])
"""


def small_matmul() -> Func:
    (phase,), shared = lower_func(parse_func(SMALL_MATMUL), legalize(AVX2))
    assert not shared
    return phase.func


def test_golden_lowered(golden: Callable[[str, str], None]) -> None:
    golden("lowered_matmul.tir", print_func(small_matmul()))


def test_golden_llvm(golden: Callable[[str, str], None]) -> None:
    golden("matmul.ll", kernel_ir(small_matmul()))


def test_emission_is_the_same_every_time() -> None:
    """Names and order depend on nothing but the program: objects are cached by their text."""
    assert kernel_ir(small_matmul()) == kernel_ir(small_matmul())


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_phases_that_are_remembered_are_those_that_would_be_made(name: str) -> None:
    func, memo = PROGRAMS[name], PhaseMemo()
    phases, shared = lower_func(func)
    for _ in range(2):
        again, also_shared = lower_func(parse_func(print_func(func)), memo=memo)
        assert [print_func(p.func) for p in again] == [print_func(p.func) for p in phases]
        assert also_shared == shared
    known, _ = lower_func(func, memo=memo)
    assert all(a.func is b.func for a, b in zip(known, again, strict=True))

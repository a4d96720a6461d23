"""Programs in the plain form keep their meaning under any legal trace: what is inferred of them is true."""

import contextlib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schedule_programs import check
from test_steps_property import a_step

import tilewright as tw
from tilewright.schedule.schedule import Schedule
from tilewright.support.errors import ScheduleError
from tilewright.tir.script import func


@tw.func
def init_in_a_nest_of_its_own(A: tw.i32[4, 6], B: tw.i32[6, 5], C: tw.out(tw.i32[4, 5])):
    for i, j in tw.grid(4, 5):
        C[i, j] = 0
    for i, j, k in tw.grid(4, 5, 6):
        C[i, j] += A[i, k] * B[k, j]


@tw.func
def init_in_the_loop(A: tw.i32[4, 6], C: tw.out(tw.i32[4]), D: tw.out(tw.i32[4, 6])):
    for i in range(4):
        C[i] = 0
        for k in range(6):
            C[i] += A[i, k]
        for k in range(6):
            D[i, k] = A[i, k] - C[i]


@tw.func
def diagonals(A: tw.i32[4], B: tw.i32[5], C: tw.out(tw.i32[8])):
    for i in range(8):
        C[i] = 0
    for i, j in tw.grid(4, 5):
        C[i + j] += A[i] * B[j]


@tw.func
def prefix_sums(A: tw.i32[6], C: tw.out(tw.i32[6])):
    C[0] = A[0]
    for i in range(1, 6):
        C[i] = C[i - 1] + A[i]


@tw.func
def conditions(A: tw.i32[4, 6], C: tw.out(tw.i32[4, 6]), S: tw.out(tw.i32[4])):
    for i, j in tw.grid(4, 6):
        if i < j:
            C[i, j] = A[i, j]
        else:
            C[i, j] = 0 - A[i, j]
    for i, j in tw.grid(4, 6):
        with tw.init():
            S[i] = 0
        if C[i, j] > 0:
            S[i] += C[i, j]


@tw.func
def stencil(A: tw.i32[8], C: tw.out(tw.i32[6])):
    T = tw.alloc(tw.i32[8])
    for i in range(8):
        T[i] = A[i] * 3
    for i in range(6):
        left = T[i]
        C[i] = left + T[i + 1] + T[i + 2]


@tw.func
def two_updates(A: tw.i32[4, 6], C: tw.out(tw.i32[4])):
    for i in range(4):
        C[i] = 1
    for i, k in tw.grid(4, 6):
        C[i] += A[i, k]
        C[i] = max(C[i], A[i, k])


PROGRAMS = [
    init_in_a_nest_of_its_own,
    init_in_the_loop,
    diagonals,
    prefix_sums,
    conditions,
    stencil,
    two_updates,
]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_legal_trace_keeps_the_meaning(data: st.DataObject) -> None:
    program = data.draw(st.sampled_from(PROGRAMS))
    s = Schedule(program)
    for _ in range(data.draw(st.integers(1, 8))):
        with contextlib.suppress(ScheduleError):
            s.apply(data.draw(a_step(s.func)))
    done = check(program, *s.trace)
    assert str(func(str(done))) == str(done)

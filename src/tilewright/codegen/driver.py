"""The native driver as LLVM IR: it runs a table of kernel calls with a team of threads.

Exported, and called by `runtime`:

    i64  tw_start(ptr job)        run a job as worker 0 with the team (the caller's thread takes part)
    ptr  tw_worker(ptr record)    the pthread entry of workers 1 … W-1: wait, run, repeat until told to quit
    void tw_run(ptr calls, i64 n, i64 worker, i64 workers)
    void tw_stop(ptr team)        wait for the job that runs, then tell the workers to quit
    void tw_pause(i64 n)          n rounds of the waiting loop, so that the runtime can turn time into rounds

The memory layout of jobs, calls and the team is `tilewright.support.driver_abi`.

How it works:

- Workers claim the parts of a call one by one, so a worker that is held up takes fewer. Which worker runs a part never
  changes what the part computes. Calls of one part are run by worker 0, in order: what one of them makes is in its
  cache for the next, and no barrier is needed between them.
- A job is published by increasing `generation`, which is also the futex word idle workers sleep on. A worker that
  is about to sleep first counts itself in `sleepers`; both sides use sequentially consistent operations, so that
  either the publisher sees the sleeper or the kernel sees the new generation. No sleeper, no system call.
- One job at a time holds `busy`. A caller that finds the team taken, or not started, runs all parts itself, with the
  same result. `tw_start` returns 1 if the team was not running (it stopped, or the process forked), else 0.
- At a barrier a worker waits until all parts since the last one are finished, not until all workers are there: one
  that holds no part holds up nobody. Workers do not wait for each other at the end of a job: they count themselves
  in `done`, and only the caller waits.
- Waiting spins with the processor's pause instruction, and after a while yields its core now and then, so that more
  workers than free cores still make progress.

The object has no undefined symbols: the two system calls (futex, sched_yield) are inline assembly. The floating-point
control register is left alone, so denormals behave as IEEE 754 says.
"""

from dataclasses import dataclass

from tilewright.support import driver_abi as abi
from tilewright.support.errors import UserError
from tilewright.target.target import Target

SPINS_BEFORE_YIELD = 2048  # tens of µs: longer than any balanced kernel's skew
YIELD_EVERY = 64  # spins, a power of two; a yield costs more than a pause, even when nobody wants the core


@dataclass(frozen=True, slots=True)
class _Machine:
    """What differs between processors: the pause instruction and Linux's system calls."""

    pause: str
    syscall: str
    syscall_constraints: str  # result; number and four arguments; clobbers
    futex: int
    sched_yield: int


_MACHINES = {
    "x86_64": _Machine(
        pause="pause",
        syscall="syscall",
        syscall_constraints="={rax},{rax},{rdi},{rsi},{rdx},{r10},~{rcx},~{r11},~{memory}",
        futex=202,
        sched_yield=24,
    ),
    "aarch64": _Machine(
        pause="isb",  # `yield` is a no-op on most cores
        syscall="svc #0",
        syscall_constraints="={x0},{x8},{x0},{x1},{x2},{x3},~{memory}",
        futex=98,
        sched_yield=124,
    ),
}

_FUTEX_WAIT_PRIVATE = 128
_FUTEX_WAKE_PRIVATE = 129
_EVERYBODY = 0x7FFFFFFF

_TEXT = """\
target triple = "{triple}"

define internal void @pause() {{
  call void asm sideeffect "{pause}", "~{{memory}}"()
  ret void
}}

define internal i64 @syscall(i64 %number, i64 %a, i64 %b, i64 %c) {{
  %r = call i64 asm sideeffect "{syscall}", "{constraints}"(i64 %number, i64 %a, i64 %b, i64 %c, i64 0)
  ret i64 %r
}}

; One round of waiting: %spin counts the rounds so far.
define internal void @wait_a_little(i64 %spin) {{
  call void asm sideeffect "{pause}", "~{{memory}}"()
  %long = icmp uge i64 %spin, {spins_before_yield}
  %low = and i64 %spin, {yield_mask}
  %turn = icmp eq i64 %low, 0
  %give = and i1 %long, %turn
  br i1 %give, label %yield, label %done
yield:
  %r = call i64 @syscall(i64 {sched_yield}, i64 0, i64 0, i64 0)
  br label %done
done:
  ret void
}}

define internal void @await(ptr %word, i32 %value) {{
entry:
  br label %look
look:
  %spin = phi i64 [ 0, %entry ], [ %next, %again ]
  %now = load atomic i32, ptr %word acquire, align 4
  %there = icmp eq i32 %now, %value
  br i1 %there, label %done, label %again
again:
  call void @wait_a_little(i64 %spin)
  %next = add i64 %spin, 1
  br label %look
done:
  ret void
}}

; Wait until all parts of the calls %first ... %last are finished.
define internal void @meet(ptr %calls, i64 %first, i64 %last) {{
entry:
  br label %next
next:
  %i = phi i64 [ %first, %entry ], [ %i1, %next ]
  %at = mul i64 %i, {call_bytes}
  %record = getelementptr i8, ptr %calls, i64 %at
  %parts_at = getelementptr i8, ptr %record, i64 {call_parts}
  %finished = getelementptr i8, ptr %record, i64 {call_finished}
  %parts = load i64, ptr %parts_at, align 8
  %parts32 = trunc i64 %parts to i32
  call void @await(ptr %finished, i32 %parts32)
  %i1 = add i64 %i, 1
  %more = icmp ule i64 %i1, %last
  br i1 %more, label %next, label %done
done:
  ret void
}}

define internal void @wake(ptr %team) {{
  %sleepers = getelementptr i8, ptr %team, i64 {sleepers}
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %none = icmp eq i32 %asleep, 0
  br i1 %none, label %done, label %call
call:
  %generation = getelementptr i8, ptr %team, i64 {generation}
  %word = ptrtoint ptr %generation to i64
  %r = call i64 @syscall(i64 {futex}, i64 %word, i64 {futex_wake}, i64 {everybody})
  br label %done
done:
  ret void
}}

define void @tw_run(ptr %calls, i64 %n, i64 %worker, i64 %workers) {{
entry:
  %shared = icmp ugt i64 %workers, 1
  %is_first = icmp eq i64 %worker, 0
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %after ]
  %first = phi i64 [ 0, %entry ], [ %first1, %after ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %call, label %done
call:
  %at = mul i64 %i, {call_bytes}
  %record = getelementptr i8, ptr %calls, i64 %at
  %fn_at = getelementptr i8, ptr %record, i64 {call_fn}
  %parts_at = getelementptr i8, ptr %record, i64 {call_parts}
  %args_at = getelementptr i8, ptr %record, i64 {call_args}
  %barrier_at = getelementptr i8, ptr %record, i64 {call_barrier}
  %claimed = getelementptr i8, ptr %record, i64 {call_claimed}
  %finished = getelementptr i8, ptr %record, i64 {call_finished}
  %fn = load ptr, ptr %fn_at, align 8
  %parts = load i64, ptr %parts_at, align 8
  %args = load ptr, ptr %args_at, align 8
  %meet = load i64, ptr %barrier_at, align 8
  %i1 = add i64 %i, 1
  %is_single = icmp ule i64 %parts, 1
  br i1 %shared, label %several, label %head
head:
  %part = phi i64 [ 0, %call ], [ %part1, %body ]
  %left = icmp slt i64 %part, %parts
  br i1 %left, label %body, label %after
body:
  call void %fn(ptr %args, i64 %part)
  %part1 = add i64 %part, 1
  br label %head
several:
  br i1 %is_single, label %single, label %claim
single:
  br i1 %is_first, label %one, label %tail
one:
  call void %fn(ptr %args, i64 0)
  store atomic i32 1, ptr %finished release, align 4
  br label %tail
claim:
  %taken = atomicrmw add ptr %claimed, i32 1 monotonic
  %mine = zext i32 %taken to i64
  %got = icmp slt i64 %mine, %parts
  br i1 %got, label %work, label %tail
work:
  call void %fn(ptr %args, i64 %mine)
  %f = atomicrmw add ptr %finished, i32 1 release
  br label %claim
tail:
  %wanted = icmp ne i64 %meet, 0
  br i1 %wanted, label %together, label %after
together:
  call void @meet(ptr %calls, i64 %first, i64 %i)
  br label %after
after:
  %first1 = phi i64 [ %first, %head ], [ %first, %tail ], [ %i1, %together ]
  br label %next
done:
  ret void
}}

; Nobody has claimed or finished anything yet.
define internal void @reset(ptr %calls, i64 %n) {{
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %clear ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %clear, label %done
clear:
  %at = mul i64 %i, {call_bytes}
  %record = getelementptr i8, ptr %calls, i64 %at
  %claimed = getelementptr i8, ptr %record, i64 {call_claimed}
  %finished = getelementptr i8, ptr %record, i64 {call_finished}
  store atomic i32 0, ptr %claimed monotonic, align 4
  store atomic i32 0, ptr %finished monotonic, align 4
  %i1 = add i64 %i, 1
  br label %next
done:
  ret void
}}

define i64 @tw_start(ptr %job) {{
entry:
  %team_at = getelementptr i8, ptr %job, i64 {job_team}
  %calls_at = getelementptr i8, ptr %job, i64 {job_calls}
  %n_at = getelementptr i8, ptr %job, i64 {job_n}
  %team = load ptr, ptr %team_at, align 8
  %calls = load ptr, ptr %calls_at, align 8
  %n = load i64, ptr %n_at, align 8
  %serial = icmp eq ptr %team, null
  br i1 %serial, label %alone, label %look
look:
  %running_at = getelementptr i8, ptr %team, i64 {running}
  %running = load atomic i32, ptr %running_at acquire, align 4
  %stopped = icmp eq i32 %running, 0
  br i1 %stopped, label %alone, label %take
take:
  %busy = getelementptr i8, ptr %team, i64 {busy}
  %pair = cmpxchg ptr %busy, i32 0, i32 1 acquire monotonic
  %taken = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %taken, label %publish, label %alone
publish:
  %done_at = getelementptr i8, ptr %team, i64 {done}
  store atomic i32 0, ptr %done_at monotonic, align 4
  %team_calls = getelementptr i8, ptr %team, i64 {calls}
  %team_n = getelementptr i8, ptr %team, i64 {n}
  store ptr %calls, ptr %team_calls, align 8
  store i64 %n, ptr %team_n, align 8
  call void @reset(ptr %calls, i64 %n)
  %generation = getelementptr i8, ptr %team, i64 {generation}
  %g = atomicrmw add ptr %generation, i32 1 seq_cst
  call void @wake(ptr %team)
  %workers_at = getelementptr i8, ptr %team, i64 {workers}
  %workers = load i64, ptr %workers_at, align 8
  call void @tw_run(ptr %calls, i64 %n, i64 0, i64 %workers)
  %workers32 = trunc i64 %workers to i32
  %others = sub i32 %workers32, 1
  call void @await(ptr %done_at, i32 %others)
  store atomic i32 0, ptr %busy release, align 4
  ret i64 0
alone:
  %missing = phi i64 [ 0, %entry ], [ 1, %look ], [ 0, %take ]
  call void @tw_run(ptr %calls, i64 %n, i64 0, i64 1)
  ret i64 %missing
}}

define ptr @tw_worker(ptr %record) {{
entry:
  %team_at = getelementptr i8, ptr %record, i64 {record_team}
  %worker_at = getelementptr i8, ptr %record, i64 {record_worker}
  %team = load ptr, ptr %team_at, align 8
  %worker = load i64, ptr %worker_at, align 8
  %generation = getelementptr i8, ptr %team, i64 {generation}
  %word = ptrtoint ptr %generation to i64
  %sleepers = getelementptr i8, ptr %team, i64 {sleepers}
  %done_at = getelementptr i8, ptr %team, i64 {done}
  %spin_at = getelementptr i8, ptr %team, i64 {spin}
  %quit_at = getelementptr i8, ptr %team, i64 {quit}
  %calls_at = getelementptr i8, ptr %team, i64 {calls}
  %n_at = getelementptr i8, ptr %team, i64 {n}
  br label %idle
idle:
  %seen = phi i32 [ 0, %entry ], [ %g, %work ]
  %limit = load atomic i64, ptr %spin_at monotonic, align 8
  br label %look
look:
  %spin = phi i64 [ 0, %idle ], [ %spin1, %again ]
  %g1 = load atomic i32, ptr %generation acquire, align 4
  %called = icmp ne i32 %g1, %seen
  br i1 %called, label %called_up, label %patience
patience:
  %patient = icmp ult i64 %spin, %limit
  br i1 %patient, label %again, label %lie_down
again:
  call void @pause()
  %spin1 = add i64 %spin, 1
  br label %look
lie_down:
  %s1 = atomicrmw add ptr %sleepers, i32 1 seq_cst
  br label %sleep
sleep:
  %seen64 = zext i32 %seen to i64
  %r = call i64 @syscall(i64 {futex}, i64 %word, i64 {futex_wait}, i64 %seen64)
  %g2 = load atomic i32, ptr %generation seq_cst, align 4
  %spurious = icmp eq i32 %g2, %seen
  br i1 %spurious, label %sleep, label %get_up
get_up:
  %s2 = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  br label %called_up
called_up:
  %g = phi i32 [ %g1, %look ], [ %g2, %get_up ]
  %quit = load atomic i32, ptr %quit_at acquire, align 4
  %leave = icmp ne i32 %quit, 0
  br i1 %leave, label %gone, label %work
work:
  %calls = load ptr, ptr %calls_at, align 8
  %n = load i64, ptr %n_at, align 8
  call void @tw_run(ptr %calls, i64 %n, i64 %worker, i64 2)
  %d = atomicrmw add ptr %done_at, i32 1 release
  br label %idle
gone:
  ret ptr null
}}

define void @tw_stop(ptr %team) {{
entry:
  %busy = getelementptr i8, ptr %team, i64 {busy}
  br label %take
take:
  %spin = phi i64 [ 0, %entry ], [ %spin1, %again ]
  %pair = cmpxchg ptr %busy, i32 0, i32 1 acquire monotonic
  %taken = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %taken, label %tell, label %again
again:
  call void @wait_a_little(i64 %spin)
  %spin1 = add i64 %spin, 1
  br label %take
tell:
  ; busy stays taken: whoever comes late runs alone
  %running_at = getelementptr i8, ptr %team, i64 {running}
  %quit_at = getelementptr i8, ptr %team, i64 {quit}
  %generation = getelementptr i8, ptr %team, i64 {generation}
  store atomic i32 0, ptr %running_at release, align 4
  store atomic i32 1, ptr %quit_at release, align 4
  %g = atomicrmw add ptr %generation, i32 1 seq_cst
  call void @wake(ptr %team)
  ret void
}}

define void @tw_pause(i64 %n) {{
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i1, %body ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %done
body:
  call void @pause()
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}}
"""


def driver_ir(target: Target) -> str:
    """LLVM IR text of the driver for `target`."""
    machine = _MACHINES.get(target.triple.split("-", 1)[0])
    if machine is None:
        raise UserError(
            f"there is no native driver for {target.triple}", hint=f"known: {', '.join(sorted(_MACHINES))}"
        )
    return _TEXT.format(
        triple=target.triple,
        pause=machine.pause,
        syscall=machine.syscall,
        constraints=machine.syscall_constraints,
        futex=machine.futex,
        sched_yield=machine.sched_yield,
        spins_before_yield=SPINS_BEFORE_YIELD,
        yield_mask=YIELD_EVERY - 1,
        futex_wait=_FUTEX_WAIT_PRIVATE,
        futex_wake=_FUTEX_WAKE_PRIVATE,
        everybody=_EVERYBODY,
        call_bytes=abi.CALL_BYTES,
        **{name: offset for name, offset in abi.offsets().items()},
    )

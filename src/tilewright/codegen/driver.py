"""The native driver as LLVM IR: it runs a table of kernel calls with a team of threads.

Exported, and called by `runtime`:

    i64  tw_start(ptr job)        run a job as worker 0 with the team (the caller's thread takes part)
    ptr  tw_worker(ptr record)    the pthread entry of workers 1 … W-1: wait, run, repeat until asked to quit
    void tw_run(ptr calls, i64 n) run all parts of all calls here
    void tw_each(ptr rows, i64 n) run the kernel of row n: calls beside each other, as the parts of one
    void tw_stop(ptr team)        wait for the job that runs, then tell the workers to quit
    void tw_pause(i64 n)          n rounds of the waiting loop, so that the runtime can turn time into rounds

The memory layout of jobs, calls and the team is `tilewright.support.driver_abi`.

How it works:

- Workers claim the parts of a call, so a worker that is held up takes fewer. Which worker runs a part never changes
  what the part computes. Every worker has a range of its own, the same in calls with as many parts: what it has made
  in one call, or read of the weights in one step of a recurrence, is in its cache in the next. It takes its range from
  the front; when that is empty, it takes parts of the others' from the back.
- A range is one word in the worker's record: the number of the call, and the first and the last part that is left. A
  word of an earlier call means that nobody has claimed of this range yet, one of a later call that the call is over. So
  nothing is prepared between calls, and the table is only read.
- Calls of one part are run by worker 0, in order: what one of them makes is in its cache for the next, and no barrier
  is needed between them.
- At a barrier a worker adds the parts it has run to `finished`, and waits until these are all up to here, not until all
  workers are there: one that holds no part holds up nobody.
- A job is published by increasing `generation`, which is also the futex word idle workers sleep on. A worker that
  is about to sleep first counts itself in `sleepers`; both sides use sequentially consistent operations, so that
  either the publisher sees the sleeper or the kernel sees the new generation. No sleeper, no system call.
- `door` is open while a job runs, and counts who is inside. The caller closes it when no parts are left, and waits for
  those inside only: a worker that wakes up late finds it closed, and nobody has waited for it.
- One job at a time holds `busy`. A caller that finds the team taken, or not started, runs all parts itself, with the
  same result. `tw_start` returns 1 if the team was not running (it stopped, or the process forked), else 0.
- Waiting spins with the processor's pause instruction, and after a while yields its core now and then, so that more
  workers than free cores still make progress.
- A worker whose core is taken away in the middle of a part holds up everybody. If the caller waits for it, and its
  thread has not run between two looks, the caller summons it to its own core (`driver_summons`).

The object has no undefined symbols: system calls are inline assembly. The floating-point control register is left
alone, so denormals behave as IEEE 754 says.
"""

from dataclasses import dataclass

from tilewright.codegen.driver_summons import TEXT as SUMMONS
from tilewright.codegen.driver_text import TEXT
from tilewright.support import driver_abi as abi
from tilewright.support.errors import UserError
from tilewright.target.target import Target

SPINS_BEFORE_YIELD = 2048  # tens of µs: longer than any balanced kernel's skew
LEAVE_EVERY = 16  # spins, a power of two, in which a worker looks whether it is on the caller's core
NAP_NS = 30_000  # in which a worker gets the core of its caller
YIELD_EVERY = 64  # spins, a power of two; a yield costs more than a pause, even when nobody wants the core


@dataclass(frozen=True, slots=True)
class _Machine:
    """What differs between processors: the pause instruction and Linux's system calls."""

    pause: str
    syscall: str
    syscall_constraints: str  # result; number and four arguments; clobbers
    futex: int
    sched_yield: int
    gettid: int
    get_affinity: int
    set_affinity: int
    clock_gettime: int
    nanosleep: int
    core: str  # the body of a function that returns the number of the core it runs on


_MACHINES = {
    "x86_64": _Machine(
        pause="pause",
        syscall="syscall",
        syscall_constraints="={rax},{rax},{rdi},{rsi},{rdx},{r10},~{rcx},~{r11},~{memory}",
        futex=202,
        sched_yield=24,
        gettid=186,
        get_affinity=204,
        set_affinity=203,
        clock_gettime=228,
        nanosleep=35,
        # the limit of a segment that Linux makes for this, as its own getcpu reads it: no system call
        core="""%limit = call i64 asm sideeffect "lsl $1, $0", "=r,r"(i64 123)
  %low = and i64 %limit, 4095
  ret i64 %low""",
    ),
    "aarch64": _Machine(
        pause="isb",  # `yield` is a no-op on most cores
        syscall="svc #0",
        syscall_constraints="={x0},{x8},{x0},{x1},{x2},{x3},~{memory}",
        futex=98,
        sched_yield=124,
        gettid=178,
        get_affinity=123,
        set_affinity=122,
        clock_gettime=113,
        nanosleep=101,
        core="""%at = alloca i64, align 8
  store i64 0, ptr %at, align 8
  %word = ptrtoint ptr %at to i64
  %r = call i64 @syscall(i64 168, i64 %word, i64 0, i64 0)
  %core = load i64, ptr %at, align 8
  ret i64 %core""",
    ),
}

_FUTEX_WAIT_PRIVATE = 128
_FUTEX_WAKE_PRIVATE = 129
_EVERYBODY = 0x7FFFFFFF


def driver_ir(target: Target) -> str:
    """LLVM IR text of the driver for `target`."""
    machine = _MACHINES.get(target.triple.split("-", 1)[0])
    if machine is None:
        raise UserError(
            f"there is no native driver for {target.triple}", hint=f"known: {', '.join(sorted(_MACHINES))}"
        )
    return (TEXT + SUMMONS).format(
        triple=target.triple,
        pause=machine.pause,
        syscall=machine.syscall,
        constraints=machine.syscall_constraints,
        futex=machine.futex,
        sched_yield=machine.sched_yield,
        gettid=machine.gettid,
        nanosleep=machine.nanosleep,
        core=machine.core,
        nap=NAP_NS,
        get_affinity=machine.get_affinity,
        set_affinity=machine.set_affinity,
        clock_gettime=machine.clock_gettime,
        cores_bytes=abi.CORES_BYTES,
        cores_bits=8 * abi.CORES_BYTES,
        cores_words=abi.CORES_BYTES // 8,
        is_inside=abi.INSIDE,
        has_parts=abi.PARTS,
        spins_before_yield=SPINS_BEFORE_YIELD,
        yield_mask=YIELD_EVERY - 1,
        leave_mask=LEAVE_EVERY - 1,
        futex_wait=_FUTEX_WAIT_PRIVATE,
        futex_wake=_FUTEX_WAKE_PRIVATE,
        everybody=_EVERYBODY,
        call_bytes=abi.CALL_BYTES,
        records=abi.TEAM_BYTES,
        line=abi.LINE,
        is_open=1 << 16,  # more than there are workers
        mask=abi.MAX_CLAIMS,
        lo_shift=abi.CLAIM_BITS,
        call_shift=2 * abi.CLAIM_BITS,
        **{name: offset for name, offset in abi.offsets().items()},
    )

"""The memory that the native driver and the runtime share, declared once.

The structures are ctypes', so the runtime fills them in place; the driver's LLVM IR takes their field offsets from
`offsets`. Fields that different threads write sit on cache lines of their own, two lines apart because processors
fetch lines in pairs.
"""

import ctypes

LINE = 128
CORES_BYTES = 32  # of a set of cores: 256 of them
CLAIM_BITS = 20  # of the word in which a worker's range is kept, for its first and its last claim each
MAX_CLAIMS = (1 << CLAIM_BITS) - 1  # of a call
OUTSIDE, INSIDE, PARTS = range(3)  # states of a worker
MAX_CALLS = (1 << (64 - 2 * CLAIM_BITS)) - 2  # of a job: the rest of the word has the number of one


class CallRow(ctypes.Structure):
    """One row of a call table: run the parts `first` … `first + parts - 1` of a kernel, then meet at a barrier if
    `barrier`. Workers claim `chunk` parts at a time, so there are `claims` to make, at most MAX_CLAIMS.
    """

    fn: int
    args: int
    first: int
    parts: int
    claims: int
    chunk: int
    barrier: int
    _fields_ = (
        ("fn", ctypes.c_uint64),
        ("args", ctypes.c_uint64),
        ("first", ctypes.c_int64),
        ("parts", ctypes.c_int64),
        ("claims", ctypes.c_int64),
        ("chunk", ctypes.c_int64),
        ("barrier", ctypes.c_int64),
        ("_pad", ctypes.c_char * 8),
    )


class Job(ctypes.Structure):
    """The argument of `tw_start`: a call table, and the team to share it with (0: none)."""

    team: int
    calls: int
    n: int
    _fields_ = (("team", ctypes.c_uint64), ("calls", ctypes.c_uint64), ("n", ctypes.c_int64))


class Record(ctypes.Structure):
    """What a worker has to itself, in the order of workers behind the `TeamState`; the argument of `tw_worker`."""

    team: int
    worker: int
    left: (
        int  # the number of a call, and the claims in this worker's range that are left: first, and last + 1
    )
    _fields_ = (
        ("team", ctypes.c_uint64),
        ("worker", ctypes.c_int64),
        ("left", ctypes.c_uint64),
        ("_pad", ctypes.c_char * (LINE - 24)),
    )


class WorkerStatus(ctypes.Structure):
    """How a worker is doing, for the caller who may wait for it: not in its `Record`, of which others claim parts."""

    thread: int  # the kernel's number of it
    state: int  # OUTSIDE of the job, INSIDE, or with PARTS of which it has not said that they are finished
    seen: int  # nanoseconds that it had run when the caller last looked
    summoned: int  # the caller lets it run on its own core only
    left_core: int  # 1 + the core that it has left to the caller in this job; 0: none
    length: int  # bytes of `cores` that are known
    cores: bytes  # where it may run, but for the two above
    _fields_ = (
        ("thread", ctypes.c_int64),
        ("state", ctypes.c_int64),
        ("seen", ctypes.c_int64),
        ("summoned", ctypes.c_int64),
        ("left_core", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("cores", ctypes.c_char * CORES_BYTES),
        ("_pad", ctypes.c_char * (LINE - 48 - CORES_BYTES)),
    )


class TeamState(ctypes.Structure):
    """What the threads of a team share."""

    generation: int  # the futex word; grows by one for each job
    quit: int
    calls: int  # of the job
    n: int
    workers: int  # the caller's thread included
    spin: int  # rounds an idle worker waits before it sleeps
    statuses: int  # where those of the workers are, in their order
    patience: int  # rounds after which the caller looks whether those it waits for run; 0: it never does
    core_of: int  # the caller's, since it woke or summoned somebody in this job; -1: not known
    running: int
    sleepers: int  # workers that are asleep, or about to be
    door: int  # workers in the job, and whether more may come
    finished: int  # parts of the job
    busy: int  # somebody runs a job
    _fields_ = (
        ("generation", ctypes.c_int32),
        ("quit", ctypes.c_int32),
        ("calls", ctypes.c_uint64),
        ("n", ctypes.c_int64),
        ("workers", ctypes.c_int64),
        ("spin", ctypes.c_int64),
        ("statuses", ctypes.c_uint64),
        ("patience", ctypes.c_int64),
        ("core_of", ctypes.c_int64),
        ("running", ctypes.c_int32),
        ("_pad0", ctypes.c_char * (LINE - 68)),
        ("sleepers", ctypes.c_int32),
        ("_pad1", ctypes.c_char * (LINE - 4)),
        ("door", ctypes.c_int32),
        ("_pad2", ctypes.c_char * (LINE - 4)),
        ("finished", ctypes.c_int64),
        ("_pad3", ctypes.c_char * (LINE - 8)),
        ("busy", ctypes.c_int32),
        ("_pad4", ctypes.c_char * (LINE - 4)),
    )


CALL_BYTES = ctypes.sizeof(CallRow)
TEAM_BYTES = ctypes.sizeof(TeamState)


def offsets() -> dict[str, int]:
    """Byte offset of each field; fields of the others are prefixed by the structure's name."""
    table: dict[str, int] = {}
    for prefix, struct in (
        ("", TeamState),
        ("call_", CallRow),
        ("job_", Job),
        ("record_", Record),
        ("status_", WorkerStatus),
    ):
        for name, *_ in struct._fields_:
            if not name.startswith("_"):
                table[prefix + name] = getattr(struct, name).offset
    return table

"""The memory that the native driver and the runtime share, declared once.

The structures are ctypes', so the runtime fills them in place; the driver's LLVM IR takes their field offsets from
`offsets`. Fields that different threads write sit on cache lines of their own, two lines apart because processors
fetch lines in pairs.
"""

import ctypes

LINE = 128


class Call(ctypes.Structure):
    """One row of a call table: run `parts` parts of a kernel, then meet at a barrier if `barrier`. Workers count in it
    what they have claimed and finished.
    """

    fn: int
    parts: int
    args: int
    barrier: int
    claimed: int
    finished: int
    _fields_ = (
        ("fn", ctypes.c_uint64),
        ("parts", ctypes.c_int64),
        ("args", ctypes.c_uint64),
        ("barrier", ctypes.c_int64),
        ("claimed", ctypes.c_int32),
        ("finished", ctypes.c_int32),
        ("_pad", ctypes.c_char * 24),
    )


class Job(ctypes.Structure):
    """The argument of `tw_start`: a call table, and the team to share it with (0: none)."""

    team: int
    calls: int
    n: int
    _fields_ = (("team", ctypes.c_uint64), ("calls", ctypes.c_uint64), ("n", ctypes.c_int64))


class Record(ctypes.Structure):
    """The argument of `tw_worker`."""

    team: int
    worker: int
    _fields_ = (("team", ctypes.c_uint64), ("worker", ctypes.c_int64))


class TeamState(ctypes.Structure):
    """What the threads of a team share."""

    generation: int  # the futex word; grows by one for each job
    quit: int
    calls: int  # of the job
    n: int
    workers: int  # the caller's thread included
    spin: int  # rounds an idle worker waits before it sleeps
    running: int
    sleepers: int  # workers that are asleep, or about to be
    done: int  # workers that have finished the job
    busy: int  # somebody runs a job
    _fields_ = (
        ("generation", ctypes.c_int32),
        ("quit", ctypes.c_int32),
        ("calls", ctypes.c_uint64),
        ("n", ctypes.c_int64),
        ("workers", ctypes.c_int64),
        ("spin", ctypes.c_int64),
        ("running", ctypes.c_int32),
        ("_pad0", ctypes.c_char * (LINE - 44)),
        ("sleepers", ctypes.c_int32),
        ("_pad1", ctypes.c_char * (LINE - 4)),
        ("done", ctypes.c_int32),
        ("_pad2", ctypes.c_char * (LINE - 4)),
        ("busy", ctypes.c_int32),
        ("_pad3", ctypes.c_char * (LINE - 4)),
    )


CALL_BYTES = ctypes.sizeof(Call)


def offsets() -> dict[str, int]:
    """Byte offset of each field; fields of Call, Job and Record are prefixed by the structure's name."""
    table: dict[str, int] = {}
    for prefix, struct in (("", TeamState), ("call_", Call), ("job_", Job), ("record_", Record)):
        for name, *_ in struct._fields_:
            if not name.startswith("_"):
                table[prefix + name] = getattr(struct, name).offset
    return table

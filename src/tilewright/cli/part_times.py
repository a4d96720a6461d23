"""Who ran which part of a kernel when: one run of a program, recorded part by part.

The runtime keeps no such record. Here a small native function stands in front of every kernel of the call tables: it
reads the processor's clock, calls the kernel, reads the clock again, and writes both down with the address of the
thread's own memory. The program runs otherwise as ever, with its driver, its team and its barriers; a part takes some
tens of cycles more. Clocks of the cores must run alike, as those of x86-64 have done for many years.
"""

import ctypes
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from tilewright.codegen.objects import compile_object
from tilewright.profiling.call_times import patient_workers
from tilewright.report.data import PartSpan, TimelineFacts
from tilewright.runtime.feeds import Signature
from tilewright.runtime.loader import Code
from tilewright.runtime.memory import Constants
from tilewright.runtime.program import ExecutionPlan, RunContext, rows
from tilewright.runtime.team import Team, shared_team
from tilewright.support.affinity import pinned
from tilewright.support.artifact import Artifact, program_at
from tilewright.support.driver_abi import CallRow, Job
from tilewright.target.target import Target

RUNS = 9  # the one of median length is told
MOST_SPANS = 5000
_FIELDS = 3  # of a part: begin, end, thread

# The thread is known by where its own memory is (the register fs).
_IR = """
target triple = "{triple}"
declare i64 @llvm.readcyclecounter()
define i64 @clock() {{
  %now = call i64 @llvm.readcyclecounter()
  ret i64 %now
}}
define i64 @thread() {{
  %self = load i64, ptr addrspace(257) null
  ret i64 %self
}}
define void @timed(ptr %block, i64 %part) {{
  %kernel = load ptr, ptr %block
  %args_at = getelementptr ptr, ptr %block, i64 1
  %args = load ptr, ptr %args_at
  %records_at = getelementptr ptr, ptr %block, i64 2
  %records = load ptr, ptr %records_at
  %begin = call i64 @llvm.readcyclecounter()
  call void %kernel(ptr %args, i64 %part)
  %end = call i64 @llvm.readcyclecounter()
  %self = load i64, ptr addrspace(257) null
  %record = getelementptr {{ i64, i64, i64 }}, ptr %records, i64 %part
  store i64 %begin, ptr %record
  %end_at = getelementptr i64, ptr %record, i64 1
  store i64 %end, ptr %end_at
  %self_at = getelementptr i64, ptr %record, i64 2
  store i64 %self, ptr %self_at
  ret void
}}
"""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a call table that is recorded: of which call, and where its parts are written down."""

    call: int
    records: Any


@dataclass(slots=True)
class _Recorder:
    """Stands between a context and the driver: harvests what each job has recorded."""

    run_job: Callable[[int], int]
    rows: Mapping[int, Sequence[_Row]]  # by job
    memory: list[Any] = field(default_factory=list[Any])  # that the rows lead to
    found: list[tuple[int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int]])

    def __call__(self, job: int) -> int:
        status = self.run_job(job)
        for row in self.rows[job]:
            records = row.records
            for at in range(0, len(records), _FIELDS):
                if records[at + 1]:
                    self.found.append((records[at], records[at + 1], records[at + 2], row.call))
            ctypes.memset(records, 0, ctypes.sizeof(records))
        return status


def part_times(
    artifact: Artifact,
    feeds: Mapping[str, NDArray[Any]],
    *,
    target: Target,
    threads: int,
    sizes: Mapping[str, int] = MappingProxyType({}),
    externals: Mapping[str, Callable[..., None]] = MappingProxyType({}),
) -> TimelineFacts:
    """A run of median length. Calls are numbered as the program has them; thread 0 is the caller."""
    if not target.triple.startswith("x86_64"):
        return TimelineFacts(0.0, (), "Threads are recorded on x86-64 only.")
    if artifact.manifest.dims:
        artifact = replace(artifact, program=program_at(artifact.program, sizes))
    clock = Code((compile_object(_IR.format(triple=target.triple), target),))
    with pinned(threads), patient_workers():
        team, code = shared_team(artifact.driver, threads), Code(artifact.objects)
        plan = ExecutionPlan(artifact, code, Constants(artifact.constants), externals, team, sized=externals)
        if plan.is_parallel:
            team.start()
        context = RunContext(plan)
        signature = Signature(artifact.manifest.inputs, artifact.manifest.written)
        inputs = signature.inputs(feeds)
        context.attach(inputs, signature.outputs(None, inputs))
        if externals:
            context.use(frozenset(), (), sizes)
        context.run()
        recorder = _patched(context, plan, team, clock)
        return _told(context, recorder, clock, bool(externals))


def _patched(context: RunContext, plan: ExecutionPlan, team: Team, clock: Code) -> _Recorder:
    """Put the recording function in front of every kernel in the tables of the context."""
    recorder = _Recorder(context.run_job, {})
    timed, first_call = clock.address("timed"), 0
    found: dict[int, list[_Row]] = {}

    def record(row: CallRow, call: int, first: int, parts: int) -> _Row:
        records = (ctypes.c_int64 * (_FIELDS * parts))()
        # The kernel is told the number of its part; records begin with the first of the row.
        start = ctypes.addressof(records) - 8 * _FIELDS * first
        block = (ctypes.c_uint64 * 3)(row.fn, row.args, start)
        row.fn, row.args = timed, ctypes.addressof(block)
        recorder.memory += [records, block]
        return _Row(call, records)

    for address, segment in zip(context.jobs, plan.segments, strict=False):
        job = Job.from_address(address)
        own = found[address] = []
        for n, step in enumerate(rows(segment.calls)):
            row = CallRow.from_address(job.calls + n * ctypes.sizeof(CallRow))
            if step.is_each:  # its parts are calls of one part, in rows of their own
                assert row.fn == team.each
                for k in range(step.parts):
                    inner = CallRow.from_address(row.args + k * ctypes.sizeof(CallRow))
                    own.append(record(inner, first_call + step.call + k, inner.first, 1))
            else:
                own.append(record(row, first_call + step.call, row.first, row.parts))
        first_call += len(segment.calls)
    recorder.rows = found
    context.run_job = recorder
    return recorder


def _told(context: RunContext, recorder: _Recorder, clock: Code, has_externals: bool) -> TimelineFacts:
    now, thread = (ctypes.CFUNCTYPE(ctypes.c_int64)(clock.address(name)) for name in ("clock", "thread"))
    runs: list[tuple[int, int, list[tuple[int, int, int, int]]]] = []
    begin_seconds, begin = time.perf_counter(), now()
    for _ in range(RUNS):
        recorder.found = []
        start = now()
        context.run()
        runs.append((start, now(), recorder.found))
    ticks = (now() - begin) / (time.perf_counter() - begin_seconds)  # a second
    middle = median(end - start for start, end, _ in runs)
    start, end, found = min(runs, key=lambda run: abs(run[1] - run[0] - middle))
    numbers = {thread(): 0}
    for _, _, who, _ in sorted(found):
        numbers.setdefault(who, len(numbers))
    spans = _merged(
        PartSpan(numbers[who], (a - start) / ticks, (b - start) / ticks, call, 1)
        for a, b, who, call in sorted(found, key=lambda f: (numbers[f[2]], f[0]))
    )
    notes: list[str] = []
    if has_externals:
        notes.append("Code of plugins runs on threads of its own, which are not recorded.")
    if len(spans) > MOST_SPANS:
        notes.append(f"The {MOST_SPANS:,} longest of {len(spans):,} spans are kept.")
        kept = sorted(spans, key=lambda s: s.begin - s.end)[:MOST_SPANS]
        spans = sorted(kept, key=lambda s: (s.thread, s.begin))
    return TimelineFacts((end - start) / ticks, tuple(spans), " ".join(notes))


def _merged(spans: Iterable[PartSpan]) -> list[PartSpan]:
    """Parts of a call that a thread runs one after the other as one span; by thread, and in order."""
    out: list[PartSpan] = []
    for span in spans:
        last = out[-1] if out else None
        if last is not None and (last.thread, last.call) == (span.thread, span.call):
            out[-1] = replace(last, end=span.end, parts=last.parts + 1)
        else:
            out.append(span)
    return out

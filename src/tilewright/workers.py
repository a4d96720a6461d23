"""Object code from several processes at once.

LLVM holds one lock per process, so its work is handed to workers (`tilewright.worker`) while this process goes on
making IR. Nothing here waits but `result`: IR is queued, and pipes are served in passing. Whoever waits for a result
compiles what is still queued, so that no core is idle; without workers that is all that happens.

A worker that dies or takes too long is replaced, once; its module is compiled here, and a warning says so. No answer
is trusted to come: the same objects are made in any case. Workers end when their pipes close, at the latest when
this process does.
"""

import contextlib
import logging
import os
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from fcntl import fcntl
from pathlib import Path
from types import TracebackType

from tilewright.codegen.objects import compile_object
from tilewright.runtime.machine import default_threads
from tilewright.support.errors import UserError
from tilewright.support.frames import frame, take
from tilewright.target.target import Target
from tilewright.worker import ERROR, OBJECT, target_to_json

_log = logging.getLogger("tilewright")

_COMMAND = (sys.executable, "-P", "-m", "tilewright.worker")  # -P: modules of the current folder are not ours
_MAX_WORKERS = 7
_AHEAD = 2  # modules that a worker holds: the next is there when it has finished one
_BACKLOG = 2  # modules that wait before another worker is worth starting
_TIMEOUT = 60.0  # seconds for a module: they take tens of milliseconds
_PIPE_BYTES = 1 << 20
_LOSSES = 2  # workers that may be lost before we do without
_F_SETPIPE_SZ = 1031  # Linux


def default_workers(root: Path = Path("/")) -> int:
    """`TILEWRIGHT_WORKERS`, or one for each idle core but the one that we run on."""
    wish = os.environ.get("TILEWRIGHT_WORKERS", "")
    if wish and not wish.isdecimal():
        raise UserError(f"TILEWRIGHT_WORKERS = {wish!r} is not a number", hint="0 compiles without workers")
    if wish:
        return min(int(wish), 64)
    # An application that embeds Python may have put itself in the place of the interpreter.
    if not Path(sys.executable or "").name.startswith("python"):
        return 0
    idle = (os.cpu_count() or 1) - _running(root)
    return max(0, min(default_threads() - 1, idle - 1, _MAX_WORKERS))


def _running(root: Path) -> int:
    """How many other threads of the machine want to run right now; 0 if it does not tell.

    Where all cores are busy, a worker has shown no gain (docs/decisions/worker-processes.md).
    """
    try:
        return int((root / "proc/loadavg").read_text().split()[3].split("/")[0]) - 1
    except (OSError, IndexError, ValueError):
        return 0


@dataclass(slots=True, eq=False)
class Job:
    """A module of LLVM IR, and its object as soon as it is there; not `is_new` if somebody has kept it already."""

    ir: str
    object: bytes | None = None
    is_new: bool = True


@dataclass(slots=True, eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    source: int
    sink: int
    unsent: bytearray
    received: bytearray = field(default_factory=bytearray)
    jobs: deque[Job] = field(default_factory=deque[Job])
    since: float = 0.0  # when it got the first of its jobs to itself


class Workers:
    """Compiles for one target. Use it as a context manager: workers end with it.

    `limit`: how many workers there may be; the first starts now, others when there is much to do.
    """

    def __init__(
        self,
        target: Target,
        limit: int | None = None,
        *,
        timeout: float = _TIMEOUT,
        command: Sequence[str] = _COMMAND,
    ) -> None:
        self._target, self._timeout, self._command = target, timeout, tuple(command)
        self._limit = default_workers() if limit is None else limit
        self._waiting: deque[Job] = deque()
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._losses = 0
        if self._limit > 0:
            self._start()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, ir: str) -> Job:
        job = Job(ir)
        self._waiting.append(job)
        if self._limit > 0:
            self._serve(0.0)
        return job

    def result(self, job: Job) -> bytes:
        """Waits for the object. An error of LLVM is raised as if it had been compiled here."""
        while job.object is None:
            if self._waiting:
                self._compile_here(self._waiting.pop())
            elif any(w.jobs for w in self._workers):
                self._serve(self._timeout)
            else:
                self._compile_here(job)
            if self._workers:
                self._serve(0.0)
        return job.object

    def close(self) -> None:
        """End the workers; what was not asked for is dropped."""
        while self._workers:
            self._end(self._workers[-1])
        self._waiting.clear()
        self._selector.close()
        self._limit = 0

    # ------------------------------------------------------------------------------------------------- workers

    def _start(self) -> None:
        here = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, "PYTHONPATH": path},
                process_group=0,  # a Ctrl-C at the terminal is for the one who started it
            )
        except OSError as e:
            _log.warning("compiling without worker processes: %s", e.strerror)
            self._limit = 0
            return
        assert process.stdin is not None and process.stdout is not None
        source, sink = process.stdout.fileno(), process.stdin.fileno()
        for pipe in (source, sink):
            os.set_blocking(pipe, False)
            with contextlib.suppress(OSError):  # larger pipes only spare waiting
                fcntl(pipe, _F_SETPIPE_SZ, _PIPE_BYTES)
        worker = _Worker(process, source, sink, bytearray(frame(target_to_json(self._target))))
        self._workers.append(worker)
        self._selector.register(source, selectors.EVENT_READ, worker)
        self._write(worker)

    def _end(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        for pipe in (worker.source, worker.sink):
            with contextlib.suppress(KeyError):
                self._selector.unregister(pipe)
        worker.process.kill()
        worker.process.__exit__(None, None, None)  # closes its pipes and waits for its end

    def _lose(self, worker: _Worker, why: str) -> None:
        """What the worker was at is compiled here, and what it had before it goes to another."""
        self._end(worker)
        self._losses += 1
        if self._losses >= _LOSSES:
            self._limit = 0
        _log.warning(
            "a worker process %s; %s",
            why,
            "another takes its place" if self._limit else "compiling without worker processes",
        )
        current, *rest = worker.jobs or (None,)
        self._waiting.extendleft(reversed(rest))
        if self._limit and not self._workers:
            self._start()
        if current is not None:
            self._compile_here(current)

    def _compile_here(self, job: Job) -> None:
        job.object = compile_object(job.ir, self._target)

    # --------------------------------------------------------------------------------------------------- pipes

    def _serve(self, timeout: float) -> None:
        """Hand out what waits, and take what is finished; wait for something to happen at most `timeout` seconds."""
        self._hand_out()
        if not self._workers:
            return
        for key, events in self._selector.select(timeout):
            worker: _Worker = key.data
            if worker in self._workers and events & selectors.EVENT_WRITE:
                self._write(worker)
            if worker in self._workers and events & selectors.EVENT_READ:
                self._read(worker)
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.jobs and now - worker.since > self._timeout:
                self._lose(worker, f"has not answered for {self._timeout:g} s")
        self._hand_out()

    def _hand_out(self) -> None:
        if len(self._waiting) > _BACKLOG and len(self._workers) < self._limit:
            self._start()
        for worker in list(self._workers):
            while self._waiting and len(worker.jobs) < _AHEAD:
                job = self._waiting.popleft()
                if not worker.jobs:
                    worker.since = time.monotonic()
                worker.jobs.append(job)
                worker.unsent += frame(job.ir.encode())
            if worker.unsent:
                self._write(worker)

    def _write(self, worker: _Worker) -> None:
        try:
            while worker.unsent:
                del worker.unsent[: os.write(worker.sink, worker.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._lose(worker, "has died")
            return
        registered = worker.sink in self._selector.get_map()
        if worker.unsent and not registered:
            self._selector.register(worker.sink, selectors.EVENT_WRITE, worker)
        elif not worker.unsent and registered:
            self._selector.unregister(worker.sink)

    def _read(self, worker: _Worker) -> None:
        try:
            data = os.read(worker.source, _PIPE_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._lose(worker, "has died")
            return
        worker.received += data
        while (answer := take(worker.received)) is not None:
            kind, body = answer[:1], answer[1:]
            if not worker.jobs or kind not in (OBJECT, ERROR):
                self._lose(worker, "answered nonsense")
                return
            job = worker.jobs.popleft()
            worker.since = time.monotonic()
            if kind == OBJECT:
                job.object = body
            else:
                self._compile_here(job)  # raises the error here

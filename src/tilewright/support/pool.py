"""Processes of ours that answer packets, and that may die or hang at any time.

Requests are handed out and answers taken in `serve`, which blocks on nothing but time: pipes are written and read as
far as they go. A process gets the next request before it has answered the last one. Whatever happens, every request is
over in the end, with an answer or with the reason why there is none: a process that dies, answers nonsense or takes
too long is ended and costs the request that it was at; what it had not begun goes to another, which is started when it
is needed. Processes are ended by their own id, and by the kernel when this one ends (`support.answering`).
"""

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from fcntl import fcntl
from pathlib import Path
from typing import Any

from tilewright.support.answering import READY
from tilewright.support.closing import Closing
from tilewright.support.errors import TilewrightError, UserError
from tilewright.support.frames import frame, take, unpack

START_SECONDS = 60.0  # for a process to get ready, on a busy machine
_AHEAD = 2  # requests that a process holds: the next is ready when it has answered one
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031  # Linux
_LAST_SECONDS = 5.0  # for a process that has closed its pipe to end


class ProcessFailure(TilewrightError):
    """A process did not answer."""


class ProcessDied(ProcessFailure):
    """`code` is the exit status, negative for a signal."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"the process ended with {describe_exit(code)}")


class ProcessLate(ProcessFailure):
    """It was ended after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"the process has not answered in {seconds:g} s")


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def module_command(module: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", module)  # -P: modules of the current folder are not ours


@dataclass(slots=True, eq=False)
class PoolRequest:
    """`answer` (a packet) or `failure` is there when it is over. `context` is a message that a process must have been
    sent before, once, and that it does not answer.
    """

    body: bytes
    timeout: float
    context: bytes = b""
    answer: tuple[Any, list[bytes]] | None = None
    failure: ProcessFailure | None = None

    @property
    def is_over(self) -> bool:
        return self.answer is not None or self.failure is not None


@dataclass(slots=True, eq=False)
class _Process:
    popen: subprocess.Popen[bytes]
    source: int
    sink: int
    unsent: deque[memoryview] = field(default_factory=deque[memoryview])
    received: bytearray = field(default_factory=bytearray)
    contexts: set[bytes] = field(default_factory=set[bytes])  # that were sent
    requests: deque[PoolRequest] = field(default_factory=deque[PoolRequest])
    since: float = 0.0  # when it got the first of its requests to itself
    is_ready: bool = False

    def put(self, message: bytes) -> None:
        self.unsent.append(memoryview(frame(message)))

    def tell(self, context: bytes) -> None:
        if context and context not in self.contexts:
            self.contexts.add(context)
            self.put(context)


class Pool(Closing):
    """Up to `limit` processes of a command. Use it as a context manager: they end with it.

    They are started when requests wait, one more where more than `backlog` do, and none any more after `losses`.
    A process that is not ready after `start_seconds` is late; the time of a request does not begin before.
    """

    def __init__(
        self,
        command: Sequence[str],
        limit: int = 1,
        *,
        backlog: int = 0,
        losses: float = math.inf,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.limit, self._losses = limit, losses
        self._command, self._backlog, self._start_seconds = tuple(command), backlog, start_seconds
        self._waiting: deque[PoolRequest] = deque()
        self._over: list[PoolRequest] = []
        self._processes: list[_Process] = []

    def close(self) -> None:
        """End the processes; requests that are not over have failed."""
        dropped = [*self._waiting, *(r for p in self._processes for r in p.requests)]
        self._waiting.clear()
        while self._processes:
            self._end(self._processes[-1])
        for request in dropped:
            request.failure = ProcessFailure("the process was ended before it answered")

    @property
    def pids(self) -> list[int]:
        return [p.popen.pid for p in self._processes]

    def start(self, count: int, context: bytes = b"") -> None:
        """Begin to start processes until there are `count`, so that they are there when they are needed."""
        for _ in range(len(self._processes), min(count, self.limit)):
            process = _started(self._command)
            self._processes.append(process)
            process.tell(context)
            self._write(process)

    def wait_until_ready(self) -> None:
        """Until those that were started are ready, or are known not to get ready."""
        end = time.monotonic() + self._start_seconds
        while any(not p.is_ready for p in self._processes) and (left := end - time.monotonic()) > 0:
            self.serve(left)

    def submit(self, body: bytes, timeout: float, context: bytes = b"") -> PoolRequest:
        """Queue a request; `serve` or `wait` hands it out."""
        request = PoolRequest(body, timeout, context)
        self._waiting.append(request)
        return request

    def take_back(self) -> PoolRequest | None:
        """The last of the requests that no process has yet."""
        return self._waiting.pop() if self._waiting else None

    def wait(self, *requests: PoolRequest) -> None:
        """Until all are over. If that is interrupted nothing goes on."""
        try:
            while not all(r.is_over for r in requests):
                self.serve(math.inf)
        except BaseException:
            self.close()
            raise

    def serve(self, seconds: float) -> list[PoolRequest]:
        """Hand out what waits and take what was answered, after at most `seconds` without either: what is over now."""
        self._hand_out()
        by_pipe: dict[int, _Process] = {}
        poll = select.poll()
        for process in self._processes:
            by_pipe |= {process.source: process, process.sink: process}
            poll.register(process.source, select.POLLIN)
            if process.unsent:
                poll.register(process.sink, select.POLLOUT)
        left = min((self._deadline(p) for p in self._processes), default=0.0) - time.monotonic()
        for pipe, _ in poll.poll(_milliseconds(min(seconds, left))) if by_pipe and not self._over else ():
            process = by_pipe[pipe]
            if process in self._processes:
                (self._read if pipe == process.source else self._write)(process)
        for process in list(self._processes):
            if time.monotonic() > self._deadline(process):
                self._lose(process, ProcessLate(self._patience(process)))
        self._hand_out()
        over, self._over = self._over, []
        return over

    def _deadline(self, process: _Process) -> float:
        return process.since + self._patience(process) if process.requests else math.inf

    def _patience(self, process: _Process) -> float:
        return process.requests[0].timeout if process.is_ready else self._start_seconds

    def _hand_out(self) -> None:
        if len(self._waiting) > (self._backlog if self._processes else 0):
            self.start(len(self._processes) + 1)
        for process in list(self._processes):
            while self._waiting and len(process.requests) < _AHEAD:
                request = self._waiting.popleft()
                if not process.requests:
                    process.since = time.monotonic()
                process.requests.append(request)
                process.tell(request.context)
                process.put(request.body)
            self._write(process)

    def _write(self, process: _Process) -> None:
        unsent = process.unsent
        try:
            while unsent:
                left = unsent[0][os.write(process.sink, unsent[0]) :]
                if left:
                    unsent[0] = left
                else:
                    unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._lose(process, ProcessDied(_exit_code(process.popen)))

    def _read(self, process: _Process) -> None:
        try:
            data = os.read(process.source, _PIPE_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._lose(process, ProcessDied(_exit_code(process.popen)))
            return
        process.received += data
        while (message := take(process.received)) is not None:
            if message == READY and not process.is_ready:
                process.since, process.is_ready = time.monotonic(), True
                continue
            try:
                request, answer = process.requests[0], unpack(message)
            except (IndexError, ValueError):
                self._lose(process, ProcessFailure("the process answered nonsense"))
                return
            request.answer = answer
            self._over.append(process.requests.popleft())
            process.since = time.monotonic()

    def _lose(self, process: _Process, why: ProcessFailure) -> None:
        self._end(process)
        self._losses -= 1
        if self._losses <= 0:
            self.limit = 0
        if process.requests:
            process.requests[0].failure = why
            self._over.append(process.requests.popleft())
        self._waiting.extendleft(reversed(process.requests))

    def _end(self, process: _Process) -> None:
        self._processes.remove(process)
        process.popen.kill()
        process.popen.__exit__(None, None, None)  # closes its pipes and waits for its end


def _started(command: Sequence[str]) -> _Process:
    here = str(Path(__file__).resolve().parents[1])
    # What the caller can import its children can: a space may be defined in a program of the user's.
    path = os.pathsep.join(dict.fromkeys((here, *(p for p in sys.path if p))))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "OPENBLAS_NUM_THREADS": "1",  # numpy's threads would take address space and cores
        "TILEWRIGHT_WORKERS": "0",
    }
    try:
        popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment,
            process_group=0,  # a Ctrl-C at the terminal is for the one who started it
        )
    except OSError as e:
        raise UserError(f"a process cannot be started: {e.strerror}", where=" ".join(command)) from e
    assert popen.stdin is not None and popen.stdout is not None
    process = _Process(popen, popen.stdout.fileno(), popen.stdin.fileno())
    for pipe in (process.source, process.sink):
        os.set_blocking(pipe, False)
        with contextlib.suppress(OSError):  # larger pipes only spare waiting
            fcntl(pipe, _F_SETPIPE_SZ, _PIPE_BYTES)
    return process


def _exit_code(popen: subprocess.Popen[bytes]) -> int:
    """Of a process that has closed a pipe, which it does when it ends."""
    try:
        return popen.wait(_LAST_SECONDS)
    except subprocess.TimeoutExpired:
        popen.kill()
        return popen.wait()


def _milliseconds(seconds: float) -> int | None:
    return None if math.isinf(seconds) else max(0, math.ceil(seconds * 1000))

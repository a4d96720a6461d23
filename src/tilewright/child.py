"""A process of ours that answers packets, and that may die or hang at any time.

Requests are small or are read at once, so that writing them does not block; answers are waited for with a deadline.
The process is ended by its own id, and by the kernel when this one ends.
"""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from tilewright.support.errors import TilewrightError
from tilewright.support.frames import frame, take

_READ_BYTES = 1 << 20


class ChildDied(TilewrightError):
    """`code` is the exit status, negative for a signal."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"the process ended with {describe_exit(code)}")


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


class Child:
    """`python -m module`, started now. Use `kill` when done with it."""

    def __init__(self, module: str) -> None:
        here = str(Path(__file__).resolve().parents[1])
        # What the caller can import its children can: a space may be defined in a program of the user's.
        path = os.pathsep.join(dict.fromkeys((here, *(p for p in sys.path if p))))
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "OPENBLAS_NUM_THREADS": "1",  # numpy's threads would take address space and cores
            "TILEWRIGHT_WORKERS": "0",
        }
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-m", module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment,
            process_group=0,  # a Ctrl-C at the terminal is for the one who started it
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._sink, self.source = self._process.stdin, self._process.stdout.fileno()
        self._received = bytearray()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, body: bytes) -> None:
        data = memoryview(frame(body))
        try:
            while data:
                data = data[self._sink.write(data) or 0 :]
        except BrokenPipeError:
            raise ChildDied(self._process.wait()) from None

    def try_receive(self) -> bytes | None:
        """An answer that is all there, after reading what can be read now."""
        if (message := take(self._received)) is not None:
            return message
        if select.select([self.source], [], [], 0)[0]:
            data = os.read(self.source, _READ_BYTES)
            if not data:
                raise ChildDied(self._process.wait())
            self._received += data
        return take(self._received)

    def receive(self, timeout: float) -> bytes | None:
        """The next answer; None if it has not come in time."""
        end = time.monotonic() + timeout
        while (message := self.try_receive()) is None:
            left = end - time.monotonic()
            if left <= 0:
                return None
            select.select([self.source], [], [], left)
        return message

    def kill(self) -> None:
        self._process.kill()
        self._process.__exit__(None, None, None)  # closes its pipes and waits for its end

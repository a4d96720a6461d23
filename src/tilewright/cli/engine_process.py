"""An engine in a process of its own, seen from here: commands in, answers out, and whatever may happen to it.

All processes are started alike: pinned to the same cores, with the same number of threads. One that waits for its turn
sleeps in a read.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.cli import guest
from tilewright.cli.catalogue import Peer
from tilewright.support.errors import TilewrightError, UserError
from tilewright.support.pool import describe_exit
from tilewright.support.progress import OnProgress

# The folder `guest` under a name of its own: `tilewright` may not be there, and must not be imported if it is.
_START = (
    "import sys, types; package = types.ModuleType('tilewright_guest'); package.__path__ = [sys.argv.pop(1)];"
    " sys.modules[package.__name__] = package; from tilewright_guest.serve import main; main()"
)
_READ_BYTES = 1 << 16
_LAST_WORDS = 300  # characters of what a process that died has printed


class EngineFailure(TilewrightError):
    """An engine did not do what it was asked. `answer` is what it said, empty if it died or hung."""

    def __init__(self, message: str, answer: Mapping[str, Any] | None = None) -> None:
        self.answer = dict(answer or {})
        super().__init__(message)

    @property
    def missing(self) -> str | None:
        """The module that is not installed, if that is why."""
        return self.answer.get("missing")

    @property
    def is_users_fault(self) -> bool:
        """As a process that runs our own code says."""
        return UserError.__name__ in self.answer.get("types", ())

    @property
    def first_line(self) -> str:
        return next((line.strip() for line in str(self).splitlines() if line.strip()), "failed")


class EngineProcess:
    """Started at once; use as a context, which ends it."""

    def __init__(
        self, peer: Peer, python: str, threads: int, cores: Sequence[int], folder: Path, timeout: float
    ) -> None:
        self.peer, self._folder, self._timeout = peer, folder, timeout
        self._log = open(folder / "log.txt", "w+b")  # noqa: SIM115  # closed with the process
        command = [python, "-u", "-c", _START, str(Path(guest.__file__).parent), peer.source]
        try:
            self._process = subprocess.Popen(
                [*command, ",".join(map(str, cores))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                bufsize=0,
                cwd=folder,
                env=_environment(peer, python, threads),
                process_group=0,  # a Ctrl-C at the terminal is for the one who started it
            )
        except OSError as e:
            self._log.close()
            raise UserError(f"{python} cannot be run: {e.strerror}", where=peer.name) from e
        self._received = b""

    def ask(self, command: Mapping[str, Any], progress: OnProgress | None = None) -> dict[str, Any]:
        """The answer; EngineFailure if it is an error, or none comes."""
        sink = self._process.stdin
        assert sink is not None
        try:
            sink.write((json.dumps(command) + "\n").encode())
        except BrokenPipeError:
            raise self._died() from None
        end = time.monotonic() + self._timeout
        while True:
            answer: dict[str, Any] = json.loads(self._line(end))
            if "error" in answer:
                raise EngineFailure(answer["error"], answer)
            if "progress" not in answer:
                return answer
            if progress is not None:
                progress(*answer["progress"])

    def _line(self, end: float) -> bytes:
        assert self._process.stdout is not None
        source = self._process.stdout.fileno()
        while b"\n" not in self._received:
            left = end - time.monotonic()
            if left <= 0 or not select.select([source], [], [], left)[0]:
                self.close()
                raise EngineFailure(f"gave no answer in {self._timeout:g} seconds, and was ended")
            data = os.read(source, _READ_BYTES)
            if not data:
                raise self._died()
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _died(self) -> EngineFailure:
        code = self._process.wait()
        self._log.seek(0)
        words = self._log.read().decode(errors="replace").strip()[-_LAST_WORDS:]
        return EngineFailure(f"the process ended with {describe_exit(code)}{words and f': {words}'}")

    def close(self) -> None:
        self._process.kill()
        self._process.__exit__(None, None, None)  # closes its pipes and waits for its end
        self._log.close()

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _environment(peer: Peer, python: str, threads: int) -> dict[str, str]:
    """OMP_WAIT_POLICY is left as it is: `passive` would slow engines that use OpenMP, `active` their neighbours."""
    if python == sys.executable:  # what we can import it can
        paths = [str(Path(guest.__file__).resolve().parents[3]), *sys.path]
    else:  # it starts in another folder
        paths = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    found = os.pathsep.join(p for p in dict.fromkeys((peer.folder, *paths)) if p)
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": found}

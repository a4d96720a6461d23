"""Programs for smaller ranges, compiled in processes of their own while this one compiles the program for all sizes.

Making schedules and IR is Python, which has one core. A process (`tilewright.sessions.range_worker`) reads the model
again and answers with the program. Whoever waits compiles what no process has begun; what a process fails at is
compiled here too, where an error is raised as it would be without any.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tilewright.driver.trace import ProgramTrace
from tilewright.driver.worker import target_to_json
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime import file
from tilewright.support.artifact import Artifact
from tilewright.support.closing import Closing
from tilewright.support.errors import UserError
from tilewright.support.frames import pack
from tilewright.support.pool import Pool, PoolRequest, module_command
from tilewright.support.sizes import Dim
from tilewright.target.target import Target

_log = logging.getLogger("tilewright")

_COMMAND = module_command("tilewright.sessions.range_worker")
_TIMEOUT = 900.0  # seconds for a program: large ones take a minute
_START_SECONDS = 60.0  # for a process to get ready, on a busy machine


class RangeProgramMade(NamedTuple):
    """A program for some ranges, with what is known of how it was made."""

    artifact: Artifact
    trace: ProgramTrace
    tasks: tuple[str, ...]
    seconds: Mapping[str, float]

    def packed(self) -> bytes:
        head = {
            "error": "",
            "trace": str(self.trace),
            "tasks": list(self.tasks),
            "seconds": dict(self.seconds),
        }
        return pack(head, (file.to_bytes(self.artifact),))

    @staticmethod
    def unpacked(head: Any, blobs: list[bytes]) -> "RangeProgramMade":
        trace = ProgramTrace.parse(head["trace"])
        return RangeProgramMade(file.from_bytes(blobs[0]), trace, tuple(head["tasks"]), dict(head["seconds"]))


@dataclass(frozen=True, slots=True)
class RangeOrder:
    """What all programs have in common. `source` is the model's file."""

    source: str
    target: Target
    digest: str
    accuracy: Accuracy
    is_cached: bool

    def packed(self, dims: Mapping[str, Dim], trace: ProgramTrace) -> bytes:
        head = {
            "source": self.source,
            "digest": self.digest,
            "accuracy": str(self.accuracy),
            "is_cached": self.is_cached,
            "dims": [[d.name, d.least, d.most, d.multiple] for d in dims.values()],
            "trace": str(trace),
        }
        return pack(head, (target_to_json(self.target),))


class RangeJobs(Closing):
    """Up to `limit` processes; none if there is no file to read the model from. Use it as a context manager."""

    def __init__(self, order: RangeOrder | None, limit: int) -> None:
        self._order = order
        self._pool = Pool(_COMMAND, 0 if order is None else limit, losses=1, start_seconds=_START_SECONDS)

    def submit(self, dims: Mapping[str, Dim], trace: ProgramTrace) -> PoolRequest:
        body = b"" if self._order is None else self._order.packed(dims, trace)
        request = self._pool.submit(body, _TIMEOUT)
        self._serve(0.0)
        return request

    def results(
        self, jobs: Mapping[PoolRequest, Callable[[], RangeProgramMade]]
    ) -> dict[PoolRequest, RangeProgramMade]:
        """Of all; each may be compiled here as well."""
        made: dict[PoolRequest, RangeProgramMade] = {}
        while len(made) < len(jobs):
            queued = self._pool.take_back()
            if queued is not None:
                made[queued] = jobs[queued]()
                self._serve(0.0)
                continue
            over = [r for r in jobs if r not in made and r.is_over]
            for r in over:
                made[r] = _answer(r) or jobs[r]()
            if not over:
                self._serve(math.inf)
        return made

    def close(self) -> None:
        self._pool.close()

    def _serve(self, seconds: float) -> None:
        try:
            self._pool.serve(seconds)
        except UserError as e:  # no process can be started
            _log.warning("compiling without further processes: %s", e.message)
            self._pool.limit = 0


def _answer(request: PoolRequest) -> RangeProgramMade | None:
    """What a process has made; None if it failed."""
    if request.failure is not None:
        _log.warning("a program for smaller ranges is compiled here: %s", request.failure)
        return None
    assert request.answer is not None
    head, blobs = request.answer
    return None if head["error"] else RangeProgramMade.unpacked(head, blobs)

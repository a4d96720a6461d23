"""Object code from several processes at once.

LLVM holds one lock per process, so its work is handed to workers (`tilewright.driver.worker`) while this process goes
on making IR. Nothing here waits but `result`: IR is queued, and pipes are served in passing. Whoever waits for a result
compiles what is still queued, so that no core is idle; without workers that is all that happens.

A worker that dies or takes too long is replaced, once; its module is compiled here, and a warning says so. No answer
is trusted to come: the same objects are made in any case.
"""

import logging
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.codegen.objects import compile_object
from tilewright.driver.worker import compile_ir, target_to_json
from tilewright.runtime.machine import default_threads
from tilewright.support.closing import Closing
from tilewright.support.errors import UserError
from tilewright.support.frames import pack, unpack
from tilewright.support.pool import Pool, PoolRequest, module_command
from tilewright.target.target import Target

_log = logging.getLogger("tilewright")

_COMMAND = module_command("tilewright.driver.worker")
_MAX_WORKERS = 7
_BACKLOG = 2  # modules that wait before another worker is worth starting
_TIMEOUT = 60.0  # seconds for a module: they take tens of milliseconds
_LOSSES = 2  # workers that may be lost before we do without


def default_workers(root: Path = Path("/")) -> int:
    """`TILEWRIGHT_WORKERS`, or one for each idle core but the one that we run on."""
    setting = os.environ.get("TILEWRIGHT_WORKERS", "")
    if setting and not setting.isdecimal():
        raise UserError(
            f"TILEWRIGHT_WORKERS = {setting!r} is not a number", hint="0 compiles without workers"
        )
    if setting:
        return min(int(setting), 64)
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
class CodegenJob:
    """A module of LLVM IR, and its object as soon as it is compiled; not `is_new` if the cache had it already."""

    ir: str
    object: bytes | None = None
    is_new: bool = True
    request: PoolRequest | None = None


class Workers(Closing):
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
        self._target, self._timeout = target, timeout
        self._context = pack({}, (target_to_json(target),))
        limit = default_workers() if limit is None else limit
        self._pool = Pool(command, limit, backlog=_BACKLOG, losses=_LOSSES, start_seconds=timeout)
        try:
            self._pool.start(1, self._context)
        except UserError as e:
            self._do_without(e)

    @property
    def pids(self) -> list[int]:
        return self._pool.pids

    def submit(self, ir: str) -> CodegenJob:
        request = self._pool.submit(pack({}, (ir.encode(),)), self._timeout, self._context)
        self._serve(0.0)
        return CodegenJob(ir, request=request)

    def result(self, job: CodegenJob) -> bytes:
        """Waits for the object. An error of LLVM is raised as if it had been compiled here."""
        while job.object is None:
            request = job.request
            if request is None or request.failure is not None:
                job.object = compile_object(job.ir, self._target)
            elif request.answer is not None:
                head, blobs = request.answer
                job.object = compile_object(job.ir, self._target) if head["error"] else blobs[0]
            elif (queued := self._pool.take_back()) is not None:
                queued.answer = compile_ir(unpack(queued.body)[1][0], self._target)
                self._serve(0.0)
            else:
                self._serve(math.inf)
        job.request = None
        return job.object

    def close(self) -> None:
        """End the workers; what was not asked for is dropped."""
        self._pool.limit = 0
        self._pool.close()

    def _serve(self, seconds: float) -> None:
        try:
            over = self._pool.serve(seconds)
        except UserError as e:
            self._do_without(e)
            return
        for failure in (r.failure for r in over if r.failure is not None):
            after = "another takes its place" if self._pool.limit else "compiling without worker processes"
            _log.warning("a worker is lost: %s; %s", failure, after)

    def _do_without(self, why: UserError) -> None:
        _log.warning("compiling without worker processes: %s", why.message)
        self._pool.limit = 0

"""Timing candidates inside of a program, in a process that may be ended at any time (`tilewright.tuning.inside`).

Whatever candidates do, `run` returns: with the times of each, or with the way in which it failed. Where one of them
ends the process, or keeps it for too long, that one has failed, and the others are run again without it.
"""

import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tilewright.ir.expr import Buffer
from tilewright.ir.simplify import Simplifier
from tilewright.runtime import file
from tilewright.support.artifact import Artifact
from tilewright.support.closing import Closing
from tilewright.support.errors import UserError
from tilewright.support.frames import pack
from tilewright.support.pool import Pool, PoolRequest, ProcessDied, ProcessLate, module_command
from tilewright.support.turns import Series
from tilewright.tir.analysis.regions import accesses, covering_region, loop_extents
from tilewright.tir.func import Func
from tilewright.tuning.inside import NOBODY, PlacedTensor, SiteSpec, read_progress
from tilewright.tuning.sites import SitedProgram
from tilewright.tuning.trial import Candidate, TrialStatus
from tilewright.tuning.trials import died
from tilewright.tuning.tuner import tolerance

_SETUP_SECONDS = 120.0  # to load a program, on a busy machine
_TRIES = 4  # of one batch, each with one candidate less


@dataclass(frozen=True, slots=True)
class InsideOutcome:
    """`ratios`: the times of a candidate over those of what was compiled, at the same site, run by run: one of the
    program with it, and the neighbouring one without.
    """

    status: TrialStatus
    ratios: tuple[float, ...] = ()
    message: str = ""
    is_lost: bool = False  # nothing is known of it: whoever was to time it is gone

    @property
    def ratio(self) -> float:
        """Their median; infinite if it failed."""
        return median(self.ratios) if self.ratios else math.inf


class Insides(Closing):
    """One program at a time. Use it as a context manager: its process and its files end with it."""

    copies = 1

    def __init__(self, threads: int, seed: int = 0) -> None:
        self._threads, self._seed = threads, seed
        self._pool = Pool(module_command("tilewright.tuning.inside"))
        self._folder = tempfile.TemporaryDirectory(prefix="tilewright-")
        self._progress = Path(self._folder.name) / "progress"
        self._progress.write_bytes(NOBODY.to_bytes(8, "little", signed=True))
        self._reference: bytes = b""  # sets up the first program
        self._setup: bytes = b""
        self._prepared: list[int] = []  # the process that has the program
        self._pace = 0.0  # seconds of a run of the first program, when it was set up
        self.seconds: list[float] = []  # of each site, as compiled

    def close(self) -> None:
        self._pool.close()
        self._folder.cleanup()

    def prepare(self, program: SitedProgram, runs: int) -> None:
        """Run what follows inside of this program, whose sites are timed as they are. Times are as if the machine was
        as quick as when the first program was prepared, which takes turns with it.
        """
        self.prepare_sites(program.artifact, site_specs(program), runs)

    def prepare_sites(self, artifact: Artifact, specs: Sequence[SiteSpec], runs: int) -> None:
        """The same of a program that is given by what it runs, and its sites."""
        head = {
            "do": "prepare",
            "program": self._saved("program.tw" if self._reference else "reference.tw", artifact),
            "sites": [s.as_json() for s in specs],
            "threads": self._threads,
            "seed": self._seed,
            "progress": str(self._progress),
            "runs": runs,
        }
        self._setup = pack(head)
        self._reference = self._reference or self._setup
        self._set_up()

    def _saved(self, name: str, artifact: Artifact) -> str:
        path = os.path.join(self._folder.name, name)
        file.save(artifact, path)
        return path

    def _set_up(self) -> None:
        if self._setup is not self._reference and self._pool.pids != self._prepared:
            self._said(self._answered(self._reference, _SETUP_SECONDS))
        said = self._said(self._answered(self._setup, _SETUP_SECONDS))
        self._prepared = self._pool.pids
        own, now = (np.min(np.array(said[name]), axis=0) for name in ("runs", "reference"))
        self._pace = self._pace or float(now.sum())
        self.seconds = [float(s) * self._pace / float(now.sum()) for s in own]

    def _answered(self, body: bytes, timeout: float) -> PoolRequest:
        request = self._pool.submit(body, timeout)
        self._pool.wait(request)
        return request

    def _said(self, request: PoolRequest) -> dict[str, Any]:
        if request.answer is None:
            raise UserError(f"the process for measurements has failed: {request.failure}")
        head, _ = request.answer
        if head["status"] != TrialStatus.OK.value:
            raise UserError(f"the program cannot be measured: {head.get('message', '')}")
        return head

    # ---------------------------------------------------------------------------------------------------- candidates

    def run(self, placed: Sequence[tuple[int, Candidate]], runs: int) -> list[InsideOutcome]:
        """Candidates, each at a site of its own, in order."""
        found: dict[int, InsideOutcome] = {}
        for _ in range(_TRIES):
            left = [n for n in range(len(placed)) if n not in found]
            if not left:
                break
            found |= self._tried({n: placed[n] for n in left}, runs)
        unknown = InsideOutcome(TrialStatus.RUN_ERROR, message="others that stood beside it have failed")
        return [found.get(n, unknown) for n in range(len(placed))]

    def _tried(self, placed: dict[int, tuple[int, Candidate]], runs: int) -> dict[int, InsideOutcome]:
        """What became of all of them; or of the one that has ended the process."""
        if self._pool.pids != self._prepared or not self._prepared:
            self._set_up()
        numbers = list(placed)
        head = {"do": "trial", "runs": runs, "placed": [[s, c.head()] for s, c in placed.values()]}
        blobs = [o for _, c in placed.values() for o in c.objects]
        request = self._answered(pack(head, blobs), 20.0 + 20 * (2 * runs + 2) * sum(self.seconds))
        if isinstance(request.failure, ProcessDied | ProcessLate):
            guilty = read_progress(str(self._progress))
            if not 0 <= guilty < len(numbers):
                guilty = 0  # nobody knows who it was: one less is tried each time
            return {numbers[guilty]: _failed(request.failure)}
        said = self._said(request)
        return {n: _outcome(r) for n, r in zip(numbers, said["results"], strict=True)}

    # ------------------------------------------------------------------------------------------------ whole programs

    def compare(
        self, programs: Sequence[Artifact], *, rounds: int, seconds: float, tolerance: float
    ) -> list[Series] | str:
        """Whole programs in turns: their times, or what is wrong with one of them."""
        paths = [self._saved(f"whole{n}.tw", a) for n, a in enumerate(programs)]
        head = {
            "do": "compare",
            "programs": paths,
            "threads": self._threads,
            "seed": self._seed,
            "rounds": rounds,
            "seconds": seconds,
            "tolerance": tolerance,
        }
        self._prepared = []  # it makes room for these
        request = self._answered(pack(head), _SETUP_SECONDS + 20 * rounds * len(programs) * seconds)
        if request.answer is None:
            return str(request.failure)
        said, _ = request.answer
        if said["status"] != TrialStatus.OK.value:
            return f"{said['status']}: {said.get('message', '')}"
        return [Series(tuple(map(tuple, r))) for r in said["rounds"]]


def site_specs(program: SitedProgram) -> list[SiteSpec]:
    """The sites of a program as the process that times them needs them."""
    found: list[SiteSpec] = []
    for s in program.sites:
        func, _ = program.funcs[s.task]
        parts = _written_parts(func)
        tensors = {
            p: PlacedTensor(slot, p.dtype.numpy.name, p.shape, parts.get(p, ()))
            for p, slot in zip(func.params, s.args, strict=True)
        }
        inputs = tuple(t for p, t in tensors.items() if p not in func.outputs)
        outputs = tuple(tensors[p] for p in func.outputs)
        found.append(SiteSpec(s.first, s.count, inputs, outputs, tolerance(func)))
    return found


def _written_parts(func: Func) -> dict[Buffer, tuple[tuple[int, int], ...]]:
    """The box of each output that holds all that is written of it."""
    touched, ranging, simplify = accesses(func.body, reads=False), loop_extents(func.body), Simplifier()
    found: dict[Buffer, tuple[tuple[int, int], ...]] = {}
    for p in func.outputs:
        spans = covering_region(touched, p, ranging, simplify)
        if spans is not None:
            firsts = [simplify.constant(s.min) for s in spans]
            found[p] = tuple(
                (0, size) if first is None else (first, first + s.extent)
                for first, s, size in zip(firsts, spans, p.shape, strict=True)
            )
    return found


def _outcome(said: dict[str, Any]) -> InsideOutcome:
    status = TrialStatus(said["status"])
    if status is not TrialStatus.OK:
        return InsideOutcome(status, message=said.get("message", ""))
    # The machine drifts by more than candidates differ, and neighbours have that in common.
    pairs = zip(said["seconds"], said["base"], strict=True)
    return InsideOutcome(status, tuple(one / other for one, other in pairs))


def _failed(failure: ProcessDied | ProcessLate) -> InsideOutcome:
    if isinstance(failure, ProcessLate):
        return InsideOutcome(TrialStatus.TIMEOUT, message="it ran for too long")
    outcome = died(failure.code)
    return InsideOutcome(outcome.status, message=outcome.message)

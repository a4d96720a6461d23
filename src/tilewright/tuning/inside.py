"""The process in which candidates run inside of a program: `python -m tilewright.tuning.inside`.

The first packet names a compiled program and its sites (`tuning/sites.py`). Each of the others brings candidates, and
says at which sites they stand. The program then runs with all of them in their places, in turns with the program as it
was compiled, and each site is timed by itself: what a candidate finds in the caches is what the kernels before it leave
there, its weights come from where they come from in a run, and as many candidates are timed in one run as there are
sites.

Before that each is checked, one site after the other, on what the compiled program has there. Whatever a candidate
makes is compared with what the compiled kernels make of the same, and replaced by it.

A candidate may crash or never end. Which one runs is in a file that whoever started this process can read after it is
gone.
"""

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tilewright.runtime import file
from tilewright.runtime.dtypes import numpy_dtype
from tilewright.runtime.loader import Code
from tilewright.runtime.memory import Constants, MemoryRegion, address_of, empty_aligned
from tilewright.runtime.program import ExecutionPlan, RunContext, call_rows, is_shared
from tilewright.runtime.team import Team
from tilewright.support.answering import answer_requests
from tilewright.support.arrays import Array
from tilewright.support.artifact import Artifact, KernelCall, Place, Segment, Slot, TensorSpec
from tilewright.support.driver_abi import CallRow, Job
from tilewright.support.errors import UserError
from tilewright.support.frames import pack
from tilewright.support.program import leaves
from tilewright.support.turns import take_turns, until_clear
from tilewright.tuning.trial import Candidate, TrialStatus, find_difference, random_input

NOBODY = -1  # no candidate runs
_EMPTY_JOBS = 100
_LOOK_AFTER_ROUNDS = 25  # whether it is clear which of two programs is quicker, given
_HOPELESS = 1.25  # times what was compiled, given: candidates that are so slow are not timed any longer
_SURELY = 2  # runs that say so, given: one may be disturbed
_LONG_RUN = 0.02  # seconds, given: caches keep little of what a program had for so long
_SPIN_US = "100000"  # inside of a program workers do not sleep between kernels: nor shall they between sites


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """Where a tensor of the program is, and what it is. `part` is the box of an output that the Func writes, by its
    first and its next element in each dimension: around it may be a border that another kernel fills.
    """

    slot: Slot
    dtype: str
    shape: tuple[int, ...]
    part: tuple[tuple[int, int], ...] = ()

    def as_json(self) -> list[Any]:
        return [self.slot.place.value, self.slot.at, self.dtype, self.shape, self.part]

    @staticmethod
    def of(row: list[Any]) -> "PlacedTensor":
        place, at, dtype, shape, part = row
        return PlacedTensor(
            Slot(Place(place), at), dtype, tuple(shape), tuple((first, end) for first, end in part)
        )

    def in_part(self) -> Array:
        """Which elements are in the box."""
        found = np.zeros(self.shape, np.bool_)
        found[tuple(slice(first, end) for first, end in self.part)] = True
        return found


@dataclass(frozen=True, slots=True)
class SiteSpec:
    """A site as this process needs it: which kernel calls are its own, what candidates for it read and write, and how
    far their results may be off.
    """

    first: int
    count: int
    inputs: tuple[PlacedTensor, ...]
    outputs: tuple[PlacedTensor, ...]
    tolerance: float

    def as_json(self) -> list[Any]:
        rows = [[t.as_json() for t in tensors] for tensors in (self.inputs, self.outputs)]
        return [self.first, self.count, *rows, self.tolerance]

    @staticmethod
    def of(row: list[Any]) -> "SiteSpec":
        first, count, inputs, outputs, tolerance = row
        read, written = (tuple(map(PlacedTensor.of, rows)) for rows in (inputs, outputs))
        return SiteSpec(first, count, read, written, tolerance)


@dataclass(frozen=True, slots=True, eq=False)
class SiteJob:
    """Kernel calls as a job for the driver. It keeps what its pointers lead to."""

    address: int
    memory: object

    @staticmethod
    def of(
        calls: Sequence[KernelCall],
        function: Callable[[str], int],
        pointer: Callable[[Slot], int],
        team: Team,
        kept: object = None,
    ) -> "SiteJob":
        args = [(ctypes.c_uint64 * max(1, len(c.args)))(*(pointer(s) for s in c.args)) for c in calls]
        made = call_rows(calls, [function(c.kernel) for c in calls], [ctypes.addressof(a) for a in args])
        rows = (CallRow * max(1, len(made)))(*made)
        job = Job()
        job.calls, job.n = ctypes.addressof(rows), len(made)
        job.team = team.address if team.threads > 1 and is_shared(calls) else 0
        return SiteJob(ctypes.addressof(job), (args, rows, job, kept))


@dataclass(slots=True, eq=False)
class _Right:
    """What the compiled kernels of a site make: the values, and which of them they write."""

    values: list[Array] = field(default_factory=list[Array])
    written: list[Array] = field(default_factory=list[Array])


class ProgramBench:
    """A program set up with its tensors and its team."""

    def __init__(self, head: dict[str, Any]) -> None:
        artifact = file.load_artifact(head["program"])
        self.sites = tuple(map(SiteSpec.of, head["sites"]))
        self.team = Team(Code([artifact.driver], name="driver"), head["threads"])
        if head["threads"] > 1:
            self.team.start()
        self._now = _Progress(head["progress"])
        self._memory = _ProgramMemory(artifact, head["seed"])
        self._scratch = MemoryRegion(1)
        code = Code(artifact.objects)
        calls = [c for s in leaves(artifact.program) if isinstance(s, Segment) for c in s.calls]
        self.jobs = [
            SiteJob.of(
                calls[s.first : s.first + s.count], code.address, self._memory.pointer, self.team, code
            )
            for s in self.sites
        ]
        self._empty = self._empty_seconds()
        self.run(self.jobs)
        self._right = [self._made_by(n) for n in range(len(self.sites))]

    def run(self, jobs: Sequence[SiteJob]) -> list[float]:
        """The seconds of each."""
        clock, run_job, empty = time.perf_counter, self.team.run_job, self._empty
        found: list[float] = []
        for job in jobs:
            start = clock()
            run_job(job.address)
            found.append(max(clock() - start - empty, 1e-9))
        return found

    def _empty_seconds(self) -> float:
        """What it takes to ask for nothing."""
        job = Job()
        address, times = ctypes.addressof(job), list[float]()
        for _ in range(_EMPTY_JOBS):
            start = time.perf_counter()
            self.team.run_job(address)
            times.append(time.perf_counter() - start)
        return min(times)

    def _made_by(self, n: int) -> _Right:
        """Run the compiled kernels of a site twice, on memory that is filled in two ways: what differs, they have not
        written. It stays as they make it. Around the part that the Func writes they may have written all the same: the
        memory plan puts what they hand on among themselves where an output is not yet.
        """
        outputs = self.sites[n].outputs
        views = [self._memory.view(t) for t in outputs]
        before, made = [v.copy() for v in views], list[list[Array]]()
        for filling in (0, 1):
            for v in views:
                _fill(v, filling)
            self.run([self.jobs[n]])
            made.append([v.copy() for v in views])
        right = _Right()
        for t, v, a, b, old in zip(outputs, views, *made, before, strict=True):
            written = (_bytes(a) == _bytes(b)).all(axis=-1)
            right.written.append(written & t.in_part())
            _bytes(v)[...] = np.where(right.written[-1][..., None], _bytes(a), _bytes(old))
            right.values.append(v.copy())
        return right

    # ---------------------------------------------------------------------------------------------------- candidates

    def place(self, site: int, candidate: Candidate, code: Code) -> SiteJob:
        """The candidate at a site: what it makes of constants is made."""
        spec = self.sites[site]
        if candidate.arena_bytes > self._scratch.array.size:
            self._scratch = MemoryRegion(candidate.arena_bytes)
        scratch = self._scratch
        constants = Constants([np.zeros(s.shape, numpy_dtype(s.dtype)) for s in candidate.made])

        def pointer(slot: Slot) -> int:
            match slot.place:
                case Place.INPUT:
                    return self._memory.pointer(spec.inputs[slot.at].slot)
                case Place.OUTPUT:
                    return self._memory.pointer(spec.outputs[slot.at].slot)
                case Place.CONSTANT:
                    return constants.addresses[slot.at]
                case Place.ARENA:
                    return scratch.address + slot.at

        kept = code, constants, scratch
        if candidate.early:
            self.run([SiteJob.of(candidate.early, code.address, pointer, self.team, kept)])
        return SiteJob.of(candidate.calls, code.address, pointer, self.team, kept)

    def check(self, placed: dict[int, tuple[int, SiteJob]]) -> dict[int, str]:
        """Run the program site by site, with the candidates (number and job) at theirs: what is wrong, by number."""
        wrong: dict[int, str] = {}
        for n, job in enumerate(self.jobs):
            number, own = placed.get(n, (NOBODY, job))
            right, views = self._right[n], [self._memory.view(t) for t in self.sites[n].outputs]
            if number != NOBODY:
                for v in views:
                    _fill(v, 0)
            self._now.set(number)
            self.run([own])
            self._now.set(NOBODY)
            for v, value, written in zip(views, right.values, right.written, strict=True):
                if number != NOBODY and number not in wrong:
                    difference = find_difference(v[written], value[written], self.sites[n].tolerance)
                    if difference:
                        wrong[number] = difference
                v[...] = value
        return wrong

    def trial(self, head: dict[str, Any], blobs: Sequence[bytes]) -> dict[str, Any]:
        """Candidates at their sites, each at one: how it went, and the seconds of each run, of the candidate and of
        what was compiled.
        """
        results: list[dict[str, Any]] = []
        placed: dict[int, tuple[int, SiteJob]] = {}
        at = 0
        for number, (site, one) in enumerate(head["placed"]):
            candidate = Candidate.of(one, blobs[at : at + one["objects"]])
            at += one["objects"]
            results.append({"status": TrialStatus.OK.value})
            self._now.set(number)
            try:
                placed[site] = number, self.place(site, candidate, Code(candidate.objects))
            except MemoryError as e:
                results[-1] = {"status": TrialStatus.OOM.value, "message": str(e) or "no memory"}
            except UserError as e:
                results[-1] = {"status": TrialStatus.RUN_ERROR.value, "message": e.message}
            self._now.set(NOBODY)
        wrong = self.check(placed)
        for number, why in wrong.items():
            results[number] = {"status": TrialStatus.WRONG_RESULT.value, "message": why}
        placed = {site: p for site, p in placed.items() if p[0] not in wrong}
        mixed = [placed[n][1] if n in placed else job for n, job in enumerate(self.jobs)]
        ours: list[list[float]] = []
        base: list[list[float]] = []
        for n in range(head["runs"]):  # in an order that alternates: the machine drifts
            first, second = (self.jobs, mixed) if n % 2 == 0 else (mixed, self.jobs)
            pair = self.run(first), self.run(second)
            base.append(pair[n % 2])
            ours.append(pair[1 - n % 2])
            pairs = zip(ours[-_SURELY:], base[-_SURELY:], strict=True)
            if n + 1 >= _SURELY and all(o[at] > _HOPELESS * b[at] for o, b in pairs for at in placed):
                break
        for site, (number, _) in placed.items():
            results[number] |= {"seconds": [r[site] for r in ours], "base": [r[site] for r in base]}
        return {"status": TrialStatus.OK.value, "results": results}

    def timed(self, runs: int, reference: "ProgramBench") -> dict[str, Any]:
        """The program as it was compiled: the seconds of each site in each run; and the same of the reference, in
        turns.
        """
        own: list[list[float]] = []
        others: list[list[float]] = []
        for _ in range(runs):
            others.append(reference.run(reference.jobs))
            own.append(self.run(self.jobs))
        return {"status": TrialStatus.OK.value, "runs": own, "reference": others}


class _ProgramMemory:
    """The tensors of a program, at random."""

    def __init__(self, artifact: Artifact, seed: int) -> None:
        manifest = artifact.manifest
        self.arena = MemoryRegion(artifact.arena_bytes)
        self.constants = Constants(artifact.constants)
        self.inputs = [_random(s, seed + n) for n, s in enumerate(manifest.inputs)]
        self.outputs = [empty_aligned(s.shape, numpy_dtype(s.dtype)) for s in manifest.written]

    def pointer(self, slot: Slot) -> int:
        match slot.place:
            case Place.INPUT:
                return address_of(self.inputs[slot.at])
            case Place.OUTPUT:
                return address_of(self.outputs[slot.at])
            case Place.CONSTANT:
                return self.constants.addresses[slot.at]
            case Place.ARENA:
                return self.arena.address + slot.at

    def view(self, t: PlacedTensor) -> Array:
        """A tensor that kernels write."""
        if t.slot.place is Place.OUTPUT:
            return self.outputs[t.slot.at]
        dtype = numpy_dtype(t.dtype)
        memory = self.arena.array[t.slot.at : t.slot.at + dtype.itemsize * prod(t.shape)]
        return memory.view(dtype).reshape(t.shape)


def _random(spec: TensorSpec, seed: int) -> Array:
    made = empty_aligned(spec.shape, numpy_dtype(spec.dtype))
    made[...] = random_input(spec, seed)
    return made


def _bytes(a: Array) -> Array:
    """The same memory, with one dimension more: the bytes of an element."""
    return a.reshape(*a.shape, 1).view(np.uint8)


def _fill(a: Array, filling: int) -> None:
    """With one of two values that no kernel makes by chance: NaN, or 1; of bool, with one of the two."""
    _bytes(a)[...] = filling if a.dtype == np.bool_ else 255 if filling == 0 else 1


class _Progress:
    """The number of the candidate that runs, where another process can read it. It is written by the kernel: what a
    candidate writes to wrong places cannot reach it.
    """

    def __init__(self, path: str) -> None:
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115 - open as long as this process runs

    def set(self, number: int) -> None:
        os.pwrite(self._file.fileno(), number.to_bytes(8, "little", signed=True), 0)


def read_progress(path: str) -> int:
    """Which candidate ran last; NOBODY if none did."""
    with open(path, "rb") as opened:
        return int.from_bytes(opened.read(8), "little", signed=True)


# ------------------------------------------------------------------------------------------------------ whole programs


def compare_programs(head: dict[str, Any]) -> dict[str, Any]:
    """Whole programs in turns, as sessions run them: the seconds of each round. The outputs of the others are compared
    with those of the first.
    """
    contexts: list[RunContext] = []
    expected: list[Array] = []
    team: Team | None = None
    for path in head["programs"]:
        artifact = file.load_artifact(path)
        if team is None:
            team = Team(Code([artifact.driver], name="driver"), head["threads"])
            team.start()
        context = RunContext(
            ExecutionPlan(artifact, Code(artifact.objects), Constants(artifact.constants), {}, team)
        )
        specs = artifact.manifest.inputs
        inputs = [_random(s, head["seed"] + n) for n, s in enumerate(specs)]
        outputs = [empty_aligned(s.shape, numpy_dtype(s.dtype)) for s in artifact.manifest.written]
        context.attach(inputs, outputs)
        context.run()
        expected = expected or [a.copy() for a in outputs]
        for got, want in zip(outputs, expected, strict=True):
            wrong = find_difference(got, want, head["tolerance"])
            if wrong:
                return {"status": TrialStatus.WRONG_RESULT.value, "message": wrong}
        contexts.append(context)
    turns = {n: lambda c=c: _turn(c, head["seconds"]) for n, c in enumerate(contexts)}
    go_on = until_clear(0, 1, _LOOK_AFTER_ROUNDS) if len(turns) == 2 else None
    found = take_turns(turns, head["rounds"], pause=0.0, go_on=go_on)  # all have one team
    return {"status": TrialStatus.OK.value, "rounds": [found[n].rounds for n in turns]}


def _turn(context: RunContext, seconds: float) -> list[float]:
    """Runs for about so long; if they are short, after one in which it brings its own data to the caches."""
    start = time.perf_counter()
    context.run()
    first = time.perf_counter() - start
    times, end = ([first], start + seconds) if first > _LONG_RUN else ([], start + first + seconds)
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        context.run()
        times.append(time.perf_counter() - start)
    return times


class InsideServer:
    """The program that was set up last is the one that candidates stand in, the first one the reference."""

    def __init__(self) -> None:
        self._bench: ProgramBench | None = None
        self._reference: ProgramBench | None = None

    def answer(self, head: Any, blobs: list[bytes]) -> bytes:
        try:
            return pack(self._answer(head, blobs))
        except MemoryError as e:
            return pack({"status": TrialStatus.OOM.value, "message": str(e) or "no memory"})
        except UserError as e:
            return pack({"status": TrialStatus.RUN_ERROR.value, "message": e.message})

    def _answer(self, head: Any, blobs: list[bytes]) -> dict[str, Any]:
        match head["do"]:
            case "prepare":
                self._bench = None  # what the last program had is free before the next is set up
                self._bench = ProgramBench(head)
                if (
                    self._reference is None
                ):  # memory of its own, so that the first program is disturbed as others are
                    self._reference = ProgramBench(head)
                return self._bench.timed(head["runs"], self._reference)
            case "compare":
                self._bench = self._reference = None
                return compare_programs(head)
            case _:
                assert self._bench is not None, "there is no program"
                return self._bench.trial(head, blobs)


if __name__ == "__main__":
    os.environ["TILEWRIGHT_SPIN_US"] = _SPIN_US
    answer_requests(InsideServer().answer)

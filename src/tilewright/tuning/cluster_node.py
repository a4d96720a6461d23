"""What runs on the nodes of a cluster: actors that build candidates, and those that time them inside of a program.

Both have processes of their own for native code that nobody has run before, as a tuning on one machine has, so that an
actor outlives what candidates do. Programs and tasks come as bytes, once.
"""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.driver.keys import rules_digest, target_digest
from tilewright.runtime import file
from tilewright.support.artifact import Artifact
from tilewright.support.errors import UserError
from tilewright.support.extensions import load_extensions
from tilewright.support.turns import Series
from tilewright.target.names import resolve_target
from tilewright.tuning.candidates import Built, Candidates, Point
from tilewright.tuning.crew import NodeProblem
from tilewright.tuning.inside import SiteSpec
from tilewright.tuning.insides import InsideOutcome, Insides
from tilewright.tuning.trial import Candidate
from tilewright.version import __version__

ProgramBytes = NDArray[np.uint8]  # a .tw file: as an array it is read where the object store has it


def program_bytes(artifact: Artifact) -> ProgramBytes:
    return np.frombuffer(file.to_bytes(artifact), np.uint8)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node says of itself. `target`: of the machine that it is, empty where our code does not run."""

    host: str
    target: str
    rules: str
    version: str

    def is_like(self, other: "NodeReport") -> bool:
        """Can what is measured on one be held against what is measured on the other?"""
        return self.target == other.target and bool(self.target)

    def has_same_rules(self, other: "NodeReport") -> bool:
        """Do points mean the same on both?"""
        return (self.rules, self.version) == (other.rules, other.version)


def node_report() -> NodeReport:
    """Of the machine that this runs on."""
    load_extensions()
    try:
        target = target_digest(resolve_target("native"))
    except UserError:  # another architecture
        target = ""
    return NodeReport(platform.node(), target, rules_digest(), __version__)


class NodeBuilder:
    """Builds candidates, in a process for each of the node's cores."""

    def __init__(self, cores: int) -> None:
        self._candidates = Candidates(cores)
        self._tasks: dict[str, bytes] = {}

    def report(self) -> NodeReport:
        return node_report()

    def start(self) -> None:
        self._candidates.start()

    def build(self, wanted: Sequence[tuple[str, Point]], tasks: Mapping[str, bytes]) -> list[Built]:
        """Points of tasks, which are named by their keys. `tasks` are packets of those that it was not told yet."""
        self._tasks |= tasks
        return self._candidates.build_packets([(key, self._tasks[key], point) for key, point in wanted])


class NodeRunner:
    """Times candidates inside of its own copy of a program."""

    def __init__(self, threads: int, seed: int) -> None:
        self._inside = Insides(threads, seed)

    def is_ready(self) -> bool:
        """It is there as soon as the node's cores are its own."""
        return True

    def prepare(
        self, program: ProgramBytes, specs: Sequence[SiteSpec], runs: int
    ) -> list[float] | NodeProblem:
        """The seconds of each site, as compiled."""
        try:
            self._inside.prepare_sites(_artifact(program), specs, runs)
        except UserError as e:
            return NodeProblem(e.message)
        return self._inside.seconds

    def run(self, placed: Sequence[tuple[int, Candidate]], runs: int) -> list[InsideOutcome] | NodeProblem:
        try:
            return self._inside.run(placed, runs)
        except UserError as e:  # of the program as it was compiled: no candidate is to blame
            return NodeProblem(e.message)

    def compare(
        self, rounds: int, seconds: float, tolerance: float, *programs: ProgramBytes
    ) -> list[Series] | str:
        artifacts = [_artifact(p) for p in programs]
        return self._inside.compare(artifacts, rounds=rounds, seconds=seconds, tolerance=tolerance)


def _artifact(program: ProgramBytes) -> Artifact:
    return file.from_bytes(program.data)

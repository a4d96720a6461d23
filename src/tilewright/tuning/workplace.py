"""Where a program is tuned: who builds candidates, and who times them inside of the program.

On this machine that is done by processes (`tuning/candidates.py`, `tuning/insides.py`), on several by actors that have
such processes of their own (`tuning/cluster.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.runtime.machine import default_threads
from tilewright.support.artifact import Artifact
from tilewright.support.closing import Closing
from tilewright.support.errors import Hint, UserError
from tilewright.support.turns import Series
from tilewright.tuning.candidate import Task
from tilewright.tuning.candidates import Built, Candidates, Point
from tilewright.tuning.cluster import Cluster, ClusterBuilder, ClusterRunner
from tilewright.tuning.insides import InsideOutcome, Insides
from tilewright.tuning.sites import SitedProgram
from tilewright.tuning.trial import Candidate

RAY = "ray"


class CandidateBuilder(Protocol):
    """Builds candidates."""

    def start(self) -> None:
        """Begin to start what builds, so that it is there when it is needed."""
        ...

    def wait_until_ready(self) -> None:
        """Until what was started does not take time from what is measured."""
        ...

    def build_all(self, wanted: Sequence[tuple[Task, Point]]) -> list[Built]: ...

    def close(self) -> None: ...


class ProgramRunner(Protocol):
    """Times candidates inside of a program, and whole programs."""

    @property
    def copies(self) -> int:
        """How many copies of the program there are: as many candidates of a site run at once."""
        ...

    @property
    def seconds(self) -> Sequence[float]:
        """Of each site of the program, as compiled."""
        ...

    def prepare(self, program: SitedProgram, runs: int) -> None:
        """Run what follows inside of this program, whose sites are timed as they are."""
        ...

    def run(self, placed: Sequence[tuple[int, Candidate]], runs: int) -> list[InsideOutcome]:
        """Candidates at sites, no more than `copies` of them at one."""
        ...

    def compare(
        self, programs: Sequence[Artifact], *, rounds: int, seconds: float, tolerance: float
    ) -> list[Series] | str:
        """Whole programs in turns: their times, or what is wrong with one of them."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Workplace(Closing):
    """Use it as a context manager: what it has started ends with it."""

    builder: CandidateBuilder
    runner: ProgramRunner
    cluster: Cluster | None = None

    def close(self) -> None:
        self.builder.close()
        self.runner.close()
        if self.cluster is not None:
            self.cluster.close()


def check_place(on: str | None, address: str | None) -> None:
    """UserError if there is no such place to tune on."""
    if on not in (None, RAY):
        raise UserError(f"nothing can be tuned on {on!r}", hint=f"{RAY!r}, or leave it out for this machine")
    if address is not None and on is None:
        raise UserError(
            "an address is that of a cluster",
            hint=Hint(f'tune with on="{RAY}"', command=f"give --on {RAY} as well"),
        )


def workplace(on: str | None, address: str | None, threads: int, seed: int) -> Workplace:
    """This machine, or the cluster at `address`; nothing is started yet."""
    check_place(on, address)
    if on is None:
        return Workplace(Candidates(default_threads()), Insides(threads, seed))
    cluster = Cluster(address, threads, seed)
    return Workplace(ClusterBuilder(cluster), ClusterRunner(cluster), cluster)

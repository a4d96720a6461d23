"""A loop of multiply-adds on registers that takes its turns like an engine, so that limits and times are neighbours."""

from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from tilewright.cli.catalogue import Peer
from tilewright.cli.guest.job import EngineJob
from tilewright.cli.peak import fma_loop
from tilewright.support.progress import OnProgress
from tilewright.target.target import native

GFLOP = 0.1  # of a run on one core: a millisecond or so, to fit between disturbances
PEAK = Peer("peak", "Multiply-adds", "benchmarks.peak_engine:PeakEngine", (), "")


class PeakEngine:
    """Runs on one core, whatever the number of threads: cores do not disturb each other at this."""

    version = ""

    def __init__(self, job: EngineJob, progress: OnProgress) -> None:
        loop = fma_loop(native(), seconds=0.0001)
        steps = round(loop.steps * GFLOP * 1e9 / loop.flops)
        self._loop = replace(loop, steps=steps, flops=steps * (loop.flops // loop.steps))
        self._outputs = len(job.outputs)

    def bind(self, feeds: dict[str, NDArray[Any]]) -> None:
        """It takes none."""

    def run(self) -> None:
        self._loop.run()

    def results(self) -> list[None]:
        """Nothing that could be compared."""
        return [None] * self._outputs

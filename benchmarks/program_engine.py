"""A compiled program as an engine among others: the file that lies beside the model under the engine's name."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tilewright.api import load
from tilewright.cli.catalogue import Peer
from tilewright.cli.guest.job import EngineJob
from tilewright.support.progress import OnProgress
from tilewright.version import __version__


def program_engine(name: str, title: str) -> Peer:
    return Peer(name, title, "benchmarks.program_engine:ProgramEngine", (), "")


def program_path(model: Path, engine: str) -> Path:
    """Where the program that the engine runs for a model has to be."""
    return model.with_suffix(f".{engine}.tw")


class ProgramEngine:
    """It is loaded, and not compiled."""

    version = __version__

    def __init__(self, job: EngineJob, progress: OnProgress) -> None:
        # The folder of an engine's results has its name.
        program = program_path(Path(job.model), Path(job.folder).name)
        self._session = load(program, threads=job.threads)

    def bind(self, feeds: dict[str, NDArray[Any]]) -> None:
        self._bound = self._session.bind(feeds)

    def run(self) -> None:
        self._results = self._bound.run()

    def results(self) -> list[Any]:
        return list(self._results.values())

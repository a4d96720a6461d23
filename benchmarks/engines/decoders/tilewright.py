"""Ours: the program that `tilewright generate` runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.engines.decoders.decoder import TextEngine
from tilewright.llm.config import read_config
from tilewright.llm.generate import Decoder
from tilewright.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tilewright.cli.guest.job import EngineJob, Progress


class Ours(TextEngine):
    version = __version__

    def __init__(self, job: EngineJob, progress: Progress) -> None:
        super().__init__()
        config = read_config(Path(job.options["config"]))
        context = job.options["context"]
        self._decoder = Decoder(Path(job.model), config, context=context, threads=job.threads)

    def begin(self) -> None:
        self._text = self._decoder.text()

    def append(self, tokens: Sequence[int]) -> NDArray[Any]:
        return self._text.append(tokens)[0]

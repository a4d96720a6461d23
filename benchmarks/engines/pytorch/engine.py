"""PyTorch, eager and compiled by Inductor, as engines of the benchmarks."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tilewright.cli.guest.job import EngineJob, Progress

Array = NDArray[Any]


class Torch:
    """PyTorch, eager: the file as straight-line calls of PyTorch for the shapes of the inputs."""

    def __init__(self, job: EngineJob, progress: Progress) -> None:
        torch: Any = import_module("torch")
        self.version = torch.__version__
        self._torch = torch
        torch.set_num_threads(job.threads)
        inputs = self._tensors(job.read_feeds())
        with torch.no_grad():
            self._module = import_module(".translate", __package__).translate(job.model, inputs)

    def _tensors(self, feeds: dict[str, Array]) -> list[Any]:
        return [self._torch.from_numpy(np.array(v, order="C")) for v in feeds.values()]

    def bind(self, feeds: dict[str, Array]) -> None:
        self._inputs = self._tensors(feeds)

    def run(self) -> None:
        with self._torch.inference_mode():
            self._outputs: Any = self._module(*self._inputs)

    def results(self) -> list[Array]:
        return [value.detach().numpy() for value in self._outputs]


class Inductor(Torch):
    """torch.compile with Inductor in its default mode and frozen weights; compiled in the first run.

    What it compiles stays in `TORCHINDUCTOR_CACHE_DIR` (a folder of PyTorch's choice unless set), so that a model that
    was measured before starts quicker; its code has the number of threads in it, so each number compiles once.
    """

    def __init__(self, job: EngineJob, progress: Progress) -> None:
        # Compilers run in this process: workers would outlive the compilation and take turns of others.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        super().__init__(job, progress)
        config: Any = import_module("torch._inductor.config")
        config.freezing = True
        config.cpp.threads = job.threads  # named, so that what is cached is not taken for another number
        self._module = self._torch.compile(self._module, backend="inductor", dynamic=False)

    def run(self) -> None:
        with self._torch.no_grad():  # freezing does not work in inference mode
            self._outputs: Any = self._module(*self._inputs)

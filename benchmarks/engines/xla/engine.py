"""XLA, as an engine of the benchmarks."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tilewright.cli.guest.job import EngineJob, Progress

Array = NDArray[Any]


class Xla:
    """XLA through JAX: the file as a function of JAX, compiled for the shapes of the inputs."""

    def __init__(self, job: EngineJob, progress: Progress) -> None:
        os.environ["NPROC"] = str(job.threads)  # of XLA's pool, which starts with its first use
        jax: Any = import_module("jax")
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)  # integers stay as long as they are
        self.version = jax.__version__
        self._jax = jax
        function, weights = import_module(".translate", __package__).translate(job.model)
        self._weights: Any = jax.device_put(weights)
        feeds = list(job.read_feeds().values())
        self._compiled = jax.jit(function).lower(self._weights, feeds).compile()

    def bind(self, feeds: dict[str, Array]) -> None:
        self._inputs: Any = self._jax.device_put(list(feeds.values()))

    def run(self) -> None:
        self._outputs: Any = self._jax.block_until_ready(self._compiled(self._weights, self._inputs))

    def results(self) -> list[Array]:
        return [np.asarray(value) for value in self._outputs]

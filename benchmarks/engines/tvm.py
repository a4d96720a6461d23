"""Apache TVM, as an engine of the benchmarks."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tilewright.cli.guest.job import EngineJob, Progress

Array = NDArray[Any]


class Tvm:
    """Apache TVM's Relax, untuned (its `zero` pipeline), for this processor and the shapes of the inputs."""

    def __init__(self, job: EngineJob, progress: Progress) -> None:
        os.environ["TVM_NUM_THREADS"] = str(job.threads)  # of its pool, which starts with its first use
        tvm: Any = import_module("tvm")
        relax: Any = import_module("tvm.relax")
        self.version = tvm.__version__
        self._tvm = tvm
        shapes = {name: list(value.shape) for name, value in job.read_feeds().items()}
        model = import_module("onnx").load(job.model)
        importer: Any = import_module("tvm.relax.frontend.onnx")
        module = importer.from_onnx(model, shape_dict=shapes, keep_params_in_input=False)
        processor = tvm.get_global_func("target.llvm_get_system_cpu")()
        target = tvm.target.Target({"kind": "llvm", "mcpu": processor, "num-cores": job.threads})
        with target:
            program = tvm.compile(relax.get_pipeline("zero")(module), target=target)
        self._main = relax.VirtualMachine(program, tvm.cpu())["main"]

    def bind(self, feeds: dict[str, Array]) -> None:
        self._inputs = [self._tvm.runtime.tensor(np.ascontiguousarray(v)) for v in feeds.values()]

    def run(self) -> None:
        self._outputs: Any = self._main(*self._inputs)

    def results(self) -> list[Array]:
        found = self._outputs
        return [value.numpy() for value in ([found] if hasattr(found, "numpy") else found)]

"""Apache TVM, as an engine of the benchmarks."""

from __future__ import annotations

import os
import sys
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
        target = this_processor(tvm, job.threads)
        with target:
            program = tvm.compile(self._pipeline(relax, target, job)(module), target=target)
        self._main = relax.VirtualMachine(program, tvm.cpu())["main"]

    def _pipeline(self, relax: Any, target: Any, job: EngineJob) -> Any:
        return relax.get_pipeline("zero")

    def bind(self, feeds: dict[str, Array]) -> None:
        self._inputs = [self._tvm.runtime.tensor(np.ascontiguousarray(v)) for v in feeds.values()]

    def run(self) -> None:
        self._outputs: Any = self._main(*self._inputs)

    def results(self) -> list[Array]:
        found = self._outputs
        return [value.numpy() for value in ([found] if hasattr(found, "numpy") else found)]


class TvmTuned(Tvm):
    """With what MetaSchedule has found before: its records are in the folder `tuning_folder` of the model."""

    def _pipeline(self, relax: Any, target: Any, job: EngineJob) -> Any:
        return tuning_pipeline(relax, target, tuning_folder(job.model), trials=0)


def this_processor(tvm: Any, threads: int) -> Any:
    processor = tvm.get_global_func("target.llvm_get_system_cpu")()
    return tvm.target.Target({"kind": "llvm", "mcpu": processor, "num-cores": threads})


def tuning_folder(model: str) -> str:
    return os.path.splitext(model)[0] + ".metaschedule"


def tuning_pipeline(relax: Any, target: Any, folder: str, trials: int) -> Any:
    """Tune for so many trials, and compile with the best of all records."""
    return relax.get_pipeline("static_shape_tuning", target=target, total_trials=trials, work_dir=folder)


def tune(model: str, threads: int, batch: int) -> None:
    """With MetaSchedule, until somebody ends this process: what is found is written to a file as it goes, after each
    `batch` of candidates.
    """
    os.environ["TVM_NUM_THREADS"] = str(threads)
    tvm: Any = import_module("tvm")
    relax: Any = import_module("tvm.relax")
    importer: Any = import_module("tvm.relax.frontend.onnx")
    module = importer.from_onnx(import_module("onnx").load(model), keep_params_in_input=False)
    target = this_processor(tvm, threads)
    folder = tuning_folder(model)
    os.makedirs(folder, exist_ok=True)
    steps: Any = relax.transform
    # What the pipeline `static_shape_tuning` does before it tunes.
    before = [steps.DecomposeOpsForInference(), steps.CanonicalizeBindings(), relax.get_pipeline("zero")]
    tuner: Any = import_module("tvm.s_tir.meta_schedule.relax_integration")
    with target:
        module = tvm.transform.Sequential(before)(module)
        tuner.tune_relax(module, {}, target, folder, 1_000_000, num_trials_per_iter=batch)


if __name__ == "__main__":
    tune(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

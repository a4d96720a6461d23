"""ONNX Runtime, as an engine that `tilewright bench` times."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from numpy.typing import NDArray

from .job import EngineJob, Progress


class OnnxRuntimeGuest:
    """The CPU provider with all graph optimisations; inputs and outputs are bound, so nothing is copied."""

    def __init__(self, job: EngineJob, progress: Progress) -> None:
        onnxruntime: Any = import_module("onnxruntime")
        self.version = onnxruntime.__version__
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = job.threads, 1
        options.log_severity_level = 3
        self._values = onnxruntime.OrtValue
        self._session = onnxruntime.InferenceSession(job.model, options, providers=["CPUExecutionProvider"])

    def bind(self, feeds: dict[str, NDArray[Any]]) -> None:
        self._binding = self._session.io_binding()
        self._inputs = {n: self._values.ortvalue_from_numpy(v) for n, v in feeds.items()}
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for output in self._session.get_outputs():
            self._binding.bind_output(output.name, "cpu")

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def results(self) -> list[NDArray[Any]]:
        return self._binding.copy_outputs_to_cpu()

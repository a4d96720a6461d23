"""MNN, as an engine of the benchmarks."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tilewright.cli.guest.job import EngineJob, Progress

Array = NDArray[Any]


class Mnn:
    """Converted by MNN's own converter, at high precision. It has no 64-bit integers: they become 32-bit ones."""

    def __init__(self, job: EngineJob, progress: Progress) -> None:
        # The converter itself: the command line around it would send usage data.
        tools: Any = import_module("_tools")
        nn: Any = import_module("MNN.nn")
        self._expr: Any = import_module("MNN.expr")
        self.version = version("MNN")
        converted = os.path.join(job.folder, "model.mnn")
        command = ["mnnconvert", "-f", "ONNX", "--modelFile", job.model, "--MNNModel", converted]
        if not os.path.exists(converted):  # by an earlier run in this folder
            tools.mnnconvert([*command, "--bizCode", "x"])
        if not os.path.exists(converted):
            raise RuntimeError("MNN's converter has made no model of the file")
        config = {"backend": "CPU", "numThread": job.threads, "precision": "high"}
        self._runtime = nn.create_runtime_manager((config,))
        names = [name for name, _ in job.feeds or ()]
        self._module = nn.load_module_from_file(converted, names, job.outputs, runtime_manager=self._runtime)

    def bind(self, feeds: dict[str, Array]) -> None:
        self._inputs = [self._constant(np.asarray(v, order="C")) for v in feeds.values()]

    def _constant(self, value: Array) -> Any:
        e = self._expr
        kinds = {"float32": e.float, "int32": e.int, "uint8": e.uint8, "int8": e.int8}
        if value.dtype.name in ("int64", "bool"):
            value = value.astype(np.int32)
        if value.dtype.name not in kinds:
            raise TypeError(f"MNN takes no input of type {value.dtype}")
        return e.const(value, list(value.shape), e.NCHW, kinds[value.dtype.name])

    def run(self) -> None:
        self._outputs = self._module.onForward(self._inputs)
        for output in self._outputs:
            output.read()  # it computes when it is asked

    def results(self) -> list[Array]:
        e = self._expr
        plain = [e.convert(o, e.NCHW) if o.data_format == e.NC4HW4 else o for o in self._outputs]
        return [np.array(o.read()) for o in plain]

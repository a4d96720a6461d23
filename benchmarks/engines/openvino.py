"""OpenVINO, as an engine of the benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tilewright.cli.guest.job import EngineJob, Progress

Array = NDArray[Any]


class OpenVino:
    """One stream, tuned for latency, in float32. Inputs that are `kept` become states, each with the output that is its
    next value: those after the first, in their order.
    """

    def __init__(self, job: EngineJob, progress: Progress, kept: Sequence[str] = ()) -> None:
        openvino: Any = import_module("openvino")
        self.version = openvino.__version__.split("-")[0]
        self._openvino = openvino
        config = {
            "INFERENCE_NUM_THREADS": job.threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        }
        core = openvino.Core()
        model = job.model
        if kept:
            model = core.read_model(job.model)
            names = [o.any_name for o in model.outputs[1:]]
            transform: Any = import_module("openvino._offline_transformations")
            transform.apply_make_stateful_transformation(model, dict(zip(kept, names, strict=True)))
        self._compiled = core.compile_model(model, "CPU", config)
        self.request = self.another_request()

    def another_request(self) -> Any:
        return self._compiled.create_infer_request()

    def bind(self, feeds: dict[str, Array]) -> None:
        """By name: inputs that a model does not need are left out, and others may change places. A
        request does not keep the arrays.
        """
        self._feeds = {n: np.asarray(v, order="C") for n, v in feeds.items()}
        known = {name for i in self._compiled.inputs for name in i.names}
        for name, value in self._feeds.items():
            if name in known:
                self.request.set_tensor(name, self._openvino.Tensor(value, shared_memory=True))

    def run(self) -> None:
        self.request.infer()

    def results(self) -> list[Array]:
        return [t.data.copy() for t in self.request.output_tensors]

"""ONNX Runtime: MatMulNBits and GroupQueryAttention. The cache of a step is bound to the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.engines.decoders.decoder import TextEngine
from benchmarks.engines.ort_session import open_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tilewright.cli.guest.job import EngineJob, Progress


class OnnxRuntime(TextEngine):
    def __init__(self, job: EngineJob, progress: Progress) -> None:
        super().__init__()
        onnxruntime, self._session = open_session(job)
        self.version, self._values = onnxruntime.__version__, onnxruntime.OrtValue
        inputs = {i.name: i.shape for i in self._session.get_inputs()}
        self._caches = {name: shape for name, shape in inputs.items() if name.startswith("past_key_values.")}

    def begin(self) -> None:
        of = self._values.ortvalue_from_numpy
        self._count = 0
        self._past = {
            name: of(np.zeros((1, heads, 0, size), np.float32))
            for name, (_, heads, _, size) in self._caches.items()
        }

    def append(self, tokens: Sequence[int]) -> NDArray[Any]:
        of, binding = self._values.ortvalue_from_numpy, self._session.io_binding()
        self._count += len(tokens)
        given = {
            "input_ids": np.array([tokens], np.int64),
            "before": np.array([self._count - 1], np.int32),
            "total": np.array([self._count], np.int32),
        }
        values = {name: of(array) for name, array in given.items()}
        for name, value in {**values, **self._past}.items():
            binding.bind_ortvalue_input(name, value)
        presents = [name.replace("past_key_values", "present") for name in self._past]
        for name in ("logits", *presents):
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        logits, *caches = binding.get_outputs()
        self._past = dict(zip(self._past, caches, strict=True))
        return logits.numpy()[0]

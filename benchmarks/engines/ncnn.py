"""ncnn, as an engine of the benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tilewright.cli.guest.job import EngineJob, Progress

Array = NDArray[Any]

_TIMEOUT = 240.0  # seconds of pnnx, which may hang


class Ncnn:
    """Converted by pnnx, in float32. A first dimension of one is left out, as ncnn knows no batches."""

    def __init__(self, job: EngineJob, progress: Progress) -> None:
        ncnn: Any = import_module("ncnn")
        self.version = ncnn.__version__
        self._ncnn = ncnn
        stem = os.path.join(job.folder, "model.ncnn")
        if not os.path.exists(f"{stem}.bin"):  # of an earlier run in this folder
            _convert(job)
        self._net = ncnn.Net()
        options = self._net.opt
        options.num_threads = job.threads
        options.use_fp16_packed = options.use_fp16_storage = options.use_fp16_arithmetic = False
        options.use_bf16_storage = False
        if self._net.load_param(f"{stem}.param") or self._net.load_model(f"{stem}.bin"):
            raise RuntimeError("ncnn cannot load what pnnx has made of the model")

    def bind(self, feeds: dict[str, Array]) -> None:
        arrays = [v.astype(np.int32) if v.dtype == np.int64 else v for v in feeds.values()]
        self._feeds = [
            np.ascontiguousarray(v[0] if v.ndim > 1 and v.shape[0] == 1 else v) for v in arrays
        ]  # a Mat does not keep them
        self._inputs = [
            (n, self._ncnn.Mat(v)) for n, v in zip(self._net.input_names(), self._feeds, strict=True)
        ]
        self._names = sorted(self._net.output_names())

    def run(self) -> None:
        extractor = self._net.create_extractor()
        for name, value in self._inputs:
            extractor.input(name, value)
        found = [extractor.extract(name) for name in self._names]
        if any(code for code, _ in found):
            raise RuntimeError(f"ncnn cannot compute {self._names}")
        self._outputs = [value for _, value in found]

    def results(self) -> list[Array]:
        return [np.array(o) for o in self._outputs]


def _convert(job: EngineJob) -> None:
    model = os.path.join(job.folder, "model.onnx")  # pnnx writes beside its input
    if not os.path.exists(model):
        os.symlink(job.model, model)
    beside = os.path.join(os.path.dirname(sys.executable), "pnnx")
    pnnx = os.environ.get("PNNX") or (beside if os.path.exists(beside) else "pnnx")
    try:
        done = subprocess.run(
            [pnnx, model, "fp16=0"], capture_output=True, text=True, cwd=job.folder, timeout=_TIMEOUT
        )
    except FileNotFoundError:
        raise RuntimeError("ncnn needs pnnx to read ONNX files: pip install pnnx, or set PNNX") from None
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"pnnx did not end in {_TIMEOUT:g} seconds") from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        telling = [line for line in lines if any(w in line.lower() for w in ("error", "fail", "support"))]
        said = (telling or lines or ["without a word"])[-1]
        raise RuntimeError(f"pnnx ended with {done.returncode}: {said[-300:]}")

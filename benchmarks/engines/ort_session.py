"""A session of ONNX Runtime, as `tilewright bench` makes it, for engines that need more of it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.cli.guest.job import EngineJob


def open_session(job: EngineJob) -> tuple[Any, Any]:
    """The package, and the session of the job's model on the CPU."""
    onnxruntime: Any = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = job.threads, 1
    options.log_severity_level = 3
    return onnxruntime, onnxruntime.InferenceSession(job.model, options, providers=["CPUExecutionProvider"])

"""OpenVINO as a plugin: whole regions, by its CPU device.

Its code is the region as an ONNX model without weights. OpenVINO compiles it when the region is loaded: what it would
export for later is for one machine only, and has the weights inside.
"""

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from onnx import ModelProto

from tilewright.frontend.onnx_export import to_model
from tilewright.graph.external import YES, Answer, No, Plugin, Region, Run, Unit
from tilewright.graph.graph import Graph
from tilewright.graph.segments import cut_out
from tilewright.ops.opdef import Array
from tilewright.plugins.isolation import with_weights
from tilewright.plugins.packages import installed_version, needs

_DEVICE = "CPU"
_LARGE = 1 << 16  # bytes of a constant whose values a question leaves out


@lru_cache(maxsize=1)
def _core() -> Any:
    """It has no types that we could use, and takes a while to import."""
    return import_module("openvino").Core()


class OpenVino(Plugin):
    name = "openvino"
    version = installed_version("openvino")

    def is_available(self) -> Answer:
        return needs("openvino", "openvino")

    def supports(self, unit: Unit) -> Answer:
        if unit.origin is None:
            return No(f"{unit.name} is not a node of the model")
        reason = _asked(to_model(_alone(unit)).SerializeToString())
        return No(reason) if reason else YES

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        return to_model(region.graph, weights=False).SerializeToString()

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> Run:
        ov = import_module("openvino")
        model = _core().read_model(with_weights(ModelProto.FromString(blob), constants).SerializeToString())
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        compiled = _core().compile_model(model, _DEVICE, options)
        mine = threading.local()  # a request serves one run at a time

        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            request = getattr(mine, "request", None)
            if request is None:
                request = mine.request = compiled.create_infer_request()
            for i, array in enumerate(inputs):
                request.set_input_tensor(i, ov.Tensor(_writable(array), shared_memory=True))
            for i, array in enumerate(outputs):
                request.set_output_tensor(i, ov.Tensor(array, shared_memory=True))
            request.infer()

        return run


def _writable(array: Array) -> Array:
    """The same memory: OpenVINO shares only what it might write to, though it reads inputs alone."""
    if array.flags.writeable:
        return array
    memory: Any = (ctypes.c_byte * array.nbytes).from_address(array.ctypes.data)
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


def _alone(unit: Unit) -> Graph:
    """The unit as a graph, with constants that are only as large as the ones there are."""
    part = cut_out(unit.graph, unit.name, unit.nodes, unit.inputs, unit.outputs)
    return replace(part, constants={v: _sketched(array) for v, array in part.constants.items()})


def _sketched(array: Array) -> Array:
    """A large constant's values do not decide what is supported."""
    return array if array.nbytes <= _LARGE else np.zeros(array.shape, array.dtype)


@lru_cache(maxsize=4096)
def _asked(model: bytes) -> str:
    """Why OpenVINO does not take a small model; empty if it does."""
    try:
        read = _core().read_model(model)
        taken = _core().query_model(read, _DEVICE)
    except Exception as e:  # its errors have no common class
        return f"OpenVINO does not read it: {str(e).splitlines()[0]}"
    missing = [op.get_type_name() for op in read.get_ops() if op.get_friendly_name() not in taken]
    return f"OpenVINO's CPU has no {', '.join(sorted(set(missing)))}" if missing else ""

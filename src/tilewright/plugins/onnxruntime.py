"""ONNX Runtime as a plugin: it takes whatever it has a kernel for.

Its code is the region as an ONNX model without weights; ONNX Runtime gets these where the program has them. The graph
is optimised when the region is loaded: what ONNX Runtime would write to a file has the weights inside.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from onnx import ModelProto

from tilewright.frontend.onnx_export import brought_names, to_model
from tilewright.graph.external import YES, Answer, No, Plugin, Region, Run, Unit
from tilewright.ops.opdef import Array

_PROVIDER = "CPUExecutionProvider"


def _engine(module: str = "onnxruntime") -> Any:
    """It has no types, and takes a while to import."""
    return import_module(module)


def _version() -> str:
    try:
        return version("onnxruntime")
    except PackageNotFoundError:
        return ""


class OnnxRuntime(Plugin):
    name = "onnxruntime"
    version = _version()

    def is_available(self) -> Answer:
        is_there = find_spec("onnxruntime") is not None
        return YES if is_there else No("onnxruntime is not installed: pip install 'tilewright[ort]'")

    def supports(self, unit: Unit) -> Answer:
        origin = unit.origin
        if origin is None:
            return No(f"{unit.name} is not a node of the model")
        ranges = _kernels().get((origin.domain, origin.node.op_type), ())
        if any(low <= origin.opset <= high for low, high in ranges):
            return YES
        return No(f"ONNX Runtime has no CPU kernel for {unit.name} of opset {origin.opset}")

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        return to_model(region.graph, weights=False).SerializeToString()

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> Run:
        ort = _engine()
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        brought = brought_names(ModelProto.FromString(blob))
        if brought:
            values = [ort.OrtValue.ortvalue_from_numpy(constants[name]) for name in brought]
            options.add_external_initializers(brought, values)
        session = ort.InferenceSession(blob, options, providers=[_PROVIDER])
        inputs: list[str] = [i.name for i in session.get_inputs()]
        outputs: list[str] = [o.name for o in session.get_outputs()]

        def run(given: Sequence[Array], wanted: Sequence[Array]) -> None:
            binding = session.io_binding()
            for name, array in zip(inputs, given, strict=True):
                binding.bind_cpu_input(name, array)
            for name, array in zip(outputs, wanted, strict=True):
                binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
            session.run_with_iobinding(binding)

        return run


@lru_cache(maxsize=1)
def _kernels() -> Mapping[tuple[str, str], Sequence[tuple[int, int]]]:
    """The versions of each operator that there is a kernel for, first and last."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for k in _engine("onnxruntime.capi.onnxruntime_pybind11_state").get_all_opkernel_def():
        if k.provider == _PROVIDER:
            first, last = k.version_range
            found[k.domain, k.op_name].append((first, last))
    return found

"""ONNX Runtime as a plugin: it takes whatever it has a kernel for.

Its code is the region as an ONNX model without weights; ONNX Runtime gets these where the program has them. The graph
is optimised when the region is loaded: what ONNX Runtime would write to a file has the weights inside.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tilewright.frontend.onnx_export import brought_names, onnx_number, to_model
from tilewright.graph.external import YES, Answer, No, Plugin, Region, Run, Stranger, Unit
from tilewright.ir.dtype import DType
from tilewright.ops.opdef import Array, TensorType
from tilewright.plugins.packages import installed_version, needs

_PROVIDER = "CPUExecutionProvider"
# As ONNX Runtime writes types of tensors.
_DTYPES = {
    f"tensor({name})": dtype
    for name, dtype in {
        "float": DType.F32,
        "double": DType.F64,
        "float16": DType.F16,
        "bfloat16": DType.BF16,
        "bool": DType.BOOL,
        **{d.numpy.name: d for d in DType if d.is_int},
    }.items()
}


def _engine(module: str = "onnxruntime") -> Any:
    """It has no types, and takes a while to import."""
    return import_module(module)


class OnnxRuntime(Plugin):
    name = "onnxruntime"
    version = installed_version("onnxruntime")

    def is_available(self) -> Answer:
        return needs("onnxruntime", "ort")

    def supports(self, unit: Unit) -> Answer:
        origin = unit.origin
        if origin is None:
            return No(f"{unit.name} is not a node of the model")
        if self._has(origin.node, origin.opsets):
            return YES
        return No(f"ONNX Runtime has no CPU kernel for {unit.name} of opset {origin.opset}")

    def infer(self, node: Stranger) -> Sequence[TensorType] | No:
        """ONNX Runtime loads a model of this one node, and says what comes out."""
        if not self._has(node.node, node.opsets):
            return No(f"ONNX Runtime has no CPU kernel for {node.node.op_type}")
        try:
            session = _engine().InferenceSession(
                _alone(node).SerializeToString(), _options(1), providers=[_PROVIDER]
            )
        except Exception as e:  # its errors have no common class
            return No(f"ONNX Runtime does not load {node.node.op_type}: {e}")
        found: list[TensorType] = []
        for out in session.get_outputs():
            dtype = _DTYPES.get(out.type)
            if dtype is None or not all(isinstance(n, int) for n in out.shape):
                return No(
                    f"what {node.node.op_type} gives is only known when it runs: {out.type} {out.shape}"
                )
            found.append(TensorType(dtype, tuple(out.shape)))
        return found

    def _has(self, node: NodeProto, opsets: Mapping[str, int]) -> bool:
        domain = "" if node.domain == "ai.onnx" else node.domain
        ranges = _kernels().get((domain, node.op_type), ())
        return any(low <= opsets.get(domain, 1) <= high for low, high in ranges)

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        return to_model(region.graph, weights=False).SerializeToString()

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> Run:
        ort, options = _engine(), _options(threads)
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


def _options(threads: int) -> Any:
    options = _engine().SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return options


def _alone(given: Stranger) -> ModelProto:
    """A model of one node."""
    node = NodeProto()
    node.CopyFrom(given.node)
    del node.input[:], node.output[:]
    inputs: list[ValueInfoProto] = []
    constants: list[TensorProto] = []
    for i, (type, value) in enumerate(zip(given.inputs, given.constants, strict=True)):
        node.input.append("" if type is None else f"i{i}")
        if value is not None:
            constants.append(numpy_helper.from_array(value, f"i{i}"))
        elif type is not None:
            inputs.append(helper.make_tensor_value_info(f"i{i}", onnx_number(type.dtype), type.shape))
    node.output.extend(f"o{i}" if name else "" for i, name in enumerate(given.node.output))
    outputs = [ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs, constants)
    opsets = [helper.make_opsetid(d, v) for d, v in given.opsets.items()]
    return ModelProto(ir_version=10, graph=graph, opset_import=opsets)


@lru_cache(maxsize=1)
def _kernels() -> Mapping[tuple[str, str], Sequence[tuple[int, int]]]:
    """The versions of each operator that there is a kernel for, first and last."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for k in _engine("onnxruntime.capi.onnxruntime_pybind11_state").get_all_opkernel_def():
        if k.provider == _PROVIDER:
            first, last = k.version_range
            found[k.domain, k.op_name].append((first, last))
    return found

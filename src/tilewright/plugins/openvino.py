"""OpenVINO as a plugin: whole regions, by its CPU device.

Its code is the region as an ONNX model without weights, which become constants of OpenVINO's model where the program
has them. OpenVINO compiles it when the region is loaded: what it would export for later is for one machine only, and
has the weights inside.

Whether it takes a unit is asked of OpenVINO itself, once for all units that differ in names and weights alone. The CPU
device computes in single precision and with 32-bit integers, whatever a model says; what would be lost is refused.
"""

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, helper

from tilewright.frontend.onnx.export import brought_names, onnx_node, region_model, to_model
from tilewright.graph.external import YES, Answer, Capabilities, No, Plugin, Region, RunRegion, Unit
from tilewright.graph.segments import cut_out
from tilewright.ir.dtype import DType
from tilewright.plugins.packages import installed_version, needs
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_DEVICE = "CPU"
_TYPES = frozenset(DType) - {DType.F64, DType.BF16}
_WIDE = frozenset({DType.I64, DType.U64, DType.U32})
_TAKE_POSITIONS = frozenset(
    {"Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND"}
)
_GIVE_POSITIONS = frozenset({"ArgMax", "ArgMin", "TopK"})
# Attributes that it reads over, if they are not 0 or the usual order of channels.
_UNHEEDED = {"Resize": "antialias", "Attention": "qk_matmul_output_mode", "SpaceToDepth": "mode"}
_NO_REASON = ("Exception from ", "Check '", "Model wasn't fully converted")
_FEW = 16  # floats of a constant whose values may matter to what is supported: scales, limits


class OpenVino(Plugin):
    name = "openvino"
    version = installed_version("openvino")
    capabilities = Capabilities(open_sizes=True)

    def is_available(self) -> Answer:
        return needs("openvino", "openvino")

    def supports(self, unit: Unit) -> Answer:
        if unit.origin is None:
            return No(f"{unit.name} is not a node of the model")
        reason = _loss(unit) or _asked(_question(unit))
        return No(reason) if reason else YES

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        model = region_model(region)
        reason = (
            _lack(_read(model, constants)) if region.is_open else ""
        )  # units were asked about at given sizes
        if reason:
            raise UserError(reason)
        return model.SerializeToString()

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
        options: dict[str, str | int] = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        model = ModelProto.FromString(blob)
        if any(d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim):
            # Fused attention that it keeps for other sizes gives wrong numbers where a size is larger (2026.4).
            options["CPU_RUNTIME_CACHE_CAPACITY"] = 0
        compiled = _core().compile_model(_read(model, constants), _DEVICE, options)
        tensor = _engine().Tensor
        mine = threading.local()  # a request serves one run at a time

        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            request = getattr(mine, "request", None)
            if request is None:
                request = mine.request = compiled.create_infer_request()
            for i, array in enumerate(inputs):
                request.set_input_tensor(i, tensor(_writable(array), shared_memory=True))
            for i, array in enumerate(outputs):
                request.set_output_tensor(i, tensor(array, shared_memory=True))
            request.infer(share_outputs=True)  # otherwise it returns copies of them

        return run


def _engine() -> Any:
    """It has no types that we could use, and takes a while to import."""
    return import_module("openvino")


@lru_cache(maxsize=1)
def _core() -> Any:
    return _engine().Core()


def _read(model: ModelProto, constants: Mapping[str, Array]) -> Any:
    """A model that was written without weights, as OpenVINO's. It is read with inputs in place of weights; then each
    becomes a constant that shares its memory with ours.
    """
    brought = set(brought_names(model))
    bare = ModelProto()
    bare.CopyFrom(model)
    del bare.graph.initializer[:]
    for t in model.graph.initializer:
        if t.name in brought:
            bare.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, t.dims))
        else:
            bare.graph.initializer.append(t)
    read = _core().read_model(bare.SerializeToString())
    for parameter in read.get_parameters():
        name = parameter.get_friendly_name()
        if name in brought:
            constant = _engine().op.Constant(_writable(constants[name]), shared_memory=True)
            for reader in parameter.output(0).get_target_inputs():
                reader.replace_source_output(constant.output(0))
            read.remove_parameter(parameter)
    read.validate_nodes_and_infer_types()
    return read


def _writable(array: Array) -> Array:
    """The same memory: OpenVINO shares only what it might write to, though it only reads inputs and constants."""
    if array.flags.writeable:
        return array
    memory: Any = (ctypes.c_byte * array.nbytes).from_address(array.ctypes.data)
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


# --------------------------------------------------------------------------------------------------- what it takes


def _loss(unit: Unit) -> str:
    """Why OpenVINO would compute something else than the unit says; empty if it does not."""
    values = {v for n in unit.nodes for v in (*n.inputs, *n.outputs)}
    missing = {v.type.dtype for v in values} - _TYPES
    if missing:
        return f"OpenVINO's CPU does not compute in {min(map(str, missing))}"
    read = {v for v in unit.inputs if v.type.dtype in _WIDE and not _is_narrow(unit.constant(v))}
    made = {v for v in values - set(unit.inputs) if v.type.dtype in _WIDE}
    if (read and unit.name not in _TAKE_POSITIONS) or (made and unit.name not in _GIVE_POSITIONS):
        return "OpenVINO's CPU computes with integers of 32 bits"
    if unit.name == "BitShift" and any(v.type.dtype.is_signed for v in unit.inputs):
        return "OpenVINO's CPU shifts signed integers otherwise"
    if unit.name == "LSTM" and unit.origin is not None and len(unit.origin.node.input) > 7:
        return "OpenVINO does not heed peepholes"
    attributes = () if unit.origin is None else onnx_node(unit.origin.node).attribute
    if any(a.name == _UNHEEDED.get(unit.name) and (a.i or a.s not in (b"", b"DCR")) for a in attributes):
        return f"OpenVINO does not heed {_UNHEEDED[unit.name]}"
    return ""


def _is_narrow(array: Array | None) -> bool:
    """Is it known to fit into 32 bits?"""
    return array is not None and bool((np.abs(array.astype(np.float64)) < 2.0**31).all())


def _question(unit: Unit) -> bytes:
    """A model of the unit alone, for the largest sizes, the same for all that differ in names and weights only."""
    part = cut_out(unit.graph, "question", unit.nodes, unit.inputs, unit.outputs)
    sketch = replace(part, constants={v: _sketched(a) for v, a in part.constants.items()})
    model = to_model(sketch, weights=False, at_capacity=True)
    if any(
        a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for n in model.graph.node for a in n.attribute
    ):
        return model.SerializeToString()  # names are also inside of these
    names = {"": ""}

    def renamed(name: str) -> str:
        return names.setdefault(name, f"v{len(names)}")

    for n in model.graph.node:
        n.name = n.doc_string = ""
        n.input[:], n.output[:] = list(map(renamed, n.input)), list(map(renamed, n.output))
    for t in model.graph.initializer:
        del t.external_data[:]  # it says the name again
    for x in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        x.name = renamed(x.name)
    return model.SerializeToString(deterministic=True)


def _sketched(array: Array) -> Array:
    is_weight = DType.of(array.dtype).is_float and array.size > _FEW
    return np.zeros(array.shape, array.dtype) if is_weight else array


@lru_cache(maxsize=4096)
def _asked(question: bytes) -> str:
    """Why OpenVINO does not take a small model; empty if it does."""
    model = ModelProto.FromString(question)
    brought = brought_names(model)
    zeros = {
        t.name: np.zeros(tuple(t.dims), helper.tensor_dtype_to_np_dtype(t.data_type))
        for t in model.graph.initializer
        if t.name in brought
    }
    try:
        read = _read(model, zeros)
        lack = _lack(read)
    except Exception as e:  # its errors have no common class
        return f"OpenVINO does not read it: {_gist(str(e))}"
    if lack:
        return lack
    if len(read.inputs) != len(model.graph.input):
        return "OpenVINO does not heed all of its inputs"
    wanted = [[d.dim_value for d in o.type.tensor_type.shape.dim] for o in model.graph.output]
    made = [o.get_partial_shape() for o in read.outputs]
    is_same = all(m.is_static and list(m.to_shape()) == w for m, w in zip(made, wanted, strict=True))
    return "" if is_same else "OpenVINO gives it another shape"


def _lack(model: Any) -> str:
    """What the device does not have of a model that OpenVINO has read; empty if it takes it."""
    taken = _core().query_model(model, _DEVICE)
    missing = {op.get_type_name() for op in model.get_ops() if op.get_friendly_name() not in taken}
    return f"OpenVINO's CPU has no {', '.join(sorted(missing))}" if missing else ""


def _gist(message: str) -> str:
    """The line that says what is wrong, among those that say where."""
    lines = [line.strip().removeprefix("-- ") for line in message.splitlines()]
    reasons = [line for line in lines if line and not line.endswith(":") and not line.startswith(_NO_REASON)]
    return (reasons or [message.strip() or "it does not say why"])[0]

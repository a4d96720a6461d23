"""ONNX Runtime as a plugin: it takes whatever it has a kernel for.

Its code is the region as an ONNX model without weights; ONNX Runtime gets these where the program has them. The graph
is optimised when the region is loaded: what ONNX Runtime would write to a file has the weights inside.

It also runs nodes that native code does not know. Those whose results have types that follow from the types of their
inputs are in regions as others are. The rest runs by itself, on what the host holds: numbers, strings, sequences, maps.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from tilewright.frontend.onnx.export import brought_names, onnx_node, onnx_number, region_model
from tilewright.frontend.onnx.names import free_names, subgraphs
from tilewright.frontend.onnx.open_numbers import DimNames
from tilewright.frontend.onnx.values import type_of
from tilewright.graph.external import (
    YES,
    Answer,
    Capabilities,
    CustomNode,
    HostRun,
    No,
    Plugin,
    Region,
    RunRegion,
    Unit,
)
from tilewright.graph.graph import Value
from tilewright.graph.origin import ModelNode, NodeOperand, Origin
from tilewright.ir.dtype import DType
from tilewright.ops.hostop import HostValue
from tilewright.ops.opdef import TensorType
from tilewright.ops.outside import Outside
from tilewright.plugins.packages import installed_version, needs
from tilewright.runtime.machine import default_threads
from tilewright.support.arrays import Array

_PROVIDER = "CPUExecutionProvider"
_INSIDE = "onnxruntime.capi.onnxruntime_pybind11_state"
_IR_VERSION = 10  # of the file format: one that it has read for years
_SESSIONS = 8  # of a node that runs by itself, one for each set of element types
_NO_END = (1 << 31) - 1  # the last version of an operator that there is a kernel for, if that is not known
_SMALL = 1 << 16  # bytes of a constant that may say something about types
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
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# Elements that it does not take from numpy, nor give to it: they travel as wider ones, which hold them all.
_WIDER: Mapping[int, int] = {
    **dict.fromkeys((TensorProto.INT4, TensorProto.INT2), TensorProto.INT8),
    **dict.fromkeys((TensorProto.UINT4, TensorProto.UINT2), TensorProto.UINT8),
    **dict.fromkeys(
        (
            TensorProto.BFLOAT16,
            TensorProto.FLOAT8E4M3FN,
            TensorProto.FLOAT8E4M3FNUZ,
            TensorProto.FLOAT8E5M2,
            TensorProto.FLOAT8E5M2FNUZ,
            TensorProto.FLOAT8E8M0,
            TensorProto.FLOAT4E2M1,
        ),
        TensorProto.FLOAT,
    ),
}
_NARROW = {f"tensor({TensorProto.DataType.Name(n).lower()})": n for n in _WIDER}
_CASTS_ALL = 25  # the first opset of ONNX in which Cast has all of these

Types: TypeAlias = tuple[tuple[str, bytes], ...]  # of values by name, as ONNX writes them


def _engine(module: str = "onnxruntime") -> Any:
    """It has no types, and takes a while to import."""
    return import_module(module)


class OnnxRuntime(Plugin):
    name = "onnxruntime"
    version = installed_version("onnxruntime")
    capabilities = Capabilities(open_sizes=True)

    def is_available(self) -> Answer:
        return needs("onnxruntime", "ort")

    def supports(self, unit: Unit) -> Answer:
        origin = unit.origin
        if origin is None:
            return No(f"{unit.name} is not a node of the model")
        reason = _lack(onnx_node(origin.node), origin.opsets)
        if not reason and not any(
            isinstance(n.op, Outside) for n in unit.nodes
        ):  # of those it has given the types
            reason = _misfit(origin)
        return No(reason) if reason else YES

    def infer(self, node: CustomNode) -> Sequence[TensorType] | No:
        """ONNX Runtime loads a model of this one node, and says what comes out."""
        reason = _lack(onnx_node(node.node), node.opsets)
        if reason:
            return No(reason)
        inputs: dict[str, ValueInfoProto] = {}
        constants: dict[str, TensorProto] = {}
        names = DimNames()
        for name, type, value in zip(node.node.input, node.inputs, node.constants, strict=True):
            if value is not None and value.nbytes <= _SMALL:
                constants[name] = numpy_helper.from_array(value, name)
            elif type is not None:
                shape = names.shape(type.shape)
                inputs[name] = helper.make_tensor_value_info(name, onnx_number(type.dtype), shape)
        model = _alone(onnx_node(node.node), node.opsets, inputs.values(), constants.values())
        try:
            outputs = _session(model, 1).get_outputs()
        except Exception as e:  # its errors have no common class
            return No(f"ONNX Runtime does not load {node.node.op_type}: {e}")
        found: list[TensorType] = []
        for out in outputs:
            dtype, made = _DTYPES.get(out.type), names.numbers(out.shape)
            if dtype is None or made is None or not (made or _is_scalar(model, out)):
                return No(
                    f"what {node.node.op_type} gives is only known when it runs: {out.type} {out.shape}"
                )
            found.append(TensorType(dtype, made))
        return found

    def host(self, node: ModelNode, opsets: Mapping[str, int]) -> HostRun | No:
        proto = onnx_node(node)
        reason = _lack(proto, opsets)
        return No(reason) if reason else _NodeRun(proto, opsets)

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        return region_model(region).SerializeToString()

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
        brought = {name: constants[name] for name in brought_names(ModelProto.FromString(blob))}
        session = _session(blob, threads, brought)
        inputs: list[str] = [i.name for i in session.get_inputs()]
        outputs: list[str] = [o.name for o in session.get_outputs()]

        def run(given: Sequence[Array], wanted: Sequence[Array]) -> None:
            binding = session.io_binding()
            for name, array in zip(inputs, given, strict=True):
                binding.bind_input(name, "cpu", 0, _element(array), array.shape, array.ctypes.data)
            for name, array in zip(outputs, wanted, strict=True):
                binding.bind_output(name, "cpu", 0, _element(array), array.shape, array.ctypes.data)
            session.run_with_iobinding(binding)

        return run


class _NodeRun:
    """Runs a node on values as they come, with a session for each set of types that it has seen."""

    def __init__(self, node: NodeProto, opsets: Mapping[str, int]) -> None:
        self._node, self._opsets = node, opsets
        self._names = (*node.input, *sorted(free_names(node)))
        self._ready = lru_cache(maxsize=_SESSIONS)(self._made)

    def __call__(self, inputs: Sequence[HostValue]) -> Sequence[HostValue]:
        values = {name: v for name, v in zip(self._names, inputs, strict=True) if name}
        session, narrow = self._ready(tuple((n, _loose_type(v)) for n, v in values.items()))
        made: list[Any] = session.run(None, dict(map(_wide, values.items())))
        present = [n for n in self._node.output if n]
        found = {n: _narrowed(v, narrow.get(n)) for n, v in zip(present, made, strict=True)}
        return [found.get(n) for n in self._node.output]

    def _made(self, types: Types) -> tuple[Any, Mapping[str, int]]:
        """A session, and the outputs that it gives wider than they are."""
        inputs = [ValueInfoProto(name=n, type=TypeProto.FromString(t)) for n, t in types]
        session = _session(_alone(self._node, self._opsets, inputs), default_threads())
        narrow = {o.name: _NARROW[o.type] for o in session.get_outputs() if o.type in _NARROW}
        if narrow:
            session = _session(_alone(self._node, self._opsets, inputs, (), narrow), default_threads())
        return session, narrow


def _loose_type(value: HostValue) -> bytes:
    """The type of a value, with any shape."""
    found = type_of(value)
    if found.HasField("tensor_type"):
        found.tensor_type.ClearField("shape")
    return found.SerializeToString()


def _wide(item: tuple[str, HostValue]) -> tuple[str, HostValue]:
    name, value = item
    wider = _WIDER.get(_number(value)) if isinstance(value, np.ndarray) else None
    if wider is None or not isinstance(value, np.ndarray):
        return item
    return _wide_name(name), value.astype(helper.tensor_dtype_to_np_dtype(wider))


def _narrowed(value: Any, number: int | None) -> Any:
    if number is not None:
        return np.asarray(value).astype(helper.tensor_dtype_to_np_dtype(number))
    return value if value is None or type(value) in (list, dict) else np.asarray(value)


def _wide_name(name: str) -> str:
    return f"{name}~wide"


def _alone(
    node: NodeProto,
    opsets: Mapping[str, int],
    inputs: Iterable[ValueInfoProto],
    constants: Iterable[TensorProto] = (),
    narrow: Mapping[str, int] | None = None,
) -> ModelProto:
    """A model of one node, around which elements that numpy does not have are cast from and to wider ones. `narrow`
    are the outputs of which this is known to be needed.
    """
    before: list[NodeProto] = []
    after: list[NodeProto] = []
    given: list[ValueInfoProto] = []
    for info in inputs:
        number = info.type.tensor_type.elem_type
        if number in _WIDER:
            before.append(_cast(_wide_name(info.name), info.name, number))
            wide = ValueInfoProto(name=_wide_name(info.name), type=info.type)
            wide.type.tensor_type.elem_type = _WIDER[number]
            given.append(wide)
        else:
            given.append(info)
    outputs: list[ValueInfoProto] = []
    for name in filter(None, node.output):
        if narrow and name in narrow:
            after.append(_cast(name, _wide_name(name), _WIDER[narrow[name]]))
            outputs.append(ValueInfoProto(name=_wide_name(name)))
        else:
            outputs.append(ValueInfoProto(name=name))
    versions = {"": min(_CASTS_ALL, _newest()), node.domain: 1, **opsets}
    if (before or after) and node.domain not in ("", "ai.onnx") and not subgraphs(node):
        versions[""] = max(versions[""], min(_CASTS_ALL, _newest()))
    graph = helper.make_graph([*before, node, *after], "node", given, outputs, list(constants))
    opset_imports = [helper.make_opsetid(d, v) for d, v in versions.items()]
    return ModelProto(ir_version=_IR_VERSION, graph=graph, opset_import=opset_imports)


def _is_scalar(model: ModelProto, output: Any) -> bool:
    """Is it one, or is its rank not known? ONNX Runtime says the same of both, but not of their shapes."""
    asked = ModelProto()
    asked.CopyFrom(model)
    asked.graph.node.append(helper.make_node("Shape", [output.name], [f"{output.name}~shape"]))
    asked.graph.output.append(ValueInfoProto(name=f"{output.name}~shape"))
    return _session(asked, 1).get_outputs()[-1].shape == [0]


def _cast(source: str, target: str, number: int) -> NodeProto:
    """To the same numbers: infinity is not to become the largest."""
    node = helper.make_node("Cast", [source], [target], to=number)
    if helper.tensor_dtype_to_string(number).startswith("TensorProto.FLOAT8E"):
        node.attribute.append(helper.make_attribute("saturate", 0))
    return node


def _session(model: ModelProto | bytes, threads: int, constants: Mapping[str, Array] | None = None) -> Any:
    ort = _engine()
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    if constants:
        values = [ort.OrtValue.ortvalue_from_numpy_with_onnx_type(a, _number(a)) for a in constants.values()]
        options.add_external_initializers(list(constants), values)
    data = model.SerializeToString() if isinstance(model, ModelProto) else model
    return ort.InferenceSession(data, options, providers=[_PROVIDER])


def _number(array: Array) -> int:
    return TensorProto.STRING if array.dtype.kind == "O" else helper.np_dtype_to_tensor_dtype(array.dtype)


def _element(array: Array) -> Any:
    """What bindings know a type by: numpy's, or ONNX's number if numpy has none."""
    return array.dtype.type if array.dtype.isbuiltin == 1 else _number(array)


# ------------------------------------------------------------------------------------------------------ what it knows


@dataclass(frozen=True, slots=True)
class _Kernel:
    """Runs versions of an operator, from the first to the last, for these types: by the names in its declaration."""

    first: int
    last: int
    types: Mapping[str, Sequence[str]]

    def takes(self, formal: Any, type: str) -> bool:
        allowed = self.types.get(formal.typeStr, self.types.get(formal.name))
        # Halves are cast to floats where there is no kernel for them.
        return (
            allowed is None or type in allowed or (type == "tensor(float16)" and "tensor(float)" in allowed)
        )


def _lack(node: NodeProto, opsets: Mapping[str, int]) -> str:
    """Why ONNX Runtime does not run a node, whatever its types; empty if it does."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    opset = opsets.get(domain, 1)
    if not _fitting(domain, node.op_type, opset):
        of = f" of opset {opset}" if (domain, node.op_type) in _kernels() else ""
        return f"ONNX Runtime has no CPU kernel for {node.op_type}{of}"
    declared = _schema(domain, node.op_type, opset).attributes
    for a in node.attribute:
        if a.name not in declared:
            return f"{node.op_type} has no attribute {a.name} in ONNX Runtime"
    if opsets.get("", 0) > _newest():
        return f"ONNX Runtime knows ONNX up to opset {_newest()}, and this is of {opsets['']}"
    return ""


def _misfit(origin: Origin) -> str:
    """What ONNX Runtime has against the types of a node; empty if it runs it."""
    domain, op_type, opset = origin.domain, origin.node.op_type, origin.opset
    schema = _schema(domain, op_type, opset)
    typed = [*_typed(schema.inputs, origin.operands), *_typed(schema.outputs, origin.results)]
    if any(all(k.takes(*t) for t in typed) for k in _fitting(domain, op_type, opset)):
        return ""
    return f"ONNX Runtime has no CPU kernel for {op_type} of {', '.join(dict.fromkeys(t for _, t in typed))}"


def _typed(formals: Sequence[Any], values: Sequence[NodeOperand]) -> Iterable[tuple[Any, str]]:
    """What is declared of a value, with its type as ONNX Runtime writes it. The last may stand for many."""
    for i, v in enumerate(values):
        if v is not None:
            dtype = v.type.dtype if isinstance(v, Value) else DType.of(v.dtype)
            yield formals[min(i, len(formals) - 1)], _NAMES[dtype]


def _fitting(domain: str, op_type: str, opset: int) -> list[_Kernel]:
    """The kernels for the operator as it is in an opset. One that has no end is for one version only."""
    schema = _schema(domain, op_type, opset)
    since = 0 if schema is None else schema.since_version
    kernels = _kernels().get((domain, op_type), ())
    return [k for k in kernels if k.first == since or k.first < since <= k.last < _NO_END]


def _schema(domain: str, op_type: str, opset: int) -> Any:
    """How an operator is declared in an opset; None if it is not."""
    declared = [s for s in _schemas().get((domain, op_type), ()) if s.since_version <= opset]
    found = max(declared, key=lambda s: s.since_version, default=None)
    return None if found is None or found.deprecated else found


@lru_cache(maxsize=1)
def _kernels() -> Mapping[tuple[str, str], Sequence[_Kernel]]:
    found: dict[tuple[str, str], list[_Kernel]] = defaultdict(list)
    for k in _engine(_INSIDE).get_all_opkernel_def():
        if k.provider == _PROVIDER:
            first, last = k.version_range
            found[k.domain, k.op_name].append(_Kernel(first, last, k.type_constraints))
    return found


@lru_cache(maxsize=1)
def _schemas() -> Mapping[tuple[str, str], Sequence[Any]]:
    """How operators are declared, in all versions."""
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for s in _engine(_INSIDE).get_all_operator_schema():
        found[s.domain, s.name].append(s)
    return found


@lru_cache(maxsize=1)
def _newest() -> int:
    """The newest opset of ONNX that it loads models of: it may declare operators of one that is not finished."""
    newest = max(s.since_version for (domain, _), group in _schemas().items() if domain == "" for s in group)
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ())
    graph = helper.make_graph([], "empty", [info], [info])
    while True:
        try:
            opsets = [helper.make_opsetid("", newest)]
            _session(ModelProto(ir_version=_IR_VERSION, graph=graph, opset_import=opsets), 1)
            return newest
        except Exception:  # its errors have no common class
            newest -= 1
            if newest == 0:
                raise

"""ONNX models as graphs.

Each ONNX node becomes one node of the graph, through `from_onnx` and `infer` of the op that claims its name; nothing
is simplified here but what cannot be expressed: constants, `Identity`, and the shape of a value, which is static.
Types come from our ops alone. Values that ops need at compile time (target shapes, axes) are worked out on demand.

Every complaint is a UserError that names the node, its types and the cause. Nodes that no op claims are reported all
at once. How the file is read safely is in `frontend.onnx_file`, how names and types of inputs are settled in
`frontend.onnx_interface`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, defs

from tilewright.frontend.onnx_file import (
    LIMITS,
    Limits,
    TensorReader,
    check_tensor_bytes,
    read_model,
    type_name,
)
from tilewright.frontend.onnx_interface import Shapes, check_names, input_types, label, sorted_nodes
from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph, Value
from tilewright.graph.known import KnownValues
from tilewright.ops import by_onnx
from tilewright.ops.opdef import ONNX_DTYPES, Array, OnnxNode, Op, TensorType
from tilewright.support.errors import UserError

OPSETS = range(7, 29)
_SHOWN = 100  # unsupported nodes listed in a message


def load_graph(
    model: str | Path | bytes | ModelProto,
    shapes: Shapes | None = None,
    limits: Limits = LIMITS,
    *,
    opened: list[str] | None = None,
) -> Graph:
    """Import a model. `shapes` gives the shapes of inputs by name, where the model leaves dimensions open. `opened`
    gets the names of the files with external data.
    """
    proto, reader = read_model(model, limits)
    try:
        check_names(proto.graph)
        return _Importer(proto, reader, limits).run(shapes or {})
    finally:
        if opened is not None:
            opened.extend(reader.opened)
        reader.close()


class _Importer:
    def __init__(self, model: ModelProto, reader: TensorReader, limits: Limits) -> None:
        self._graph, self._reader, self._limits = model.graph, reader, limits
        self._functions = {(f.domain, f.name) for f in model.functions}
        self._opsets = {_domain(o.domain): o.version for o in model.opset_import}
        self._builder = GraphBuilder(model.graph.name or "model")
        self._values: dict[str, Value] = {}
        self._known = KnownValues({})
        self._initializers: dict[str, TensorProto] = {}
        # Node types that are no op of ours, because their result is known as soon as their input's type is.
        self._special: dict[str, Callable[[NodeProto, Mapping[str, Any]], Value]] = {
            "Constant": self._constant,
            "Identity": self._identity,
            "Shape": self._shape,
            "Size": self._size,
        }

    def run(self, shapes: Shapes) -> Graph:
        self._check_opset()
        for t in self._graph.initializer:
            if t.name in self._initializers:
                raise UserError(f"two initializers are named {label(t.name)}")
            self._initializers[t.name] = t
        if self._graph.sparse_initializer:
            name = self._graph.sparse_initializer[0].values.name
            raise UserError(f"initializer {label(name)} is sparse, which is not supported")
        # Before IR version 4 every initializer was an input too: then it is the default, and we take it.
        given = [i for i in self._graph.input if i.name not in self._initializers]
        for name, type in input_types(given, shapes, self._limits).items():
            self._values[name] = self._builder.input(name, type)
        nodes = sorted_nodes(self._graph.node, {*self._values, *self._initializers})
        self._check_supported(nodes)
        for i, node in enumerate(nodes):
            self._import(node, node.name or f"{node.op_type}_{i}")
        return self._finish()

    def _check_opset(self) -> None:
        opset = self._opsets.get("")
        if opset is None:
            raise UserError("the model does not say which ONNX opset it uses", hint="export it again")
        if opset not in OPSETS:
            raise UserError(
                f"the model uses ONNX opset {opset}; supported are {OPSETS[0]} to {OPSETS[-1]}",
                hint=f"export it again with opset {max(OPSETS[0], 18)}, or convert it with onnx.version_converter",
            )

    def _check_supported(self, nodes: Sequence[NodeProto]) -> None:
        lines: list[str] = []
        for node in nodes:
            domain = _domain(node.domain)
            if domain == "" and (node.op_type in self._special or by_onnx(node.op_type) is not None):
                continue
            version = self._opsets.get(domain, "not imported")
            note = ", a function of the model" if (node.domain, node.op_type) in self._functions else ""
            lines.append(
                f"{label(node.op_type)} (domain {domain or 'ai.onnx'}, opset {version}{note}) in {_title(node)}"
            )
        if lines:
            more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
            raise UserError(
                "\n  ".join([f"{len(lines)} nodes of the model are not supported:", *lines[:_SHOWN], *more])
            )

    def _finish(self) -> Graph:
        outputs: list[Value] = []
        for info in self._graph.output:
            value = self._try_value(info.name)
            if value is None:
                raise UserError(f"the model's output {label(info.name)} is computed by no node")
            declared = info.type.tensor_type.elem_type
            if declared and ONNX_DTYPES.get(declared) is not value.type.dtype:
                raise UserError(
                    f"the model declares its output {label(info.name)} as {type_name(declared)}; it is {value.type}"
                )
            outputs.append(value)
        if not outputs:
            raise UserError("the model has no outputs")
        return self._builder.finish(*outputs, names=[o.name for o in self._graph.output])

    # ---------------------------------------------------------------------------------------------- one node

    def _import(self, node: NodeProto, name: str) -> None:
        inputs = [self._try_value(n) if n else None for n in node.input]
        opset = self._opsets[""]
        try:
            attrs = self._attributes(node, opset)
            if node.op_type in self._special:
                self._values[node.output[0]] = self._special[node.op_type](node, attrs)
                return
            op, taken = _make_op(node, attrs, opset, inputs, self._known)
            operands = [v for v in (inputs[i] for i in taken) if v is not None]
            made = self._builder.add(
                op, operands, name, [n or f"{name}.{i}" for i, n in enumerate(node.output)]
            )
            for v in made.outputs:
                check_tensor_bytes(v.shape, v.type.dtype, self._limits)
        except UserError as e:
            types_text = ", ".join("absent" if v is None else str(v.type) for v in inputs)
            where = f"{_title(node)}: {node.op_type}({types_text}), opset {opset}"
            raise UserError(e.message, where=where, hint=e.hint) from e
        self._known.add(made)
        self._values.update((n, v) for n, v in zip(node.output, made.outputs, strict=False) if n)

    def _try_value(self, name: str) -> Value | None:
        """The value of this name; an initializer is read when it is first asked for."""
        found = self._values.get(name)
        if found is None and name in self._initializers:
            try:
                array = self._reader.read(self._initializers[name])
            except UserError as e:
                raise UserError(e.message, where=f"initializer {label(name)}", hint=e.hint) from e
            found = self._values[name] = self._add_constant(name, array)
        return found

    def _add_constant(self, name: str, array: Array) -> Value:
        value = self._builder.constant(name, array)
        self._known.add_constant(value, array)
        return value

    def _attributes(self, node: NodeProto, opset: int) -> dict[str, Any]:
        """Attributes as Python values, held to ONNX's own declaration of the op."""
        if not defs.has(node.op_type, opset, ""):
            raise UserError(f"opset {opset} has no {node.op_type}")
        schema = defs.get_schema(node.op_type, opset, "")
        if not schema.min_input <= len(node.input) <= schema.max_input:
            raise UserError(f"{node.op_type} does not take {len(node.input)} inputs")
        if len(node.input) > self._limits.operands and node.op_type != "Concat":
            raise UserError(f"{len(node.input)} inputs of one node: the limit is {self._limits.operands}")
        if not schema.min_output <= len(node.output) <= schema.max_output:
            raise UserError(f"{node.op_type} does not have {len(node.output)} outputs")
        out: dict[str, Any] = {}
        for a in node.attribute:
            declared = schema.attributes.get(a.name)
            if declared is None:
                raise UserError(f"{node.op_type} of opset {opset} has no attribute {label(a.name)}")
            kind = str(declared.type).rpartition(".")[2]
            if a.ref_attr_name or AttributeProto.AttributeType.Name(a.type) != kind:
                raise UserError(f"attribute {a.name} has the wrong type", hint=f"it should be {kind}")
            if a.name in out:
                raise UserError(f"attribute {a.name} is given twice")
            out[a.name] = self._attribute(a)
        for name, declared in schema.attributes.items():
            if declared.required and name not in out:
                raise UserError(f"the attribute {name} is missing")
        return out

    def _attribute(self, a: AttributeProto) -> Any:
        match a.type:
            case AttributeProto.INT:
                return a.i
            case AttributeProto.FLOAT:
                return a.f
            case AttributeProto.STRING:
                return _decoded(a.s)
            case AttributeProto.INTS:
                return list(a.ints)
            case AttributeProto.FLOATS:
                return list(a.floats)
            case AttributeProto.STRINGS:
                return [_decoded(s) for s in a.strings]
            case AttributeProto.TENSOR:
                return self._reader.read(a.t)
            case _:
                kind = AttributeProto.AttributeType.Name(a.type)
                raise UserError(f"attribute {a.name}: attributes of type {kind} are not supported")

    # ----------------------------------------------------------------- nodes whose result is known from types

    def _constant(self, node: NodeProto, attrs: Mapping[str, Any]) -> Value:
        match list(attrs.items()):
            case [("value", array)]:
                pass
            case [("value_int" | "value_ints", number)]:
                array = np.array(number, np.int64)
            case [("value_float" | "value_floats", number)]:
                array = np.array(number, np.float32)
            case _:
                raise UserError(f"a constant given by {', '.join(attrs) or 'nothing'} is not supported")
        return self._add_constant(node.output[0], array)

    def _identity(self, node: NodeProto, attrs: Mapping[str, Any]) -> Value:
        return self._operand(node)

    def _shape(self, node: NodeProto, attrs: Mapping[str, Any]) -> Value:
        shape = self._operand(node).shape
        # `start` and `end` clamp to the axes there are, which is what slicing does.
        chosen = shape[slice(attrs.get("start", 0), attrs.get("end"))]
        return self._add_constant(node.output[0], np.array(chosen, np.int64))

    def _size(self, node: NodeProto, attrs: Mapping[str, Any]) -> Value:
        return self._add_constant(node.output[0], np.array(self._operand(node).size, np.int64))

    def _operand(self, node: NodeProto) -> Value:
        value = self._try_value(node.input[0])
        if value is None:
            raise UserError(f"{node.op_type} needs an input 0")
        return value


def _make_op(
    node: NodeProto,
    attrs: Mapping[str, Any],
    opset: int,
    inputs: Sequence[Value | None],
    known: KnownValues,
) -> tuple[Op, tuple[int, ...]]:
    def constant(i: int) -> Array | None:
        value = inputs[i] if i < len(inputs) else None
        return None if value is None else known.get(value)

    types: tuple[TensorType | None, ...] = tuple(None if v is None else v.type for v in inputs)
    seen = OnnxNode(node.op_type, opset, attrs, types, constant, len(node.output))
    cls = by_onnx(node.op_type)
    if cls is None:
        raise UserError(f"{node.op_type} is not supported")
    try:
        return cls.from_onnx(seen)
    except (ArithmeticError, LookupError, TypeError, ValueError) as e:
        # Attributes have the declared types here, but their values may still be absurd.
        raise UserError(f"{node.op_type}: attributes or inputs make no sense ({e})") from e


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as e:
        raise UserError(f"an attribute is not UTF-8 text: {text[:40]!r}") from e


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _title(node: NodeProto) -> str:
    if node.name:
        return f"node {label(node.name)}"
    return (
        f"the node that computes {label(node.output[0])}" if node.output else "a node without name or outputs"
    )

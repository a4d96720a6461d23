"""One ONNX node: its attributes as Python values, and the op it stands for."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import AttributeProto, FunctionProto, NodeProto, OperatorSetIdProto, defs

from tilewright.frontend.onnx import write
from tilewright.frontend.onnx.file import ModelLimits, TensorReader
from tilewright.frontend.onnx.names import label
from tilewright.graph.open_values import OpenArray
from tilewright.ops.compositeop import Composite, body_of
from tilewright.ops.hostop import HostOp
from tilewright.ops.opdef import OnnxNode, Op, TensorType
from tilewright.ops.registry import by_onnx, composite_by_onnx, host_by_onnx
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_EARLY = ("LayerNormalization",)  # onnxruntime writes it into opsets that do not have it yet


def normal_domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def read_opsets(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    """The version of each domain."""
    opsets = {normal_domain(o.domain): o.version for o in imports}
    for domain, version in opsets.items():
        if not 0 <= version < 1 << 31:
            raise UserError(f"{version} is no version of the opset {label(domain or 'ai.onnx')}")
    return opsets


@dataclass(frozen=True, slots=True, eq=False)
class NodeSite:
    """A node, the opsets in force where it stands, and how many functions it is inside of."""

    node: NodeProto
    opsets: Mapping[str, int]
    name: str
    depth: int = 0

    @property
    def domain(self) -> str:
        return normal_domain(self.node.domain)

    @property
    def opset(self) -> int:
        return self.opsets.get(self.domain, 1)

    @property
    def title(self) -> str:
        if self.node.name:
            return f"node {label(self.node.name)}"
        if self.node.output:
            return f"the node that computes {label(self.node.output[0])}"
        return "a node without name or outputs"

    @property
    def scope(self) -> str:
        """What names inside of the node get in front of them. Values are defined once, except that a node inside of
        a function computes what the call does: so this is unique.
        """
        return f"{next(o for o in self.node.output if o)}::{self.depth}::"

    def native(self) -> type[Op] | None:
        return by_onnx(self.node.op_type, self.domain)

    def hosted(self) -> type[HostOp] | None:
        return host_by_onnx(self.node.op_type, self.domain)

    def composite(self) -> type[Composite] | None:
        return composite_by_onnx(self.node.op_type, self.domain)

    def schema(self) -> defs.OpSchema | None:
        """ONNX's own declaration, which operators of other domains do not have."""
        op_type, opset = self.node.op_type, self.opset
        return defs.get_schema(op_type, opset, self.domain) if defs.has(op_type, opset, self.domain) else None

    def error(self, e: UserError, inputs: Sequence[TensorType | None]) -> UserError:
        """The complaint with the node's name, types and opset."""
        if e.where is not None:
            return e
        types = ", ".join("absent" if t is None else str(t) for t in inputs)
        return UserError(
            e.message, where=f"{self.title}: {self.node.op_type}({types}), opset {self.opset}", hint=e.hint
        )


def attributes(step: NodeSite, reader: TensorReader, limits: ModelLimits) -> dict[str, Any]:
    """Attributes as Python values, held to ONNX's declaration of the op. Subgraphs are left out."""
    node, schema = step.node, step.schema()
    if schema is None and step.domain == "" and node.op_type not in _EARLY and step.composite() is None:
        raise UserError(f"opset {step.opset} has no {node.op_type}")
    if len(node.input) > limits.operands and node.op_type not in ("Concat", "Loop", "If", "Scan"):
        raise UserError(f"{len(node.input)} inputs of one node: the limit is {limits.operands}")
    if schema is not None:
        if not schema.min_input <= len(node.input) <= schema.max_input:
            raise UserError(f"{node.op_type} does not take {len(node.input)} inputs")
        if not schema.min_output <= len(node.output) <= schema.max_output:
            raise UserError(f"{node.op_type} does not have {len(node.output)} outputs")
    out: dict[str, Any] = {}
    for a in node.attribute:
        if a.name in out:
            raise UserError(f"attribute {a.name} is given twice")
        if schema is not None:
            declared = schema.attributes.get(a.name)
            if declared is None:
                raise UserError(f"{node.op_type} of opset {step.opset} has no attribute {label(a.name)}")
            kind = str(declared.type).rpartition(".")[2]
            if a.ref_attr_name or AttributeProto.AttributeType.Name(a.type) != kind:
                raise UserError(f"attribute {a.name} has the wrong type", hint=f"it should be {kind}")
        if a.type != AttributeProto.GRAPH:
            out[a.name] = _attribute(a, reader)
    if schema is not None:
        given = {a.name for a in node.attribute}
        for name, declared in schema.attributes.items():
            if declared.required and name not in given:
                raise UserError(f"the attribute {name} is missing")
    return out


def constant_node_value(step: NodeSite, attrs: Mapping[str, Any]) -> Array:
    """What a Constant is."""
    match list(attrs.items()):
        case [("value" | "sparse_value", array)]:
            return array
        case [("value_int" | "value_ints", number)]:
            return np.array(number, np.int64)
        case [("value_float" | "value_floats", number)]:
            return np.array(number, np.float32)
        case [("value_string" | "value_strings", text)]:
            return np.array(text, object)
        case _:
            raise UserError(f"a constant given by {', '.join(attrs) or 'nothing'} is not supported")


def make_op(
    step: NodeSite,
    cls: type[Op],
    attrs: Mapping[str, Any],
    types: Sequence[TensorType | None],
    constant: Callable[[int], Array | None],
    sizes: Callable[[int], OpenArray | None] = lambda i: None,
) -> tuple[Op, tuple[int, ...]]:
    """The native op of a node, and which of the node's inputs it takes."""
    seen = OnnxNode(
        step.node.op_type, step.opset, attrs, tuple(types), constant, len(step.node.output), sizes
    )
    with nonsense(step):
        return cls.from_onnx(seen)


def make_host_op(step: NodeSite, cls: type[HostOp], attrs: Mapping[str, Any]) -> HostOp:
    seen = OnnxNode(step.node.op_type, step.opset, attrs, (), lambda _: None, len(step.node.output))
    with nonsense(step):
        return cls.from_onnx(seen)


def composite_function(
    step: NodeSite,
    cls: type[Composite],
    attrs: Mapping[str, Any],
    types: Sequence[TensorType | None],
    constant: Callable[[int], Array | None],
    sizes: Callable[[int], OpenArray | None],
) -> tuple[FunctionProto, Mapping[str, tuple[int, ...]]]:
    """What a composite writes for a node, and open numbers in it, by the names of values that have them."""
    seen = OnnxNode(
        step.node.op_type, step.opset, attrs, tuple(types), constant, len(step.node.output), sizes
    )
    with nonsense(step):
        body = body_of(cls, seen, step.scope)
    return write.make_function(body), body.sizes


# What absurd values break.
NONSENSE = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError)


class nonsense:
    """Attributes have the declared types, but their values may still be absurd: what that breaks is a UserError."""

    def __init__(self, step: NodeSite) -> None:
        self._step = step

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: object) -> None:
        if isinstance(e, NONSENSE):
            raise nonsense_error(self._step, e) from e


def nonsense_error(step: NodeSite, e: BaseException) -> UserError:
    return UserError(f"{step.node.op_type}: attributes or inputs make no sense ({e})")


def _attribute(a: AttributeProto, reader: TensorReader) -> Any:
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
            return reader.read(a.t)
        case AttributeProto.SPARSE_TENSOR:
            return reader.read_sparse(a.sparse_tensor)
        case AttributeProto.TYPE_PROTO:
            return a.tp
        case _:
            kind = AttributeProto.AttributeType.Name(a.type)
            raise UserError(f"attribute {a.name}: attributes of type {kind} are not supported")


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as e:
        raise UserError(f"an attribute is not UTF-8 text: {text[:40]!r}") from e

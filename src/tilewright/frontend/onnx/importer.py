"""The nodes of a model become a stage (`frontend.onnx.stage`).

Each ONNX node becomes one node of the graph, through `from_onnx` and `infer` of the op that claims its name; nothing
is simplified here but what cannot be expressed: constants, `Identity`, and the shape of a value, which is static.
Types come from our ops alone. Values that ops need at compile time (target shapes, axes) are worked out on demand.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from onnx import FunctionProto

from tilewright.frontend.onnx.custom_ops import unsupported, unsupported_node
from tilewright.frontend.onnx.file import OverLimit, check_tensor_bytes
from tilewright.frontend.onnx.four_bits import in_bytes
from tilewright.frontend.onnx.functions import inline
from tilewright.frontend.onnx.host import is_native, run_checked, run_reference
from tilewright.frontend.onnx.names import free_names, label, subgraphs
from tilewright.frontend.onnx.nodes import (
    NodeSite,
    attributes,
    composite_function,
    constant_node_value,
    make_host_op,
    make_op,
    nonsense,
)
from tilewright.frontend.onnx.scope import ModelScope, is_foreign
from tilewright.frontend.onnx.sequences import Sequences
from tilewright.frontend.onnx.stage import Given, HostCall, HostNodes, ModelStage, Opaque
from tilewright.graph.build import GraphBuilder
from tilewright.graph.external import CustomNode, No
from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.known import KnownValues
from tilewright.graph.open_values import OpenArray, OpenValues
from tilewright.graph.origin import NodeOperand, OpenNumbers, Origin, origin_name
from tilewright.graph.passes.check_indices import check_indices
from tilewright.ops.core.constant import Sizes
from tilewright.ops.core.quantize import DequantizeLinear
from tilewright.ops.hostop import HostValue
from tilewright.ops.opdef import OnHost, Op, TensorType
from tilewright.ops.outside import Outside
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.support.sizes import is_open

_KEPT_BYTES = 1 << 20  # what is known and larger is computed all the same, not handed on


@dataclass(frozen=True, slots=True, eq=False)
class _Import:
    """A node of the graph, and the one of the model that it was made from."""

    node: Node
    step: NodeSite
    operands: tuple[NodeOperand, ...]


def _origin(
    step: NodeSite,
    operands: Sequence[NodeOperand],
    values: Mapping[str, Value],
    whole: Origin | None = None,
) -> Origin:
    return Origin(step.node, step.opsets, tuple(operands), tuple(map(values.get, step.node.output)), whole)


def _stated(value: Value, known: Array | None, sizes: OpenArray | None) -> Array | OpenNumbers | None:
    """An input of a node that its op does not take. If it is not known, only its type matters: any value will do."""
    if known is None and sizes is not None:
        return OpenNumbers(tuple(sizes.reshape(-1)), sizes.shape, value.type.dtype.numpy)
    if known is not None or value.bytes > _KEPT_BYTES:
        return known
    return np.zeros(value.shape, value.type.dtype.numpy)


class StageImporter:
    """Imports what can be imported, given the types of values, or arrays that are known."""

    def __init__(self, scope: ModelScope, given: Mapping[str, Given | Array]) -> None:
        self._scope, self._source, self._given = scope, scope.source, given
        self._builder = GraphBuilder(scope.name)
        self._values: dict[str, Value] = {}
        self._held: dict[str, HostValue] = {}  # host values that are known
        self._aliases: dict[str, str] = {}  # given host values under another name
        self._late: set[str] = set()  # what hosts, and nodes after them, will give
        self._known = KnownValues({})
        self._open = OpenValues()
        self._sequences = Sequences(self._type_of, self._constant_of)
        self._expanded = 0  # nodes that others stood for
        self._wholes: dict[NodeSite, NodeSite] = {}  # the node of the model that stood for a node
        self._imports: list[_Import] = []
        self._hosts: list[HostCall] = []
        self._rest: list[NodeSite] = []
        self._refusals: list[str] = []  # nodes that nothing can run
        # Node types that are no op of ours, because their result is known as soon as their input's type is.
        self._special: dict[str, Callable[[NodeSite, Mapping[str, Any]], Value | Array]] = {
            "Constant": constant_node_value,
            "Identity": self._identity,
            "Shape": self._shape,
            "Size": self._size,
        }

    def declare(self, name: str, type: TensorType) -> None:
        """Make the graph take this input, used or not. Others it takes when a node uses them."""
        self._values[name] = self._builder.input(name, type)

    def import_steps(self, steps: Iterable[NodeSite]) -> None:
        queue = deque(steps)
        while queue:
            step = queue.popleft()
            if not any(step.node.output):
                continue  # nobody can use what it computes
            captured = free_names(step.node)
            if self._late.isdisjoint(step.node.input) and self._late.isdisjoint(captured):
                try:
                    queue.extendleft(reversed(self._counted(self._import(step, captured))))
                except UserError as e:
                    raise step.error(e, self._types(step)) from e
            else:
                self._rest.append(step)
                self._late.update(o for o in step.node.output if o)
        if self._refusals:
            raise unsupported(self._refusals)

    def _counted(self, expanded: list[NodeSite]) -> list[NodeSite]:
        """The nodes that another stands for: also operators that ONNX declares as functions have many."""
        self._expanded += len(expanded)
        if self._expanded > self._source.limits.nodes:
            raise UserError(
                f"functions of the model expand to over {self._source.limits.nodes} nodes, which is the limit"
            )
        return expanded

    def stage(self, wanted: Iterable[str]) -> ModelStage:
        """What was imported, such that hosts, the rest and those who want these names find what they need."""
        now = {*wanted, *(n for h in self._hosts for n in (*h.inputs, *h.captured))}
        later = {n for s in self._rest for n in (*s.node.input, *free_names(s.node))}
        made: dict[str, int] = {}
        outputs: dict[Value, int] = {}
        known: dict[str, HostValue] = {}
        aliases: dict[str, str] = {}
        inputs = {v: n for n, v in self._values.items() if n in self._given}
        lists = {n: p for n, p in self._sequences.known.items() if n in now or n in later}
        now.update(piece for pieces in lists.values() for piece in pieces)
        for name in sorted((now | later) - lists.keys() - self._late - self._given.keys() - {""}):
            value = self._values.get(name)
            if name in self._aliases:
                aliases[name] = self._aliases[name]
            elif name in self._held:
                known[name] = self._held[name]
            elif value is not None and value in inputs:
                aliases[name] = inputs[value]
            elif self._scope.is_stored(name):  # the rest reads it as a constant of its own
                if name in now:
                    known[name] = self._scope.read(name)
            elif value is None:
                raise UserError(f"{label(name)} is computed by no node")
            elif value.bytes <= _KEPT_BYTES and (array := self._known.get(value)) is not None:
                known[name] = array
            else:
                made[name] = outputs.setdefault(value, len(outputs))
        graph = self._finished(outputs, [v.name for v in outputs])
        return ModelStage(graph, made, known, aliases, lists, tuple(self._hosts), tuple(self._rest))

    def whole(self, outputs: Sequence[str]) -> Graph:
        """The graph, if no node is left to the host."""
        if self._hosts or self._rest:
            raise HostNodes(self._hosts, len(self._rest))
        found = [self._try_value(name) for name in outputs]
        for name, value in zip(outputs, found, strict=True):
            if name in self._held or name in self._aliases or name in self._sequences.known:
                raise HostNodes((), 0)
            if value is None:
                raise UserError(f"the model's output {label(name)} is computed by no node")
        return self._finished([v for v in found if v is not None], outputs)

    def _finished(self, outputs: Iterable[Value], names: Sequence[str]) -> Graph:
        graph = self._builder.finish(*outputs, names=names, origins=self._origins())
        return check_indices(graph) if self._source.check_indices else graph

    def _origins(self) -> dict[Node, Origin]:
        def operand(name: str) -> Value | Array | None:
            found = self._values.get(name)
            return self._scope.read(name) if found is None and self._scope.is_stored(name) else found

        wholes = {
            step: _origin(step, [operand(n) for n in step.node.input], self._values)
            for step in dict.fromkeys(self._wholes.values())
        }
        return {
            o.node: _origin(o.step, o.operands, self._values, wholes.get(self._wholes.get(o.step, o.step)))
            for o in self._imports
        }

    # ------------------------------------------------------------------------------------------------ one node

    def _import(self, step: NodeSite, captured: set[str]) -> list[NodeSite]:
        """Take the node in; or return the nodes that it stands for."""
        functions = self._source.functions
        if functions.own(step.node) is not None:
            return self._parts(step, functions.expand(step, lambda: self._types(step)) or [])
        refused: UserError | None = None
        if not is_foreign(step):
            try:
                parts = self._try_import(step, captured)
                if parts is not None:
                    return parts
            except UserError as e:
                if not self._source.custom_ops or e.where is not None or isinstance(e, OverLimit):
                    raise  # where it says something else than the node, it is that which is wrong
                refused = e
        self._add_custom_op(step, captured, refused)
        return []

    def _try_import(self, step: NodeSite, captured: set[str]) -> list[NodeSite] | None:
        """Take in a node that native code or our host runs, or stands for others; None if it is unknown."""
        if step in self._scope.host_ops:
            self._add_host(step, {}, captured, None, "")
            return []
        attrs = attributes(step, self._source.reader, self._source.limits)
        if step.node.op_type == "If" and step.domain == "":
            condition = self._constant_of(step.node.input[0])
            if condition is not None:
                branch = subgraphs(step.node)["then_branch" if condition.all() else "else_branch"]
                return self._parts(self._wholes.get(step), inline(step, branch))
        pieces = self._sequences.expand(step, attrs)
        if pieces is not None:
            return self._parts(self._wholes.get(step), pieces)
        opaque = any(self._is_opaque(n) for n in step.node.input)
        special = self._special.get(step.node.op_type) if step.domain == "" else None
        native = step.native()
        if native is DequantizeLinear and opaque:
            found = in_bytes(step, {n: self._held_or_known(n) for n in step.node.input if self._is_opaque(n)})
            if found is not None:
                step, opaque = found.site, False
                for name in found.arrays.keys() - self._values.keys():
                    self._define(name, found.arrays[name])
        if special is not None and not opaque:
            result = special(step, attrs)
            if isinstance(result, Value):
                self._define(step.node.output[0], result)
            else:
                self._hold(step.node.output[0], result)
        elif special == self._identity:
            self._copy_host_value(step)
        elif native is not None and not opaque:
            try:
                self._add(step, native, attrs)
            except OnHost as e:
                self._add_host(step, attrs, captured, native, e.message)
        elif native is not None or step.hosted() is not None:
            self._add_host(step, attrs, captured, native, "it has elements that only the host computes with")
        else:
            types = self._types(step)
            functions = self._source.functions
            expanded = functions.expand(step, lambda: types, lambda: self._written(step, attrs, types))
            return None if expanded is None else self._parts(step, expanded)
        return []

    def _parts(self, whole: NodeSite | None, parts: list[NodeSite]) -> list[NodeSite]:
        """Note what `parts` are parts of: the outermost node that stands for them."""
        if whole is not None:
            self._wholes.update(dict.fromkeys(parts, self._wholes.get(whole, whole)))
        return parts

    def _add(self, step: NodeSite, cls: type[Op], attrs: Mapping[str, Any]) -> None:
        node = step.node
        inputs = [self._try_value(n) if n else None for n in node.input]

        def constant(i: int) -> Array | None:
            value = inputs[i] if i < len(inputs) else None
            return None if value is None else self._known.get(value)

        def sizes(i: int) -> OpenArray | None:
            value = inputs[i] if i < len(inputs) else None
            return None if value is None else self._open.get(value)

        types = [None if v is None else v.type for v in inputs]
        op, taken = make_op(step, cls, attrs, types, constant, sizes)
        stated = [
            v if v is None or i in taken else _stated(v, constant(i), sizes(i)) for i, v in enumerate(inputs)
        ]
        self._add_op(step, op, [v for v in (inputs[i] for i in taken) if v is not None], stated)

    def _add_op(
        self, step: NodeSite, op: Op, operands: Sequence[Value], stated: Sequence[NodeOperand]
    ) -> None:
        """A node of the graph. `stated` are the inputs as the model has them."""
        names = [n or f"{step.name}.{i}" for i, n in enumerate(step.node.output)]
        self._define_outputs(
            step, self._builder.add(op, operands, step.name, names), stated, step.node.output
        )

    def _define_outputs(
        self, step: NodeSite, made: Node, stated: Sequence[NodeOperand], names: Iterable[str]
    ) -> None:
        for v in made.outputs:
            check_tensor_bytes(v.shape, v.type.dtype, self._source.limits)
        self._known.add(made)
        self._open.add(made, self._known.get)
        self._imports.append(_Import(made, step, tuple(stated)))
        for n, v in zip(names, made.outputs, strict=False):
            if n:
                self._define(n, v)

    def _add_custom_op(self, step: NodeSite, captured: set[str], refused: UserError | None) -> None:
        """A node that native code does not know, or has `refused`: a plugin has it, or nobody."""
        custom_ops = self._source.custom_ops
        why = "native code does not know it" if refused is None else refused.message
        reasons: list[str] = []
        if custom_ops and not captured and not any(self._is_opaque(n) for n in step.node.input):
            untyped = self._try_outside(step)
            if untyped is None:
                return
            why = untyped.reason
            reasons.append(why)
        hosted = custom_ops.host(step)
        if isinstance(hosted, No):
            self._refuse(step, [*reasons, hosted.reason], refused)
        else:
            why = f"the plugin {hosted.plugin} runs it: {why}"
            self._hosts.append(HostCall(step, tuple(sorted(captured)), why, hosted.run, hosted.plugin))
        self._late.update(o for o in step.node.output if o)

    def _refuse(self, step: NodeSite, reasons: Sequence[str], refused: UserError | None) -> None:
        """Nobody runs the node. What is the matter with others is found out before that is said."""
        text = "; ".join(dict.fromkeys(filter(None, reasons)))
        if refused is not None:
            raise UserError(f"{refused.message}; {text}", hint=refused.hint) from refused
        self._refusals.append(unsupported_node(step, text))

    def _try_outside(self, step: NodeSite) -> No | None:
        """Make it a node of the graph, if a plugin says what it gives; otherwise why none does."""
        custom_ops = self._source.custom_ops
        own = replace(step, node=custom_ops.self_contained(step.node))
        inputs = [self._try_value(n) if n else None for n in step.node.input]
        types = tuple(None if v is None else v.type for v in inputs)
        constants = tuple(None if v is None else self._known.get(v) for v in inputs)
        found = custom_ops.types(CustomNode(own.node, step.opsets, types, constants))
        if isinstance(found, No):
            return found
        if step in self._wholes:
            self._wholes[own] = self._wholes[step]
        op = Outside(origin_name(step.node), tuple(t for t in types if t is not None), tuple(found))
        names = [n for n in step.node.output if n]  # those that are left out have no types
        made = self._builder.add(op, [v for v in inputs if v is not None], step.name, names)
        self._define_outputs(own, made, inputs, names)
        return None

    def _add_host(
        self, step: NodeSite, attrs: Mapping[str, Any], captured: set[str], native: type[Op] | None, why: str
    ) -> None:
        """Leave the node to the host; or run it now, if its inputs are known and it has no subgraphs."""
        hosted = step.hosted()
        if hosted is not None:
            op = self._scope.host_ops.get(step) or make_host_op(step, hosted, attrs)
            if step.domain and step.depth == 0 and native is None:
                self._scope.host_ops[step] = op
            run, why = op.run, hosted.why
            if self._source.check_indices:
                run = partial(run_checked, step, op)
        else:
            assert native is not None
            run = partial(run_reference, step, native, attrs, self._source.check_indices)
        if self._source.custom_ops and not subgraphs(step.node):
            run = self._source.custom_ops.instead(step, run)
        known = [self._held_or_known(n) if n else None for n in step.node.input]
        foldable = hosted is None or (hosted.is_pure and not subgraphs(step.node))
        if foldable and all(k is not None or not n for k, n in zip(known, step.node.input, strict=True)):
            with nonsense(step), np.errstate(all="ignore"):
                results = run(known, {})
            for n, value in zip(step.node.output, results, strict=False):
                if n:
                    self._hold(n, value)
            return
        is_quiet = hosted is not None and hosted.moves_only and not self._source.custom_ops
        self._hosts.append(HostCall(step, tuple(sorted(captured)), why, run, moves_only=is_quiet))
        self._late.update(o for o in step.node.output if o)

    def _written(
        self, step: NodeSite, attrs: Mapping[str, Any], types: Sequence[TensorType | None]
    ) -> FunctionProto | None:
        """The nodes that a composite stands for."""
        composite = step.composite()
        if composite is None:
            return None
        names = step.node.input

        def sizes(i: int) -> OpenArray | None:
            value = self._try_value(names[i]) if i < len(names) and names[i] else None
            return None if value is None else self._open.get(value)

        function, numbers = composite_function(
            step, composite, attrs, types, lambda i: self._constant_of(names[i]), sizes
        )
        for name, values in numbers.items():
            self._define(name, self._sizes(step, Sizes(values), (name,)))
        return function

    # ---------------------------------------------------------------------------------------------- what names mean

    def _define(self, name: str, value: Value | Array) -> None:
        if name in self._values or name in self._held or name in self._aliases:
            raise UserError(f"two nodes define {label(name)}")
        self._values[name] = value if isinstance(value, Value) else self._add_constant(name, value)

    def _hold(self, name: str, value: HostValue) -> None:
        """A known result of the host: a constant, if native code has the type."""
        if is_native(value):
            self._define(name, value)
        else:
            self._held[name] = value

    def _is_opaque(self, name: str) -> bool:
        if name in self._values or not name:
            return False
        if name in self._held or name in self._aliases or name in self._sequences.known:
            return True
        if isinstance(self._given.get(name), Opaque):
            return True
        return self._scope.is_stored(name) and not is_native(self._scope.read(name))

    def _try_value(self, name: str) -> Value | None:
        """The value of this name; a stored tensor is read when it is first asked for."""
        found = self._values.get(name)
        if found is None:
            given = self._given.get(name)
            if isinstance(given, TensorType):
                found = self._values[name] = self._builder.input(name, given)
            elif isinstance(given, np.ndarray):
                found = self._values[name] = self._add_constant(name, given)
            elif given is None and self._scope.is_stored(name):
                found = self._values[name] = self._add_constant(name, self._scope.read(name))
        return found

    def _held_or_known(self, name: str) -> HostValue:
        if name in self._held:
            return self._held[name]
        if self._is_opaque(name):
            return self._scope.read(name) if self._scope.is_stored(name) else None
        return self._constant_of(name)

    def _constant_of(self, name: str) -> Array | None:
        value = self._try_value(name)
        return None if value is None else self._known.get(value)

    def _types(self, step: NodeSite) -> list[TensorType | None]:
        return [self._type_of(n) for n in step.node.input]

    def _type_of(self, name: str) -> TensorType | None:
        value = None if self._is_opaque(name) else self._try_value(name)
        return None if value is None else value.type

    def _add_constant(self, name: str, array: Array) -> Value:
        value = self._builder.constant(name, array)
        self._known.add_constant(value, array)
        return value

    # ----------------------------------------------------------------- nodes whose result is known from types

    def _identity(self, step: NodeSite, attrs: Mapping[str, Any]) -> Value:
        return self._operand(step)

    def _copy_host_value(self, step: NodeSite) -> None:
        source, name = step.node.input[0], step.node.output[0]
        if source in self._held:
            self._held[name] = self._held[source]
        elif source in self._sequences.known:
            self._sequences.known[name] = self._sequences.known[source]
        elif source in self._given or source in self._aliases:
            self._aliases[name] = self._aliases.get(source, source)
        else:
            self._held[name] = self._scope.read(source)

    def _shape(self, step: NodeSite, attrs: Mapping[str, Any]) -> Value | Array:
        # `start` and `end` clamp to the axes there are, which is what slicing does.
        chosen = self._operand(step).shape[slice(attrs.get("start", 0), attrs.get("end"))]
        return self._sizes(step, Sizes(chosen)) if is_open(chosen) else np.array(chosen, np.int64)

    def _size(self, step: NodeSite, attrs: Mapping[str, Any]) -> Value | Array:
        size = self._operand(step).size
        return (
            self._sizes(step, Sizes((size,), single=True)) if is_open((size,)) else np.array(size, np.int64)
        )

    def _sizes(self, step: NodeSite, op: Sizes, names: Sequence[str] | None = None) -> Value:
        made = self._builder.add(op, (), step.name, names or step.node.output)
        self._open.add(made, self._known.get)
        return made.outputs[0]

    def _operand(self, step: NodeSite) -> Value:
        value = self._try_value(step.node.input[0])
        if value is None:
            raise UserError(f"{step.node.op_type} needs an input 0")
        return value

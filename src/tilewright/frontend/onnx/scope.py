"""The nodes of a graph or of a body, flat and in an order in which they can run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from onnx import GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, ValueInfoProto, defs

from tilewright.frontend.onnx.custom_ops import CustomOps, unsupported, unsupported_node
from tilewright.frontend.onnx.file import ModelLimits, TensorReader
from tilewright.frontend.onnx.functions import Functions, is_declared_function
from tilewright.frontend.onnx.interface import sorted_nodes
from tilewright.frontend.onnx.names import all_nodes, check_names, free_names, label, subgraphs
from tilewright.frontend.onnx.nodes import NodeSite, normal_domain, read_opsets
from tilewright.graph.external import Plugin
from tilewright.ops.hostop import HostOp
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

OPSETS = range(7, 29)
_SPECIAL = ("Constant", "Identity", "Shape", "Size")  # their results are known from types


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What all graphs of a model share."""

    functions: Functions
    reader: TensorReader
    limits: ModelLimits
    custom_ops: CustomOps  # who runs what we do not
    check_indices: bool = False


@dataclass(frozen=True, eq=False)
class ModelScope:
    """A graph or a body: what it takes, what it gives, its nodes in an order in which they can run."""

    source: Source
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[NodeSite, ...]
    stored: Mapping[str, TensorProto | SparseTensorProto]
    around: "ModelScope | None" = None  # whose constants a body may use
    declared: tuple[ValueInfoProto, ...] = ()  # what the file says of the outputs: nothing, often
    # Of nodes of other domains, whose attributes may be large (trees): made once, whatever the types.
    host_ops: dict[NodeSite, HostOp] = field(default_factory=dict[NodeSite, HostOp])
    _read: dict[str, Array] = field(default_factory=dict[str, Array])

    @cached_property
    def captured(self) -> tuple[str, ...]:
        """What a body uses of the graph around it, apart from constants."""
        inside = {*self.inputs, *(o for s in self.steps for o in s.node.output)}
        used = [n for s in self.steps for n in (*s.node.input, *sorted(free_names(s.node)))]
        names = dict.fromkeys(n for n in (*used, *self.outputs) if n and n not in inside)
        return tuple(n for n in names if not self.is_stored(n))

    def is_stored(self, name: str) -> bool:
        return name in self.stored or (self.around is not None and self.around.is_stored(name))

    def read(self, name: str) -> Array:
        """A stored tensor, which is read once."""
        if name not in self.stored:
            assert self.around is not None
            return self.around.read(name)
        if name not in self._read:
            try:
                t, reader = self.stored[name], self.source.reader
                self._read[name] = reader.read(t) if isinstance(t, TensorProto) else reader.read_sparse(t)
            except UserError as e:
                raise UserError(e.message, where=f"initializer {label(name)}", hint=e.hint) from e
        return self._read[name]


def model_scope(
    model: ModelProto,
    reader: TensorReader,
    limits: ModelLimits,
    plugins: Sequence[Plugin] = (),
    *,
    check_indices: bool = False,
) -> ModelScope:
    """The main graph. UserError if there are nodes that nothing can run, with all of them. Whether plugins that know
    operators only by types know one is found out when types are.
    """
    check_names(model.graph)
    _check_opset({normal_domain(o.domain): o.version for o in model.opset_import}, model.graph, bool(plugins))
    opsets = read_opsets(model.opset_import)
    for f in model.functions:
        check_names(GraphProto(node=f.node))
    functions = Functions(model, limits)
    functions.check_size(model.graph.node)
    source = Source(functions, reader, limits, CustomOps(plugins, functions, reader), check_indices)
    scope = graph_scope(source, model.graph, opsets)
    _check_supported(source, model, opsets)
    return scope


def graph_scope(
    source: Source, graph: GraphProto, opsets: Mapping[str, int], around: ModelScope | None = None
) -> ModelScope:
    """The nodes of a graph; `around` is the scope that a body stands in."""
    stored: dict[str, TensorProto | SparseTensorProto] = {}
    for t in (*graph.initializer, *graph.sparse_initializer):
        name = t.name if isinstance(t, TensorProto) else t.values.name
        if name in stored:
            raise UserError(f"two initializers are named {label(name)}")
        stored[name] = t
    # Before IR version 4 every initializer was an input too: then it is the default, and we take it.
    inputs = tuple(i.name for i in graph.input if i.name not in stored)
    nodes = sorted_nodes(graph.node, {*inputs, *stored}, is_body=around is not None)
    steps = tuple(NodeSite(n, opsets, n.name or f"{n.op_type}_{i}") for i, n in enumerate(nodes))
    outputs = tuple(o.name for o in graph.output)
    name = graph.name or "model"
    return ModelScope(source, name, inputs, outputs, steps, stored, around, tuple(graph.output))


def is_foreign(step: NodeSite) -> bool:
    """Is the node of an opset before or after ours, in which its operator may mean something else?"""
    opset = step.opsets.get("", OPSETS[0])
    return opset not in OPSETS and _has_changed(step.node, opset)


def _check_opset(opsets: Mapping[str, int], graph: GraphProto, has_plugins: bool) -> None:
    opset = opsets.get("")
    if opset is None:
        if opsets and all(normal_domain(n.domain) for n in all_nodes(graph.node)):
            return  # all its nodes are of other domains
        raise UserError("the model does not say which ONNX opset it uses", hint="export it again")
    if opset in OPSETS or (has_plugins and opset > 0):
        return  # plugins are asked about nodes that are foreign to us
    changed = sorted({n.op_type for n in all_nodes(graph.node) if _has_changed(n, opset)})
    if changed or not 0 < opset < OPSETS[0]:
        of = f" for {', '.join(map(label, changed[:5]))}" if 0 < opset < OPSETS[0] else ""
        raise UserError(
            f"the model uses ONNX opset {opset}; supported are {OPSETS[0]} to {OPSETS[-1]}{of}",
            hint=f"export it again with opset {max(OPSETS[0], 18)}, or convert it with onnx.version_converter",
        )


def _has_changed(node: NodeProto, opset: int) -> bool:
    """Does an operator of an opset before the first supported one mean something else in that?"""
    if normal_domain(node.domain) or not 0 < opset < OPSETS[0] or not defs.has(node.op_type, opset):
        return True
    now = OPSETS[0]
    return (
        defs.get_schema(node.op_type, opset).since_version != defs.get_schema(node.op_type, now).since_version
    )


def _check_supported(source: Source, model: ModelProto, opsets: Mapping[str, int]) -> None:
    found = list(_refusals(source, model.graph.node, opsets))
    for f in source.functions.bodies():
        found += _refusals(source, f.node, read_opsets(f.opset_import))
    if found:
        raise unsupported(found)


def _refusals(source: Source, nodes: Iterable[NodeProto], opsets: Mapping[str, int]) -> Iterator[str]:
    """What to say of nodes that nothing can run, those of subgraphs included. Subgraphs of a custom op are its own."""
    stack = [iter(nodes)]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            continue
        step = NodeSite(node, opsets, "")
        is_known = _is_known(source, step)
        reasons = None if is_known else source.custom_ops.against(step)
        if reasons is not None:
            yield unsupported_node(step, reasons)
        if is_known or reasons is not None:
            stack.extend(iter(g.node) for g in subgraphs(node).values())


def _is_known(source: Source, step: NodeSite) -> bool:
    if source.functions.own(step.node) is not None:
        return True
    if is_foreign(step):
        return False
    if step.domain == "" and step.node.op_type in _SPECIAL:
        return True
    return step.native() is not None or step.hosted() is not None or is_declared_function(step)

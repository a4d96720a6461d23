"""Nodes that stand for other nodes: functions of the model, functions that ONNX declares, and chosen branches.

Expanding renames: the formal names become the actual ones, and everything inside gets the node's name in front of it,
so that one flat list of nodes with unique names remains.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, defs

from tilewright.frontend.onnx.file import ModelLimits
from tilewright.frontend.onnx.names import all_nodes, label, stored_names
from tilewright.frontend.onnx.nodes import NodeSite, normal_domain, read_opsets
from tilewright.ops.opdef import ONNX_DTYPES, TensorType
from tilewright.support.errors import UserError

_ONNX_NUMBERS = {dtype: number for number, dtype in ONNX_DTYPES.items()}


_Key: TypeAlias = tuple[str, str, str]  # domain, name and overload


class Functions:
    """The functions of a model, checked: none calls itself."""

    def __init__(self, model: ModelProto, limits: ModelLimits) -> None:
        self._limits = limits
        self._own: dict[_Key, FunctionProto] = {}
        self._sizes: dict[_Key, int] = {}  # nodes of each, with those that they stand for
        for f in model.functions:
            key = (normal_domain(f.domain), f.name, f.overload)
            if key in self._own:
                raise UserError(f"two functions of the model are named {label(f.name)}")
            self._own[key] = f
        self._check_calls()

    def own(self, node: NodeProto) -> FunctionProto | None:
        """The function of the model that a node calls."""
        return self._own.get(_key(node))

    def bodies(self) -> Iterable[FunctionProto]:
        return self._own.values()

    def expand(
        self,
        step: NodeSite,
        types: Callable[[], Sequence[TensorType | None]],
        written: Callable[[], FunctionProto | None] = lambda: None,
    ) -> list[NodeSite] | None:
        """The nodes that compute what this one does: a function of the model, one that is `written` for the node, or
        one that ONNX declares. None if it is no function.
        """
        own = self.own(step.node)
        found = own or written() or _declared(step, types)
        if found is None:
            return None
        if step.depth >= self._limits.nesting:
            raise UserError(f"functions call each other over {self._limits.nesting} deep, which is the limit")
        # ONNX's own declarations leave out domains that hold where they are used.
        opsets = {} if own is not None else dict(step.opsets)
        opsets.update(read_opsets(found.opset_import))
        return list(_expanded(step, found, opsets))

    def check_size(self, nodes: Iterable[NodeProto]) -> None:
        """UserError if a graph of these nodes is too large once all functions of the model are expanded: a few that
        call each other can stand for very many.
        """
        if self._expanded_size(nodes) > self._limits.nodes:
            raise UserError(
                f"functions of the model expand to over {self._limits.nodes} nodes, which is the limit"
            )

    def _expanded_size(self, nodes: Iterable[NodeProto]) -> int:
        """How many nodes there are with those that they stand for; of more than the limit, any number above it."""
        most, size = self._limits.nodes + 1, 0
        for n in all_nodes(nodes):
            size += 1 + self._sizes.get(_key(n), 0)
            if size >= most:
                return most
        return size

    def _check_calls(self) -> None:
        """Sizes are found on the way: callees are done before their callers."""
        for start in self._own:
            if start in self._sizes:
                continue
            path = {start: iter(self._called(start))}  # who calls whom, from the start to here
            while path:
                last = next(reversed(path))
                key = next(path[last], None)
                if key is None:
                    del path[last]
                    self._sizes[last] = self._expanded_size(self._own[last].node)
                elif key in path:
                    around = list(path)
                    calls = " → ".join(name for _, name, _ in [*around[around.index(key) :], key])
                    raise UserError(f"a function of the model calls itself: {calls}")
                elif key not in self._sizes:
                    path[key] = iter(self._called(key))

    def _called(self, key: _Key) -> list[_Key]:
        keys = [_key(n) for n in all_nodes(self._own[key].node)]
        return [k for k in dict.fromkeys(keys) if k in self._own]


def _key(node: NodeProto) -> _Key:
    return normal_domain(node.domain), node.op_type, node.overload


def is_declared_function(step: NodeSite) -> bool:
    """Do we, or does ONNX, declare the operator by other operators?"""
    if step.composite() is not None:
        return True
    schema: Any = step.schema()  # its stubs leave functions out
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def inline(step: NodeSite, branch: GraphProto) -> list[NodeSite]:
    """The nodes of a chosen branch; its initializers become constants."""
    nodes = list(branch.node)
    for s in branch.sparse_initializer:
        node = NodeProto(op_type="Constant", output=[s.values.name])
        node.attribute.append(
            AttributeProto(name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=s)
        )
        nodes.insert(0, node)
    for t in branch.initializer:
        node = NodeProto(op_type="Constant", output=[t.name])
        node.attribute.append(AttributeProto(name="value", type=AttributeProto.TENSOR, t=t))
        nodes.insert(0, node)
    defined = [o for n in nodes for o in n.output if o]
    names = {n: f"{step.scope}{n}" for n in defined}
    out = [
        NodeSite(_renamed(n, names), step.opsets, f"{step.name}/{n.name or n.op_type}_{i}", step.depth + 1)
        for i, n in enumerate(nodes)
    ]
    for formal, actual in zip(branch.output, step.node.output, strict=True):
        out.append(_identity(step, names.get(formal.name, formal.name), actual))
    return out


# ------------------------------------------------------------------------------------------------------ expansion


def _declared(step: NodeSite, types: Callable[[], Sequence[TensorType | None]]) -> FunctionProto | None:
    """The body that ONNX declares for an operator, for these types of its inputs."""
    schema: Any = step.schema()
    if schema is None:
        return None
    if schema.has_context_dependent_function:
        given = [_type_proto(t).SerializeToString() for t in types()]
        body = schema.get_context_dependent_function(step.node.SerializeToString(), given)
        return _with_defaults(FunctionProto.FromString(body), schema) if body else None
    return _with_defaults(schema.function_body, schema) if schema.has_function else None


def _with_defaults(body: FunctionProto, schema: defs.OpSchema) -> FunctionProto:
    """The body with the defaults of the operator's attributes."""
    out = FunctionProto()
    out.CopyFrom(body)
    known = {a.name for a in out.attribute_proto}
    for name, a in schema.attributes.items():
        if name not in known and a.default_value.type:
            out.attribute_proto.append(a.default_value)
    return out


def _type_proto(t: TensorType | None) -> TypeProto:
    out = TypeProto()
    if t is not None:
        out.tensor_type.elem_type = _ONNX_NUMBERS[t.dtype]
        out.tensor_type.shape.SetInParent()
        for n in t.shape:
            out.tensor_type.shape.dim.add().dim_value = n
    return out


def _expanded(step: NodeSite, body: FunctionProto, opsets: Mapping[str, int]) -> Iterator[NodeSite]:
    call = step.node
    if len(call.input) > len(body.input) or len(call.output) > len(body.output):
        raise UserError(
            f"function {label(body.name)} takes {len(body.input)} inputs and has {len(body.output)} outputs"
        )
    given = {a.name: a for a in (*body.attribute_proto, *call.attribute)}
    names = {o: f"{step.scope}{o}" for n in body.node for o in n.output if o}
    for i, formal in enumerate(body.input):
        names[formal] = call.input[i] if i < len(call.input) else ""
    inputs = set(body.input)
    ends: list[NodeSite] = []
    for formal, actual in zip(body.output, call.output, strict=False):
        if not actual:
            continue
        if formal in inputs or names.get(formal, "") not in (f"{step.scope}{formal}", ""):
            ends.append(_identity(step, names[formal], actual))
        else:
            names[formal] = actual
    for i, n in enumerate(body.node):
        made = _renamed(n, names, given)
        yield NodeSite(made, opsets, f"{step.name}/{n.name or n.op_type}_{i}", step.depth + 1)
    yield from ends


def _identity(step: NodeSite, source: str, target: str) -> NodeSite:
    node = NodeProto(op_type="Identity", input=[source], output=[target])
    return NodeSite(node, step.opsets, f"{step.name}/{target}", step.depth + 1)


def _renamed(
    node: NodeProto, names: Mapping[str, str], given: Mapping[str, AttributeProto] | None = None
) -> NodeProto:
    """A copy with other names of values, also inside of subgraphs, and with attributes filled in."""
    out = NodeProto()
    out.CopyFrom(node)
    del out.input[:], out.output[:], out.attribute[:]
    out.input.extend(names.get(n, n) for n in node.input)
    out.output.extend(names.get(n, n) for n in node.output)
    for a in node.attribute:
        if a.ref_attr_name:
            value = None if given is None else given.get(a.ref_attr_name)
            if value is None:
                continue  # not given: the operator's own default holds
            a = _attribute_named(value, a.name)
        elif a.type == AttributeProto.GRAPH:
            a = AttributeProto(name=a.name, type=a.type, g=_renamed_graph(a.g, names, given))
        out.attribute.append(a)
    return out


def _attribute_named(a: AttributeProto, name: str) -> AttributeProto:
    out = AttributeProto()
    out.CopyFrom(a)
    out.name = name
    return out


def _renamed_graph(
    graph: GraphProto, names: Mapping[str, str], given: Mapping[str, AttributeProto] | None
) -> GraphProto:
    inside = {i.name for i in graph.input} | stored_names(graph)
    inside |= {o for n in graph.node for o in n.output}
    outer = {k: v for k, v in names.items() if k not in inside}
    out = GraphProto()
    out.CopyFrom(graph)
    del out.node[:]
    out.node.extend(_renamed(n, outer, given) for n in graph.node)
    for o in out.output:
        o.name = outer.get(o.name, o.name)
    return out

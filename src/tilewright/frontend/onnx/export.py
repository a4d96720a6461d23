"""A graph as an ONNX model again, in the words of the model that it was imported from.

Only graphs whose nodes all know their origin can be written: parts of a model, before passes have changed them. A node
that the importer wrote as several is written as the one that it was, if it is complete.

Open sizes are named dimensions of inputs and outputs, and numbers that follow from them are computed by nodes over the
shapes of inputs (`open_numbers.py`); or all are as they are at the largest sizes.

With `weights=False` the model is small: its constants, but for the smallest, have a name, a type and a shape, and are
said to be in a file that has their name. Who loads it brings them.
"""

from collections.abc import Callable, Iterator

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tilewright.frontend.onnx.open_numbers import DimNames, NumberWriter
from tilewright.graph.external import Region
from tilewright.graph.graph import Graph, Node, Value, users
from tilewright.graph.origin import ModelNode, NodeOperand, OpenNumbers, Origin
from tilewright.ir.dtype import DType
from tilewright.ops.opdef import ONNX_NUMBERS
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.support.sizes import capacity, is_open

_SMALL = 1024  # bytes of a constant that is always written
_IR_VERSION = 10  # of the file format: one that engines of the last years read


def onnx_node(node: ModelNode) -> NodeProto:
    """The node of a model that is known to be ONNX."""
    if not isinstance(node, NodeProto):
        raise UserError(f"{node.op_type} is a node of a model that is not ONNX")
    return node


def to_model(
    graph: Graph,
    *,
    weights: bool = True,
    knows: Callable[[Origin], bool] = lambda _: True,
    at_capacity: bool = False,
) -> ModelProto:
    """UserError if a node has no origin, parts of the graph are written in different versions of ONNX, or a number in
    it depends on sizes that the shapes of its inputs do not tell. Nodes that the importer wrote as several are written
    as such if the reader `knows` them. `at_capacity`: for the largest sizes alone.
    """
    writer = _Writer(graph, knows, at_capacity)
    nodes = list(writer.nodes())
    nodes = [*writer.sizes.nodes, *nodes]
    names = DimNames()

    def info(v: Value) -> ValueInfoProto:
        shape = tuple(map(capacity, v.shape)) if at_capacity else names.shape(v.shape)
        return helper.make_tensor_value_info(v.name, onnx_number(v.type.dtype), shape)

    used = {name for n in nodes for name in n.input} | {v.name for v in graph.outputs}
    proto = GraphProto(
        name=graph.name,
        node=nodes,
        input=[info(v) for v in graph.inputs],
        output=[info(v) for v in graph.outputs],
        initializer=[_tensor(v.name, a, weights) for v, a in graph.constants.items() if v.name in used],
    )
    proto.initializer.extend(numpy_helper.from_array(a, name) for name, a in writer.literals.items())
    opsets = [helper.make_opsetid(d, v) for d, v in sorted(writer.opsets.items())]
    return ModelProto(ir_version=_IR_VERSION, producer_name="tilewright", graph=proto, opset_import=opsets)


def onnx_number(dtype: DType) -> int:
    """ONNX's number of an element type."""
    return ONNX_NUMBERS[dtype]


def brought_names(model: ModelProto) -> list[str]:
    """The constants that a model was written without."""
    return [t.name for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]


def region_model(region: Region) -> ModelProto:
    """A region without its weights, in the nodes that the plugin has taken: a whole only if it has taken that."""
    taken = {u.origin for u in region.units}
    return to_model(region.graph, weights=False, knows=taken.__contains__)


class _Writer:
    def __init__(self, graph: Graph, knows: Callable[[Origin], bool], at_capacity: bool) -> None:
        self._graph, self._users, self._knows = graph, users(graph), knows
        self._at_capacity = at_capacity
        self.opsets: dict[str, int] = {}
        self.literals: dict[str, Array] = {}  # inputs that had become attributes
        self._taken = {v.name for v in self._users}
        self.sizes = NumberWriter(graph.inputs, self._literal, self._taken)

    def nodes(self) -> Iterator[NodeProto]:
        """In an order in which they can run: a whole stands where its last part does."""
        parts: dict[Origin, list[Node]] = {}
        for n in self._graph.nodes:
            whole = self._origin(n).whole
            if whole is not None:
                parts.setdefault(whole, []).append(n)
        complete = {whole: nodes[-1] for whole, nodes in parts.items() if self._is_complete(whole, nodes)}
        for n in self._graph.nodes:
            origin = self._origin(n)
            if origin.whole is None or origin.whole not in complete:
                yield self._written(origin)
            elif complete[origin.whole] is n:
                yield self._written(origin.whole)

    def _origin(self, n: Node) -> Origin:
        found = self._graph.origins.get(n)
        if found is None:
            raise UserError(f"{n!r} is not as it was imported, so it cannot be written as ONNX")
        return found

    def _is_complete(self, whole: Origin, parts: list[Node]) -> bool:
        """Are all of its parts there? Then nothing from inside of it crosses the border of the graph."""
        inputs, outputs = set(self._graph.inputs), set(self._graph.outputs)
        made = {v for n in self._graph.nodes if n not in parts for v in n.outputs}
        given = {v for v in whole.operands if isinstance(v, Value)}
        read = {v for n in parts for v in n.inputs if v in inputs}
        needed = {v for n in parts for v in n.outputs if v in outputs or self._is_read_outside(v, parts)}
        is_closed = read <= given and needed <= set(whole.results)
        return self._knows(whole) and is_closed and given <= inputs | made | self._graph.constants.keys()

    def _is_read_outside(self, value: Value, parts: list[Node]) -> bool:
        return any(n not in parts for n in self._users[value])

    def _written(self, origin: Origin) -> NodeProto:
        node = NodeProto()
        node.CopyFrom(onnx_node(origin.node))
        del node.input[:], node.output[:]
        del node.metadata_props[:]  # what an exporter remembers is of no use here
        node.input.extend(self._name(x, origin.opsets.get("", 0)) for x in origin.operands)
        node.output.extend("" if v is None else v.name for v in origin.results)
        for domain, version in origin.opsets.items():
            if self.opsets.setdefault(domain, version) != version:
                raise UserError(
                    f"the graph needs versions {self.opsets[domain]} and {version} of {domain or 'ONNX'}"
                )
        return node

    def _name(self, operand: NodeOperand, opset: int) -> str:
        match operand:
            case None:
                return ""
            case Value():
                return operand.name
            case OpenNumbers() if self._at_capacity or not is_open(operand.values):
                return self._literal(operand.at_capacity)
            case OpenNumbers():
                return self.sizes.write(operand, opset)
            case _:
                return self._literal(operand)

    def _literal(self, array: Array) -> str:
        name = f"literal~{len(self.literals)}"
        while name in self._taken:
            name += "~"
        self.literals[name] = np.asarray(array)
        return name


def _tensor(name: str, array: Array, weights: bool) -> TensorProto:
    if weights or array.nbytes <= _SMALL:
        return numpy_helper.from_array(array, name)
    out = TensorProto(name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype))
    out.data_location = TensorProto.EXTERNAL
    out.external_data.add(key="location", value=name)
    return out

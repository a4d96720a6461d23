"""A model taken apart: its nodes in order, and smaller models made of some of them.

Weights are read from the file when a smaller model needs them, so that a model with gigabytes of external data can be
looked at a few nodes at a time. Nodes inside of subgraphs stay where they are.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    MapProto,
    ModelProto,
    NodeProto,
    OptionalProto,
    SequenceProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
    shape_inference,
)

from tilewright.backend import type_of
from tilewright.frontend.onnx.file import read_model
from tilewright.frontend.onnx.interface import sorted_nodes
from tilewright.frontend.onnx.names import free_names, subgraphs
from tilewright.ops.hostop import HostValue, HostValues
from tilewright.support.errors import UserError

_SMALL = 1 << 10  # bytes; what is no larger may be a shape, of which other shapes follow


class ModelParts:
    """A model that was read. Its files stay open until it is closed. Nodes are known by their number, in `nodes`."""

    def __init__(self, path: Path) -> None:
        self._model, self._reader = read_model(path)
        graph = self._model.graph
        self._stored = {t.name: t for t in graph.initializer}
        self.outputs = tuple(o.name for o in graph.output)
        inputs = {i.name for i in graph.input if i.name not in self._stored}
        try:
            ordered = sorted_nodes(graph.node, {*inputs, *self._stored})
        except UserError:
            self._reader.close()
            raise
        self.nodes = [n for n in ordered if any(n.output)]
        used = [dict.fromkeys((*n.input, *sorted(free_names(n)))) for n in self.nodes]
        self.uses = [tuple(n for n in names if n and n not in self._stored) for names in used]
        self._weights = [tuple(n for n in names if n in self._stored) for names in used]
        self.gives = [tuple(o for o in n.output if o) for n in self.nodes]

    def __enter__(self) -> "ModelParts":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()

    @cached_property
    def makers(self) -> Mapping[str, int]:
        """Which node gives a value."""
        return {name: i for i, names in enumerate(self.gives) for name in names}

    @cached_property
    def last_use(self) -> Mapping[str, int]:
        """The last node that uses a value."""
        return {name: i for i, names in enumerate(self.uses) for name in names}

    def title(self, i: int) -> str:
        node = self.nodes[i]
        return node.name or f"{node.op_type}_{i}"

    def weight_bytes(self, i: int) -> int:
        return sum(_tensor_bytes(self._stored[n]) for n in self._weights[i])

    def ancestors(self, i: int) -> list[int]:
        """The nodes that node `i` needs, in order, itself included."""
        found, waiting = {i}, [i]
        while waiting:
            for name in self.uses[waiting.pop()]:
                maker = self.makers.get(name)
                if maker is not None and maker not in found:
                    found.add(maker)
                    waiting.append(maker)
        return sorted(found)

    def taken(self, nodes: Iterable[int]) -> list[str]:
        """What these nodes use and do not give."""
        nodes = list(nodes)
        inside = {name for i in nodes for name in self.gives[i]}
        return list(dict.fromkeys(n for i in nodes for n in self.uses[i] if n not in inside))

    def cut(self, nodes: Iterable[int], outputs: Iterable[str], values: HostValues) -> ModelProto:
        """The model of these nodes (in order), for inputs of the types that their values have."""
        nodes = list(nodes)
        weights = dict.fromkeys(n for i in nodes for n in self._weights[i])
        types = {n: type_of(values[n]) for n in self.taken(nodes)}
        found = [_whole_node(self.nodes[i], self._reader.read) for i in nodes]
        return self._assemble(found, types, outputs, [self._weight(n) for n in weights])

    def output_bytes(self, nodes: Sequence[int], values: HostValues) -> list[int | None]:
        """How much memory the results of each of these nodes will take; None if that is not known beforehand."""
        weights = dict.fromkeys(n for i in nodes for n in self._weights[i])
        small = {n for n in weights if _tensor_bytes(self._stored[n]) <= _SMALL}
        types = {n: _type_of_weight(self._stored[n]) for n in weights if n not in small}
        known = [self._weight(n) for n in weights if n in small]
        for name in self.taken(nodes):
            value = values[name]
            if isinstance(value, np.ndarray) and value.nbytes <= _SMALL and value.dtype.kind in "iu":
                known.append(numpy_helper.from_array(value, name))
            else:
                types[name] = type_of(value)
        names = [name for i in nodes for name in self.gives[i]]
        model = self._assemble([self.nodes[i] for i in nodes], types, names, known)
        try:
            inferred = shape_inference.infer_shapes(model, data_prop=True)
        except Exception:  # of its own class, and others: whatever it is, nothing is known
            return [None] * len(nodes)
        sizes = {v.name: _type_bytes(v.type) for v in inferred.graph.output}
        out: list[int | None] = []
        for i in nodes:
            parts = [sizes.get(name) for name in self.gives[i]]
            out.append(None if None in parts else sum(p for p in parts if p is not None))
        return out

    def _assemble(
        self,
        nodes: Sequence[NodeProto],
        inputs: Mapping[str, TypeProto],
        outputs: Iterable[str],
        weights: Sequence[TensorProto],
    ) -> ModelProto:
        graph = GraphProto(
            name=self._model.graph.name or "part",
            node=nodes,
            input=[ValueInfoProto(name=n, type=t) for n, t in inputs.items()],
            output=[ValueInfoProto(name=n) for n in outputs],
            initializer=weights,
        )
        return ModelProto(
            # Initializers that are no inputs came with version 4.
            ir_version=max(4, self._model.ir_version),
            opset_import=self._model.opset_import,
            functions=self._model.functions,
            producer_name="tilewright",
            graph=graph,
        )

    def _weight(self, name: str) -> TensorProto:
        return numpy_helper.from_array(self._reader.read(self._stored[name]), name)


def _whole_node(node: NodeProto, read: Callable[[TensorProto], Any]) -> NodeProto:
    """The node, with tensors that were left in files."""
    out = NodeProto()
    out.CopyFrom(node)
    _fill(out, read)
    return out


def _fill(node: NodeProto, read: Callable[[TensorProto], Any]) -> None:
    for a in node.attribute:
        if a.type == AttributeProto.TENSOR:
            a.t.CopyFrom(numpy_helper.from_array(read(a.t), a.t.name))
    for body in subgraphs(node).values():
        for t in body.initializer:
            t.CopyFrom(numpy_helper.from_array(read(t), t.name))
        for inner in body.node:
            _fill(inner, read)


def _type_of_weight(t: TensorProto) -> TypeProto:
    return helper.make_tensor_type_proto(t.data_type, list(t.dims))


def _tensor_bytes(t: TensorProto) -> int:
    return _type_bytes(_type_of_weight(t)) or 0


def _type_bytes(kind: TypeProto) -> int | None:
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    if not all(d.HasField("dim_value") and d.dim_value >= 0 for d in dims) or not kind.tensor_type.elem_type:
        return None
    dtype = helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
    return prod(d.dim_value for d in dims) * dtype.itemsize


def write_case(folder: Path, model: ModelProto, inputs: HostValues, outputs: HostValues) -> None:
    """`model.onnx` and `test_data_set_0` with inputs and expected outputs, as ONNX lays out its test cases."""
    data = folder / "test_data_set_0"
    try:
        data.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        for kind, values in (("input", inputs), ("output", outputs)):
            for i, (name, value) in enumerate(values.items()):
                (data / f"{kind}_{i}.pb").write_bytes(_message(name, value).SerializeToString())
    except OSError as e:
        raise UserError(f"cannot write to {folder}: {e.strerror}") from e


def _message(name: str, value: HostValue) -> TensorProto | SequenceProto | MapProto | OptionalProto:
    match value:
        case None:
            return numpy_helper.from_optional(None, name)
        case list():
            return numpy_helper.from_list(value, name)
        case dict():
            return numpy_helper.from_dict(value, name)
        case _:
            return numpy_helper.from_array(value, name)

"""Reading a model whole, with its weights in memory and all of its constants as initializers."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from tilewright.frontend.onnx.file import TensorReader, read_model
from tilewright.frontend.onnx.names import free_names
from tilewright.support.errors import UserError

_MOST_BYTES = 2**31 - 1  # of a protobuf message
_LEAST_OPSET = 10  # the first that has QuantizeLinear


def read_whole(path: Path) -> ModelProto:
    """UserError if the model cannot be read, or is one that cannot be quantised."""
    parsed, reader = read_model(path)
    try:
        opset = opset_of(parsed)
        if opset < _LEAST_OPSET:
            raise UserError(
                f"the model has operators of opset {opset}, and QuantizeLinear came with {_LEAST_OPSET}",
                where=str(path),
                hint="convert it first: onnx.version_converter.convert_version(model, 17)",
            )
        made, left = ModelProto(), _MOST_BYTES - parsed.ByteSize()
        made.CopyFrom(parsed)
        for node in parsed.graph.node:
            if node.op_type == "Constant" and [a.name for a in node.attribute] == ["value"]:
                stored = made.graph.initializer.add()
                stored.CopyFrom(node.attribute[0].t)
                stored.name = node.output[0]
                made.graph.node.remove(node)
        _name_nodes(made)
        for tensor in made.graph.initializer:
            name, left = tensor.name, left - _read_into(tensor, reader)
            if left < 0:
                raise UserError(
                    f"the model has more than {_MOST_BYTES} bytes of weights",
                    where=f"{path}, at {name}",
                    hint="for language models there is `tilewright generate`",
                )
        return made
    finally:
        reader.close()


def _name_nodes(model: ModelProto) -> None:
    """Each node gets a name of its own, if it has none."""
    known: set[str] = set()
    for at, node in enumerate(model.graph.node):
        if not node.name or node.name in known:
            node.name = f"{node.op_type}_{at}"
            while node.name in known:
                node.name += "_"
        known.add(node.name)


def _read_into(tensor: TensorProto, reader: TensorReader) -> int:
    """Give the tensor its data, if that was left in a file; the bytes of it."""
    array, name = reader.read(tensor), tensor.name
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    return int(array.nbytes)


def opset_of(model: ModelProto) -> int:
    """The version of ONNX's own operators that the model uses; 1 if it says nothing."""
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def names_read(node: NodeProto) -> set[str]:
    """The names that a node reads, those inside of its branches included."""
    return {*node.input, *free_names(node)}


def refill(field: Any, values: Iterable[Any]) -> None:
    """Give a repeated field of a protobuf these values instead of its own."""
    kept = list(values)
    del field[:]
    field.extend(kept)

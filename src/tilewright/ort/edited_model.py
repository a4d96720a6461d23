"""Models with other initializers than their files have: values that a caller gives, for initializers or for inputs, and
inputs in place of initializers.

The model has to be whole: one whose other weights are in further files, which are found by the place of the first,
cannot be changed in memory.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, numpy_helper

from tilewright.support.arrays import Array
from tilewright.support.errors import UserError


def edited_model(
    model: str | os.PathLike[str] | bytes, values: Mapping[str, Array], opened: Collection[str]
) -> bytes:
    """The model with these values of initializers or inputs, and with these initializers as inputs."""
    data = model if isinstance(model, bytes) else Path(model).read_bytes()
    try:
        proto = ModelProto.FromString(data)
    except DecodeError as e:
        raise UserError(f"the model cannot be parsed: {e}") from e
    graph = proto.graph
    kept: list[TensorProto] = [t for t in graph.initializer if t.name not in values and t.name not in opened]
    if any(t.data_location == TensorProto.EXTERNAL for t in kept):
        raise UserError("initializers are replaced, and others of the model are in further files")
    known = {t.name for t in graph.initializer} | {i.name for i in graph.input}
    missing = sorted((values.keys() | set(opened)) - known)
    if missing:
        raise UserError(f"the model has no initializer {missing[0]!r}")
    given: list[Any] = [numpy_helper.from_array(array, name) for name, array in values.items()]
    inputs = [i for i in graph.input if i.name not in values]
    del graph.input[:]
    graph.input.extend(inputs)
    del graph.initializer[:]
    graph.initializer.extend([*kept, *given])
    return proto.SerializeToString()

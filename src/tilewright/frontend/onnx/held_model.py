"""A model in memory whose large weights are arrays beside its protobuf.

Protobuf holds no more than 2 GB, and copies what is put into it. So a tensor of the model may have a token in place of
its data, and `weights` says which array that is; the array is not copied when the model is read. The same token means
the same weight in every process: together with the digests of the arrays it makes the digest of the model.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
from onnx import ModelProto

from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

Model: TypeAlias = "str | Path | bytes | ModelProto | HeldModel"  # what can be compiled

_MOST_BYTES = 2**31 - 1  # of a protobuf message


@dataclass(frozen=True, eq=False)
class HeldModel:
    """`weights` has contiguous arrays of the type and shape that the model declares, by token."""

    proto: ModelProto
    weights: Mapping[bytes, Array]

    @cached_property
    def digest(self) -> str:
        """Of the model and its weights."""
        h = hashlib.sha256(self.proto.SerializeToString(deterministic=True))
        for token, array in self.weights.items():
            h.update(token)
            h.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return h.hexdigest()

    def whole(self) -> ModelProto:
        """The model with its weights in it. UserError if that is more than protobuf can hold."""
        size = sum(a.nbytes for a in self.weights.values()) + self.proto.ByteSize()
        if size > _MOST_BYTES:
            raise UserError(
                f"the model has {size} bytes with its weights, and one protobuf holds {_MOST_BYTES}",
                hint="compile or load it as it is, without making a ModelProto of it",
            )
        made = ModelProto()
        made.CopyFrom(self.proto)
        for tensor in made.graph.initializer:
            array = self.weights.get(tensor.raw_data)
            if array is not None:
                tensor.raw_data = np.ascontiguousarray(array).tobytes()
        return made


def weight_token(number: int) -> bytes:
    """What stands in place of the data of a weight."""
    return f"weight {number} beside the model".encode()

"""One tensor in a file of its own (`.pb`), as in the test data of ONNX models."""

from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import TensorProto

from tilewright.frontend.onnx.file import LIMITS, TensorReader
from tilewright.frontend.onnx.weights import StoredWeights
from tilewright.support.errors import UserError


def read_tensor_file(path: str) -> NDArray[Any]:
    try:
        tensor = TensorProto.FromString(Path(path).read_bytes())
    except (OSError, DecodeError) as e:
        raise UserError(f"cannot read a tensor from {path}: {e}") from e
    try:
        return TensorReader(None, LIMITS, StoredWeights()).read(tensor)
    except UserError as e:
        raise UserError(e.message, where=path, hint=e.hint) from e

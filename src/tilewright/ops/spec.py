"""Nodes as plain data: what composites are made of, and the bodies of control flow in samples.

Frontends write them in their own format (`frontend/onnx/write.py`). An attribute is a number, a text, a sequence of
these, an array, the type of a tensor, or a `BodySpec`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir.dtype import DType


def _no_types() -> Mapping[str, "OpenType"]:
    return {}


def _no_sizes() -> Mapping[str, tuple[int, ...]]:
    return {}


@dataclass(frozen=True, slots=True)
class OpenType:
    """The type of a tensor whose extents may be unknown (None)."""

    dtype: DType
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """An operator, with its domain before the last dot if that is not ONNX's own, over named values ("": left out)."""

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]

    @property
    def domain(self) -> str:
        return self.op_type.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class BodySpec:
    name: str
    nodes: tuple[NodeSpec, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, OpenType] = field(
        default_factory=_no_types
    )  # of inputs, where they are to be written
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=_no_sizes)
    """Values besides the inputs: numbers, some of which are sizes of open dimensions."""

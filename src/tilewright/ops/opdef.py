"""What an op is: declared once, and everything else is derived from the declaration.

An op is a frozen dataclass whose fields are its attributes. It says how it is spelled in ONNX, what types it yields (`infer`), what it
computes (`compute`, as tensor expressions on a FuncBuilder), what numpy says (`reference`, the meaning the tests hold it to), and which
cases to try (`samples`). Importer, constant folding, documentation row and numerics tests all come from here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class TensorType:
    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(map(str, self.shape))}]"


@unique
class Kind(Enum):
    """How an op may be grouped with others."""

    ELEMENTWISE = "elementwise"  # output element depends on one element of each (broadcast) input
    MOVEMENT = "movement"  # each output element is one input element, or a constant
    REDUCTION = "reduction"  # softmax, norms, pools, sums
    CONTRACTION = "contraction"  # matmul, convolution


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """An ONNX node as an op's `from_onnx` sees it. Absent optional inputs have type None."""

    op_type: str
    opset: int
    attrs: Mapping[str, Any]  # int, float, str, list of those, or ndarray
    inputs: tuple[TensorType | None, ...]
    constant: Callable[
        [int], NDArray[np.generic] | None
    ]  # the value of input i, if it is known at compile time
    outputs: int


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A case of the numerics tests."""

    op: "Op"
    inputs: tuple[NDArray[np.generic], ...]


class Op(ABC):
    """Subclasses are frozen slotted dataclasses."""

    __slots__ = ()
    onnx: ClassVar[tuple[str, ...]] = ()
    kind: ClassVar[Kind]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> "tuple[Self, tuple[int, ...]]":
        """The op and which inputs of the ONNX node it takes; the rest have become attributes.

        Raises UserError, without the node's name (the importer adds it), for what is not supported.
        """
        return cls(), tuple(i for i, t in enumerate(node.inputs) if t is not None)

    @abstractmethod
    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """The types of the outputs; UserError for inputs that do not fit."""

    @abstractmethod
    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        """Add blocks to `b`. The last block of each output is called `name` (`name_1`, … for further outputs), earlier
        ones `name_<what>`."""

    @abstractmethod
    def reference(self, inputs: Sequence[NDArray[np.generic]]) -> tuple[NDArray[np.generic], ...]:
        """The meaning, in numpy. Float results may be computed in float64 and rounded at the end."""

    @classmethod
    @abstractmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        """Small cases that cover attributes, broadcasting, edge shapes and special values."""

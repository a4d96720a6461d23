"""A value of a graph: a tensor with a name and a type."""

from dataclasses import dataclass
from math import prod

from tilewright.ops.opdef import TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor: an input, a constant, or an output of a node."""

    name: str
    type: TensorType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.type.shape)

    @property
    def bytes(self) -> int:
        return self.size * self.type.dtype.bytes

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"

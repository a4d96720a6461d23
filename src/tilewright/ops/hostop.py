"""Ops that run on the host, in Python, between native programs.

They are the ones whose results have a shape that depends on data (NonZero), or are no tensors that native code knows
(sequences, optionals, strings, numbers of 2 and 4 bits), and control flow. A graph never holds them: what comes before
one is compiled, it runs, and what comes after is compiled for the types it gave. An op may have both forms: the host's
is taken for types that the native one does not have.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import numpy as np

from tilewright.ops.opdef import IndexInput, OnnxNode
from tilewright.support.arrays import Array

# A tensor (of strings: dtype object), a sequence, a map, or nothing: an absent input or an empty optional.
HostValue: TypeAlias = "Array | list[Any] | dict[Any, Any] | None"
HostValues: TypeAlias = Mapping[str, HostValue]  # by name


class Subgraph(Protocol):
    """A subgraph, with what it uses of the graph around it already filled in."""

    @property
    def arity(self) -> int:
        """How many inputs it takes."""
        ...

    @property
    def results(self) -> int:
        """How many outputs it gives."""
        ...

    def __call__(self, *inputs: HostValue) -> list[HostValue]: ...

    def none_of(self, output: int, *inputs: HostValue) -> Array:
        """No results of output number `output`, stacked; they would have been of its type, given such inputs."""
        ...


def _no_bodies() -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, eq=False)
class HostSample:
    """A case of the numerics tests: a one-node model. `attrs` are as in `ops/spec.py`."""

    op_type: str
    inputs: tuple[HostValue, ...]
    attrs: Mapping[str, Any] = field(default_factory=_no_bodies)
    outputs: int = 1
    opset: int = 25
    domain: str = ""
    version: int = 1  # of the domain


class HostOp(ABC):
    """Subclasses are frozen slotted dataclasses whose fields are the attributes."""

    __slots__ = ()
    onnx: ClassVar[tuple[str, ...]] = ()
    why: ClassVar[str]  # "the shape of its result depends on data": said to users
    moves_only: ClassVar[bool] = False  # elements are moved or compared: numpy has nothing to warn of
    is_pure: ClassVar[bool] = True  # equal inputs give equal results, so that constants can be folded

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        """The op of a node. `node.inputs` has types only where native code has the type."""
        return cls()

    @abstractmethod
    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        """The outputs. `bodies` has the node's subgraphs, by attribute. UserError for inputs that make no sense."""

    def indices(self, inputs: Sequence[HostValue]) -> Sequence[IndexInput]:
        """Those of its inputs that are indices, and that `run` brings into range."""
        return ()

    @classmethod
    @abstractmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        """Small cases that cover attributes, edge shapes and special values."""


def tensor(value: HostValue, what: str) -> Array:
    """The value, which has to be a tensor."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{what} is not a tensor")
    return value


def sequence(value: HostValue, what: str) -> list[Any]:
    """The value, which has to be a sequence."""
    if not isinstance(value, list):
        raise TypeError(f"{what} is not a sequence")
    return value

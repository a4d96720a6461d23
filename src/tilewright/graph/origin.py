"""Where nodes come from: the model's own words for them.

Ops of the graph are normalised: an axis is not negative, a shape that was an input is an attribute. Who speaks ONNX (an
engine that runs a part of the model, a file that a part is written to) wants a node as it stood in the model instead.
A `Origin` is one node of the model. If the importer wrote other nodes in its place (a function, a composite), all of
these know it as the `whole` that they are parts of.

A graph has origins for the nodes that were imported; a pass that makes another node does not know of any.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from tilewright.graph.value import Value
from tilewright.support.arrays import Array


class ModelNode(Protocol):
    """A node as the model's format has it: frontends and plugins that speak the format know more of it."""

    @property
    def op_type(self) -> str: ...
    @property
    def domain(self) -> str: ...
    @property
    def input(self) -> Sequence[str]: ...
    @property
    def output(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True, eq=False)
class OpenNumbers:
    """Small integers that are known but for the sizes of open dimensions: a shape, bounds. `values` has them in order,
    for an array of this shape and dtype.
    """

    values: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def at_capacity(self) -> Array:
        """What they are where all dimensions are as large as they may be."""
        return np.array([int(n) for n in self.values], self.dtype).reshape(self.shape)


NodeOperand: TypeAlias = Value | Array | OpenNumbers | None


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """`node` is as in the model but for its names of values, which mean nothing here: `operands` and `results` stand in
    the order of its inputs and outputs, None where one is left out. An array, or open numbers, are an input that became
    an attribute.
    """

    node: ModelNode
    opsets: Mapping[str, int]
    operands: tuple[NodeOperand, ...]
    results: tuple[Value | None, ...]
    whole: "Origin | None" = None

    @property
    def domain(self) -> str:
        return "" if self.node.domain == "ai.onnx" else self.node.domain

    @property
    def opset(self) -> int:
        return self.opsets.get(self.domain, 1)

    @property
    def op_type(self) -> str:
        return origin_name(self.node)


def origin_name(node: ModelNode) -> str:
    """The operator with its domain, unless that is ONNX's own."""
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type

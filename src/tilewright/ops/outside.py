"""Nodes of a graph that native code does not compute: an operator that only a plugin knows, or a region of a plugin.

Their types are what the plugin says, and nobody but the plugin knows their meaning.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.expr import Buffer
from tilewright.ops.opdef import Kind, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class Outside(Op):
    """`name` is the operator with its domain, or the key of a region."""

    name: str
    takes: tuple[TensorType, ...]
    gives: tuple[TensorType, ...]

    kind = Kind.MOVEMENT

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if tuple(inputs) != self.takes:
            raise self.misfit(inputs, f"{self.name} takes {', '.join(map(str, self.takes)) or 'nothing'}")
        return self.gives

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        raise self._unknown()

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        raise self._unknown()

    def _unknown(self) -> UserError:
        return UserError(f"{self.name} is known to no one but a plugin, and none has taken it")

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        return ()

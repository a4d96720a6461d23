"""A causal mask by position: what follows a row is hidden from it.

Models have such masks as constants with an element for each score, or compare positions. As an op of its own a mask
needs no memory, and a schedule can see which scores are hidden.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.expr import Buffer, const, select
from tilewright.ops.core.elementwise import normal
from tilewright.ops.opdef import Kind, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class CausalMask(Op):
    """The input where the last index is at most the one before it plus `offset`, and `low` elsewhere."""

    kind = Kind.ELEMENTWISE
    offset: int
    low: float

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if not x.dtype.is_float or x.rank < 2:
            raise self.misfit(inputs, "only matrices of floats have rows that others follow")
        return (x,)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        low = const(self.low, x.dtype)
        return (b.compute(name, x.shape, lambda *i: select(i[-1] <= i[-2] + self.offset, x[i], low)),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        rows, columns = x.shape[-2:]
        seen = np.tri(rows, columns, self.offset, dtype=np.bool_)
        return (np.where(seen, x, np.asarray(self.low, x.dtype)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield Sample(cls(0, -np.inf), (normal(rng, 2, 4, 4),))
        yield Sample(cls(2, -1e30), (normal(rng, 3, 5).astype(np.float64),))
        yield Sample(cls(-1, 0.0), (normal(rng, 3, 3),))

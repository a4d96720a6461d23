"""Random ONNX models that are valid by construction, over the supported operators.

`random_model(seed)` gives the same model for the same seed. Values stay near 1 (weights are scaled by what they sum
over, products are damped), so that agreement with another engine can be asked for; nothing discontinuous is applied
to floats that were computed. Values are shared freely and several of them are outputs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto

from tests.onnx_cases import Model

_DIMS = (1, 1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17)
_LARGE_DIMS = (1, 2, 8, 16, 24, 31, 33, 40, 64)


@dataclass(frozen=True)
class Value:
    name: str
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Generator:
    """A model in the making. Rules add to it; each says whether it found something to add to."""

    def __init__(self, seed: int) -> None:
        # One in eight is large enough for work to be divided among threads and for panels to be packed.
        large = seed % 8 == 7
        self.dims = _LARGE_DIMS if large else _DIMS
        self.max_size = 100_000 if large else 6000  # elements of a value
        # One in eight has doubles; where onnxruntime has no kernel for them, there is nothing to compare with.
        self.dtype = np.dtype(np.float64 if seed % 8 == 3 else np.float32)
        self.m = Model(seed)
        self.rng = np.random.default_rng((seed, 1))
        self.values: list[Value] = []
        self.flags: list[Value] = []  # booleans
        self.integers: list[Value] = []
        self._ends: dict[Value, None] = {}  # values nobody reads

    def add_input(self) -> None:
        rank = self.pick((1, 2, 2, 3, 3, 4, 4, 4, 5))
        shape = tuple(self.pick(self.dims) for _ in range(rank))
        while math.prod(shape) > self.max_size // 4:
            shape = tuple(max(1, d // 2) for d in shape)
        self.values.append(Value(self.m.input(*shape, dtype=self.dtype), shape))

    def finish(self) -> ModelProto:
        """What nobody reads is an output, and sometimes a value that is read too."""
        outputs = list(self._ends)
        computed = [v for v in (*self.values, *self.integers, *self.flags) if not v.name.startswith("input")]
        if computed and self.chance(0.4):
            outputs.append(self.pick(computed))
        names = list(dict.fromkeys(v.name for v in outputs))
        return self.m.finish(*(names[i] for i in self.rng.permutation(len(names))))

    # ----------------------------------------------------------------------------------------------------- choices

    def pick(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def value(self, *, min_rank: int = 0, max_rank: int = 6) -> Value | None:
        """One of the last few more often, so that models grow deep."""
        found = [v for v in self.values if min_rank <= v.rank <= max_rank]
        if not found:
            return None
        return self.pick(found[-3:] if self.chance(0.7) else found)

    def axis(self, v: Value) -> int:
        return int(self.rng.integers(v.rank))

    def spelled(self, axis: int, rank: int) -> int:
        """The axis, sometimes counted from the end."""
        return axis - rank if self.chance(0.3) else axis

    def broadcastable(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to `shape`."""
        out = [1 if self.chance(0.3) else d for d in shape]
        return tuple(out[int(self.rng.integers(len(out) + 1)) :]) if self.chance(0.5) else tuple(out)

    # ---------------------------------------------------------------------------------------------------- additions

    def floats(self, *shape: int) -> str:
        return self.m.constant(self.rng.standard_normal(shape).astype(self.dtype))

    def scaled(self, fan_in: int, *shape: int) -> str:
        """A constant; sums of `fan_in` products with it keep their scale."""
        return self.m.constant((self.rng.standard_normal(shape) / math.sqrt(fan_in)).astype(self.dtype))

    def number(self, value: float) -> str:
        return self.m.constant(value, self.dtype)

    def add(
        self, shape: Sequence[int], op: str, inputs: Sequence["Value | str"], to: str = "values", **attrs: Any
    ) -> Value:
        names = [i.name if isinstance(i, Value) else i for i in inputs]
        v = Value(self.m.op(op, *names, **attrs), tuple(int(d) for d in shape))
        self.keep(v, inputs, to)
        return v

    def keep(self, v: Value, inputs: Sequence["Value | str"], to: str = "values") -> None:
        for i in inputs:
            if isinstance(i, Value):
                self._ends.pop(i, None)
        self._ends[v] = None
        getattr(self, to).append(v)

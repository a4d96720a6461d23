"""An input as a model declares it, before it is known which program runs it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Extents, or names of open dimensions; no shape if even the rank is open. What is no tensor has no dtype."""

    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int | str, ...] | None
    kind: str

    def __str__(self) -> str:
        return self.kind if self.dtype is None else f"{self.dtype}{dims_text(self.shape or ['…'])}"


def dim_name(spec: InputSpec, axis: int) -> str:
    """The model's name for the dimension; one without a name is called after the input."""
    name = (spec.shape or ())[axis]
    return f"{spec.name}.{axis}" if name == "?" else str(name)


def dims_text(dims: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, dims))}]"

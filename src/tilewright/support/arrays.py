"""Types of arrays, and of shapes by name."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]  # what is computed with, of whatever type
OpaqueArray: TypeAlias = NDArray[np.generic]  # what is handed on, and not looked into
FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]  # of a model's inputs

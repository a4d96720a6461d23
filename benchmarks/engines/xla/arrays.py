"""What is known while a function is traced: arrays of numpy, and numbers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

jnp: Any = import_module("jax.numpy")

Array = NDArray[Any]  # of numpy or of JAX


def library(*arrays: Any) -> Any:
    """numpy while all of them are known, so that shapes stay numbers; otherwise jax.numpy."""
    return np if all(isinstance(a, (np.ndarray, np.generic, type(None))) for a in arrays) else jnp


def numbers(value: Any) -> list[int]:
    """Of a shape, of axes."""
    if library(value) is not np and not isinstance(value, (list, tuple)):
        raise TypeError("a shape or an axis depends on the values of the inputs")
    return [int(v) for v in np.asarray(value, np.int64).reshape(-1)]

"""What an engine is asked to do: a model, how many threads, and where arrays are."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

Progress = Callable[[str, int, int], None]  # stage, how much of it is done, of how much


@dataclass(frozen=True)
class EngineJob:
    """`feeds` has the inputs in the model's order as (name, type), and their arrays are files of `shared`; None if the
    engine makes them up. Results go to `folder`. `cores` are those that compilers may use.
    """

    model: str
    threads: int
    folder: str
    shared: str
    packages: list[str] = field(default_factory=list)
    feeds: list[tuple[str, str]] | None = None
    outputs: list[str] = field(default_factory=list)
    cores: list[int] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def feed(self, number: int) -> str:
        return os.path.join(self.shared, f"input_{number}.npy")

    def result(self, number: int) -> str:
        return os.path.join(self.folder, f"output_{number}.npy")

    def read_feeds(self) -> dict[str, NDArray[Any]]:
        return {name: read_raw_array(self.feed(n), dtype) for n, (name, dtype) in enumerate(self.feeds or ())}

    def write_feeds(self, feeds: dict[str, NDArray[Any]]) -> list[tuple[str, str]]:
        for n, value in enumerate(feeds.values()):
            np.save(self.feed(n), value, allow_pickle=False)
        return [(name, value.dtype.name) for name, value in feeds.items()]


def read_raw_array(path: str, dtype: str) -> NDArray[Any]:
    """Types that numpy has not by itself, such as bfloat16, come as bytes."""
    array: NDArray[Any] = np.load(path, allow_pickle=False)
    if array.dtype.kind != "V":
        return array
    return array.view(getattr(import_module("ml_dtypes"), dtype))

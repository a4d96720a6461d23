"""What engines that generate text have in common, for `benchmarks.decode`.

A run is a prompt from an empty text. The command `text` (`tilewright.cli.guest`) runs a prompt and `count` tokens after
it, each the likeliest, and answers with the seconds of the prompt, those of each token, and the memory in use, before
the model was loaded and now.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.engines.open_calls import resident_mb

if TYPE_CHECKING:
    from collections.abc import Sequence


class TextEngine(ABC):
    version = ""

    def __init__(self) -> None:
        self._before_mb = resident_mb()

    @abstractmethod
    def begin(self) -> None:
        """An empty text."""

    @abstractmethod
    def append(self, tokens: Sequence[int]) -> NDArray[Any]:
        """The logits of what follows the last of these tokens: a vector, valid until the next call."""

    def bind(self, feeds: dict[str, NDArray[Any]]) -> None:
        self._prompt: list[int] = feeds["input_ids"].ravel().tolist()

    def run(self) -> None:
        self.begin()
        self._logits = self.append(self._prompt)

    def results(self) -> list[NDArray[Any]]:
        return [np.array(self._logits)]

    def answer(self, do: str, command: dict[str, Any]) -> dict[str, Any]:
        assert do == "text", do
        start = time.perf_counter()
        self.run()
        prompt, tokens = time.perf_counter() - start, list[float]()
        logits = self._logits
        for _ in range(command["count"]):
            token = int(np.argmax(logits))
            start = time.perf_counter()
            logits = self.append([token])
            tokens.append(time.perf_counter() - start)
        return {
            "prompt": prompt,
            "tokens": tokens,
            "before_mb": self._before_mb,
            "resident_mb": resident_mb(),
        }

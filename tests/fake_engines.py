"""Engines for tests of `tilewright bench`: they compute Relu, well or not. Processes import them that have nothing of
ours.
"""

import os
import sys
import time
from typing import Any

import numpy as np


class Right:
    """Says as its version whether our package was imported around it."""

    version = "with tilewright" if "tilewright" in sys.modules else "alone"

    def __init__(self, job: Any, progress: Any) -> None:
        progress("convert", 1, 1)
        self.job = job

    def bind(self, feeds: dict[str, Any]) -> None:
        (self.x,) = feeds.values()

    def run(self) -> None:
        self.y = np.maximum(self.x, 0)

    def results(self) -> list[Any]:
        return [self.y]


class Slow(Right):
    def run(self) -> None:
        time.sleep(0.005)
        super().run()


class Wrong(Right):
    def results(self) -> list[Any]:
        return [self.y + 1]


class Flat(Right):
    """Leaves out dimensions of one."""

    def results(self) -> list[Any]:
        return [np.squeeze(self.y)]


class Refusing(Right):
    def __init__(self, job: Any, progress: Any) -> None:
        raise ValueError("there is no Relu\nin this engine")


class Dying(Right):
    def __init__(self, job: Any, progress: Any) -> None:
        print("last words", file=sys.stderr, flush=True)
        os.abort()


class Hanging(Right):
    def __init__(self, job: Any, progress: Any) -> None:
        time.sleep(1000)


class Tiring(Right):
    """Dies in its second turn."""

    def __init__(self, job: Any, progress: Any) -> None:
        super().__init__(job, progress)
        self.runs = 0

    def run(self) -> None:
        super().run()
        self.runs += 1
        if self.runs > 8:  # one after loading, and five of the first turn
            os._exit(7)


class Chatty(Right):
    def __init__(self, job: Any, progress: Any) -> None:
        os.write(1, b'{"error": "this is no answer"}\n')
        super().__init__(job, progress)

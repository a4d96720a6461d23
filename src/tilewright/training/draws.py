"""What is drawn at random where programs are generated: sizes as they occur in networks, and some as they do not."""

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from tilewright.training.net import Net

T = TypeVar("T")

ELEMENTS = 1 << 22  # of a tensor, given: larger than most caches that a core has to itself
_CHANNELS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 256, 320, 384, 512, 768, 1024)
_IMAGES = (4, 7, 8, 10, 14, 16, 20, 26, 28, 32, 40, 48, 56, 64, 80, 96, 112)
_WIDTHS = (10, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1000, 1024, 1536, 2048, 3072, 4096)
_ROWS = (1, 1, 2, 4, 8, 16, 32, 49, 64, 100, 128, 196, 197, 256, 384, 512, 1024)


class Draw:
    """What is drawn while a program is written."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def one(self, choices: Sequence[T]) -> T:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def between(self, low: int, high: int) -> int:
        """Evenly over orders of magnitude."""
        return round(math.exp(self.rng.uniform(math.log(low), math.log(high))))

    def channels(self, high: int = 1024) -> int:
        if self.chance(0.25):
            return self.between(3, min(high, 400))
        return self.one([c for c in _CHANNELS if c <= high])

    def image(self, high: int = 112) -> tuple[int, int]:
        """Most are square."""
        h = self.between(5, high) if self.chance(0.25) else self.one([n for n in _IMAGES if n <= high])
        return (h, self.between(5, high)) if self.chance(0.1) else (h, h)

    def width(self, high: int = 4096) -> int:
        if self.chance(0.25):
            return self.between(9, high)
        return self.one([n for n in _WIDTHS if n <= high])

    def rows(self) -> int:
        return self.between(1, 1024) if self.chance(0.25) else self.one(_ROWS)

    def batch(self) -> int:
        return self.one((1, 1, 1, 1, 2, 4, 8))


def new_image(net: Net, draw: Draw) -> str:
    """An input of a program."""
    least = draw.between(1 << 12, ELEMENTS // 4)
    while True:
        batch, c, (h, w) = draw.batch(), draw.channels(), draw.image()
        if least <= batch * c * h * w <= 3 * least:
            return net.input(batch, c, h, w)

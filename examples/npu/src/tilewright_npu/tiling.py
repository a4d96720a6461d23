"""A layer as the machine sees it, and a tiling: the part of it that the machine holds at a time.

A layer is cut into tiles of rows × columns of the output image, blocks of output channels, and chunks of input
channels, whose products accumulate.
"""

import math
from dataclasses import dataclass, replace

from tilewright_npu.machine import Machine

_ALIGNED = 64  # bytes or words: the emulator watches memories in such lines
_FIELD = 0xFFFF  # the largest number in most fields of instructions


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor in DRAM as images of rows of pixels of channels, with strides in elements."""

    at: int
    strides: tuple[int, int, int, int]
    wide: bool


@dataclass(frozen=True, slots=True)
class Numbers:
    """What quantization adds to instructions; how long they take does not depend on it."""

    factor: float = 1.0  # of wide inputs
    zero: int = 0
    residual_factor: float = 1.0
    residual_zero: int = 0
    out_zero: int = 0
    low: int = -128
    high: int = 127
    relu: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """A convolution; a MatMul is one with a window of 1 × 1 over images of one row."""

    images: int
    height: int
    width: int
    channels: int
    rows: int  # of the output
    columns: int
    outputs: int  # its channels
    kernel: tuple[int, int]
    strides: tuple[int, int]
    before: tuple[int, int]  # zeros above and to the left
    x: Place
    residual: Place | None
    results: tuple[Place, ...]
    weights: int = 0  # in DRAM
    table: int = 0
    numbers: Numbers = Numbers()

    @property
    def has_narrow(self) -> bool:
        return any(not p.wide for p in self.results)

    @property
    def weight_bytes(self) -> int:
        return math.prod(self.kernel) * self.channels * self.outputs

    @property
    def shape_only(self) -> "Work":
        """Without addresses and numbers, but that tensors are apart: layers that differ in nothing else take the same
        time.
        """
        return replace(
            self,
            x=replace(self.x, at=0),
            residual=None if self.residual is None else replace(self.residual, at=1),
            results=tuple(replace(p, at=2 + n) for n, p in enumerate(self.results)),
            weights=0,
            table=0,
            numbers=Numbers(),
        )


@dataclass(frozen=True, slots=True)
class Tiling:
    rows: int
    columns: int
    outputs: int
    channels: int
    weights_first: bool  # blocks of output channels are the outer loop: their weights stay, images pass

    def counts(self, work: Work) -> tuple[int, int, int]:
        """How many tiles of the image, blocks of output channels, and chunks of input channels."""
        tiles = work.images * _ceil(work.rows, self.rows) * _ceil(work.columns, self.columns)
        return tiles, _ceil(work.outputs, self.outputs), _ceil(work.channels, self.channels)

    def window(self, work: Work) -> tuple[int, int]:
        """Rows and pixels of the input that a tile of the output needs."""
        return (
            (self.rows - 1) * work.strides[0] + work.kernel[0],
            (self.columns - 1) * work.strides[1] + work.kernel[1],
        )

    def areas(self, work: Work) -> dict[str, tuple[int, int]]:
        """Slots in the scratchpad: how many, and of how many bytes."""
        tiles, blocks, chunks = self.counts(work)
        rows, pixels = self.window(work)
        out = self.rows * self.columns * self.outputs
        steps = min(2, tiles * blocks)
        found = {
            "x": (min(2, tiles * chunks), rows * pixels * self.channels),
            "weights": (min(2, blocks * chunks), math.prod(work.kernel) * self.channels * self.outputs),
            "out": (steps if work.has_narrow else 0, out),
            "residual": (steps if work.residual is not None else 0, out),
        }
        return {name: (n, _ceil(size, _ALIGNED) * _ALIGNED) for name, (n, size) in found.items()}

    def sums(self, work: Work) -> tuple[int, int]:
        """Slots in the accumulators: how many, and of how many words."""
        tiles, blocks, _ = self.counts(work)
        size = _ceil(self.rows * self.columns * self.outputs, _ALIGNED) * _ALIGNED
        return min(2, tiles * blocks), size

    @property
    def entries(self) -> int:
        """Of a slot in the table."""
        return _ceil(self.outputs, _ALIGNED) * _ALIGNED

    def fits(self, work: Work, machine: Machine) -> bool:
        slots, words = self.sums(work)
        if slots * words > machine.accumulators or 2 * self.entries > machine.table:
            return False
        rows, pixels = self.window(work)
        lengths = [
            math.prod(work.kernel) * self.channels,
            work.strides[1] * self.channels,
            self.rows * self.columns,
            pixels,
        ]
        if rows > 1:
            lengths.append(pixels * self.channels * work.strides[0])
        if max(lengths) > _FIELD:
            return False
        return sum(n * size for n, size in self.areas(work).values()) <= machine.scratchpad


def smallest(work: Work, machine: Machine) -> Tiling:
    """If this one does not fit, none does."""
    return Tiling(1, 1, min(machine.side, work.outputs), min(machine.side, work.channels), False)


def _ceil(n: int, by: int) -> int:
    return -(-n // by)

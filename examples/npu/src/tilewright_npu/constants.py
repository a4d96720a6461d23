"""A layer's constants as the machine holds them: made from the model's when a program is loaded.

Weights are int8, with a scale for each output channel and no zero, which the array would have to subtract. Sums have
the scale of the input times that of the channel's weights, and become bytes again by a multiplier of 31 bits and a
shift.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright_npu.emulator import Entry

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Constants:
    """What a layer needs in memory, and from what it is made. A scale of 0 stands for none."""

    weights: str
    form: str
    alpha: float
    biases: tuple[tuple[str, float], ...]
    at: int  # of the weights
    table: int
    block: int
    chunk: int
    x_scale: float
    x_zero: int
    out_scale: float
    residual_scale: float

    def write(self, dram: Array, given: Mapping[str, Array]) -> None:
        """Quantize for the machine."""
        weights = self.alpha * by_channel(given[self.weights], self.form)
        bias = row([(given[n], f) for n, f in self.biases], weights.shape[-1])
        # A channel of next to nothing but a bias: the bias, and a residual, must still fit the sums.
        largest = np.maximum(np.abs(bias), 255 * self.residual_scale)
        weights, scale = quantized(weights, largest / (self.x_scale * 2**28))
        data = packed(weights, self.block, self.chunk)
        dram[self.at : self.at + data.size] = data.view(np.uint8)
        entries = np.ndarray((scale.size,), Entry, dram, self.table)
        sums = self.x_scale * scale  # what 1 is worth in the accumulators
        bias = np.rint(bias / sums)
        # The sum over q - zero is the sum over q, less what zero times the weights sums up to.
        bias -= self.x_zero * weights.sum(axis=(0, 1, 2), dtype=np.int64)
        entries["bias"] = np.clip(bias, -(2**31), 2**31 - 1)
        entries["scale"] = sums
        entries["multiplier"], entries["shift"] = 0, 1
        entries["residual_multiplier"], entries["residual_shift"] = 0, 1
        if self.out_scale:
            entries["multiplier"], entries["shift"] = fixed_point(sums / self.out_scale)
        if self.residual_scale:
            entries["residual_multiplier"], entries["residual_shift"] = fixed_point(
                self.residual_scale / sums
            )


def by_channel(weights: Array, form: str) -> Array:
    """Weights as rows × columns of the window × input channels × output channels."""
    match form:
        case "OIHW":
            return weights.transpose(2, 3, 1, 0)
        case "KN":
            return weights[None, None]
        case _:
            return weights.T[None, None]


def quantized(
    weights: Array, least: NDArray[np.float64] | float = 0.0
) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """Bytes, and the scale of each output channel, which is not below `least`."""
    largest = np.abs(weights).max(axis=(0, 1, 2), initial=0).astype(np.float64)
    scale = np.maximum(np.where(largest > 0, largest / 127, 1.0), least)
    return np.clip(np.rint(weights / scale), -127, 127).astype(np.int8), scale


def packed(weights: NDArray[np.int8], block: int, chunk: int) -> NDArray[np.int8]:
    """In the order in which they are loaded: blocks of output channels, and in them chunks of input channels."""
    _, _, channels, outputs = weights.shape
    parts = [
        weights[:, :, c : c + chunk, o : o + block].reshape(-1)
        for o in range(0, outputs, block)
        for c in range(0, channels, chunk)
    ]
    return np.concatenate(parts)


def fixed_point(real: NDArray[np.float64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Multipliers and shifts that stand for positive numbers: about multiplier / 2^shift."""
    fraction, exponent = np.frexp(real)
    multiplier = np.rint(fraction * 2**31)
    exponent = np.where(multiplier == 2**31, exponent + 1, exponent)
    multiplier = np.where(multiplier == 2**31, 2**30, multiplier)
    shift = 31 - exponent
    is_small = shift > 62  # such a number rounds any sum to 0
    return np.where(is_small, 0, multiplier).astype(np.int32), np.clip(shift, 1, 62).astype(np.int32)


def row(biases: Iterable[tuple[Array, float]], outputs: int) -> NDArray[np.float64]:
    """All that is added to each output channel."""
    total = np.zeros(outputs)
    for array, factor in biases:
        total = total + factor * np.broadcast_to(array.reshape(-1), (outputs,))
    return total

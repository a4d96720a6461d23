"""The time of straight-line blocks, for choosing among algorithms.

Rough, as all that is needed is which algorithm is faster: the direct algorithm, or fewer multiplications between
transforms.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.caches import l2_room
from tilewright.cost.parallel import ranked_seconds, ranked_terms
from tilewright.cost.stream import stream_seconds, stream_term
from tilewright.cost.terms import Amount, Amounts, TermName, added, scaled, scaled_to, summed
from tilewright.support.arrays import FloatArray
from tilewright.target.machine import Machine

# Of the seconds that weights take to come from memory while others are multiplied, what is not hidden. Measured on a
# Zen 4, 512 channels of 7 x 7 pixels and 256 of 14 x 14: nearly all; less if they are asked for before (judged).
_NOT_HIDDEN = 0.9  # as they are
_NOT_HIDDEN_ASKED = 0.4  # if they were asked for while those before them were multiplied
# Of the time that an image takes to be read in order, what its transform waits if it is not asked for. Measured on
# a Zen 4: 4.1 ms against 2.4 ms for 64 channels of 258 x 258 pixels, which take 1 ms to be read.
_WAITING = 1.6


@dataclass(frozen=True, slots=True)
class StraightLine:
    """A block by numbers, per vector of results."""

    operations: int
    loads: int
    stores: int
    times: float  # vectors

    def seconds(self, m: Machine) -> float:
        cycles = self.operations / m.fma_per_cycle + self.loads / m.loads_per_cycle + self.stores
        return cycles * self.times / m.hertz


def waiting_seconds(image_bytes: float, m: Machine) -> float:
    """What transforms wait for an image that is not in the second-level cache and that nobody asks for: tiles are many
    short rows, which no hardware foresees.
    """
    return 0.0 if image_bytes <= l2_room(m) else _WAITING * stream_seconds(image_bytes, image_bytes, m)


@dataclass(frozen=True, slots=True)
class Weights:
    """Transformed filters, which all blocks of tiles read."""

    bytes: float
    is_asked: NDArray[np.bool_]  # for, while those before them are multiplied


def staged_seconds(
    transforms: FloatArray,
    gemm: FloatArray,
    filters: Weights,
    between_bytes: float,
    blocks: int,
    m: Machine,
) -> FloatArray:
    """Transforms and GEMMs of `blocks` blocks of tiles, each of which reads all filters and hands `between_bytes` on
    from stage to stage.
    """
    longer, exposed = _multiplied(gemm, filters, between_bytes, blocks, m)
    multiplied, between = longer + exposed, _between_seconds(between_bytes, blocks, m)
    if blocks == 1:  # every stage is shared by all
        return (transforms + multiplied + between) / m.threads + 3 * m.meeting_seconds
    if m.threads > 1:
        return ranked_seconds(transforms + multiplied + between, blocks, m)
    return transforms + ranked_seconds(multiplied + between, blocks, m)


def staged_terms(
    transforms: Amounts, gemm: Amounts, filters: Weights, between_bytes: float, blocks: int, m: Machine
) -> dict[TermName, Amount]:
    """What these seconds are made of."""
    total = np.asarray(summed(gemm), np.float64)
    longer, exposed = _multiplied(total, filters, between_bytes, blocks, m)
    is_gemm = total >= _weights_seconds(filters, between_bytes, blocks, m)
    weights = "far" if _is_cold(filters, m) else stream_term(filters.bytes + between_bytes, m)
    staged = added(
        scaled_to(gemm, np.where(is_gemm, longer, exposed)),
        {weights: np.where(is_gemm, exposed, longer)},
        {stream_term(between_bytes, m): _between_seconds(between_bytes, blocks, m)},
    )
    if blocks == 1:
        shared = scaled(added(transforms, staged), 1.0 / m.threads)
        return added(shared, {"team": 3 * m.meeting_seconds})
    if m.threads > 1:
        return ranked_terms(added(transforms, staged), blocks, m)
    return added(transforms, ranked_terms(staged, blocks, m))


def _multiplied(
    gemm: FloatArray, filters: Weights, between_bytes: float, blocks: int, m: Machine
) -> tuple[FloatArray, FloatArray]:
    """Of GEMMs that take so long, and of the weights that come meanwhile: the longer of both, and what is not hidden of
    the other.
    """
    weights = _weights_seconds(filters, between_bytes, blocks, m)
    exposed = np.where(filters.is_asked, _NOT_HIDDEN_ASKED, _NOT_HIDDEN) * _is_cold(filters, m)
    return np.maximum(gemm, weights), exposed * np.minimum(gemm, weights)


def _weights_seconds(filters: Weights, between_bytes: float, blocks: int, m: Machine) -> float:
    return stream_seconds(filters.bytes * blocks, filters.bytes + between_bytes, m)


def _is_cold(filters: Weights, m: Machine) -> bool:
    """Filters that are not small have left the caches since the last run: other layers have theirs."""
    return filters.bytes > l2_room(m)


def _between_seconds(between_bytes: float, blocks: int, m: Machine) -> float:
    """Written and read by stages that walk it in different orders: lines come and go twice."""
    return stream_seconds(4 * between_bytes * blocks, between_bytes, m)

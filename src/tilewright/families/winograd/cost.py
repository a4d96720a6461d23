"""The time of straight-line blocks, for choosing among algorithms.

Rough, as all that is needed is which algorithm is faster: the direct algorithm, or fewer multiplications between
transforms.
"""

from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.caches import SET_BYTES, l2_room, l3_room
from tilewright.cost.parallel import ranked_seconds
from tilewright.cost.stream import stream_seconds
from tilewright.support.arrays import FloatArray
from tilewright.target.machine import Machine

_NOT_HIDDEN = 0.4  # of the time that weights take to come from memory while others are multiplied; swept
_ASKED_NOT_HIDDEN = 0.2  # likewise, if they are asked for ahead
_IMAGE = 2.0  # of the time that the image takes to be read in order, what a transform waits for
_ASKED_IMAGE = 0.5  # likewise, if it is asked for ahead
_CROWDED_LINE = 12.0  # cycles for a line that finds no place in its set of the first-level cache


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


def image_seconds(image_bytes: float, m: Machine, *, is_asked: NDArray[np.bool_]) -> FloatArray:
    """What a transform waits for an image that is not in the second-level cache: it reads many lines of few bytes each,
    whose order no hardware foresees, unless they are asked for.
    """
    if image_bytes <= l2_room(m):
        return np.zeros(len(is_asked))
    return stream_seconds(image_bytes, image_bytes, m) * np.where(is_asked, _ASKED_IMAGE, _IMAGE)


def crowded_lines(elements: int, apart: int, m: Machine) -> float:
    """Seconds to read or write a vector of each of the `elements` of a transformed tile, beyond what they take in the
    first-level cache, if they are so many bytes `apart`: nothing, unless more of them share a set than it has places.
    """
    sets = SET_BYTES // gcd(apart, SET_BYTES)
    places = m.l1_bytes // SET_BYTES
    return elements * _CROWDED_LINE / m.hertz if elements > sets * places else 0.0


def staged_seconds(
    transforms: FloatArray,
    gemm: FloatArray,
    weight_bytes: float,
    between_bytes: float,
    blocks: int,
    m: Machine,
    *,
    is_asked: NDArray[np.bool_],
) -> FloatArray:
    """Transforms and GEMMs of `blocks` blocks of tiles, each of which reads all weights, which may be asked for ahead,
    and hands `between_bytes` on from stage to stage.
    """
    weights = stream_seconds(weight_bytes * blocks, weight_bytes + between_bytes, m)
    # Written and read by stages that walk it in different orders: lines come and go twice.
    between = stream_seconds(4 * between_bytes * blocks, between_bytes, m)
    exposed = np.where(is_asked, _ASKED_NOT_HIDDEN, _NOT_HIDDEN) if weight_bytes > l3_room(m) else 0.0
    multiplied = np.maximum(gemm, weights) + exposed * np.minimum(gemm, weights)
    if blocks == 1:  # every stage is shared by all
        return (transforms + multiplied + between) / m.threads + 3 * m.meeting_seconds
    if m.threads > 1:
        return ranked_seconds(transforms + multiplied + between, blocks, m)
    return transforms + ranked_seconds(multiplied + between, blocks, m)

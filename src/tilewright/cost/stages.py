"""The time of straight-line blocks, and of what streams from far caches, for choosing among algorithms.

Rough, as all that is needed is which algorithm is faster: a sum of products, or fewer products between transforms.
"""

from dataclasses import dataclass

from tilewright.cost.machine import Machine

_CYCLES_PER_MOVE = 0.75  # of a vector between registers and a near cache; some values are spilled in between
# Bytes a second that one core reads in a stream.
_FROM_L2 = 120e9
_FROM_L3 = 45e9
_FROM_MEMORY = 17e9
_NOT_HIDDEN = 0.4  # of the time that weights take to come from memory while others are multiplied
_STAGE_SECONDS = 1e-6  # to meet between stages, and to start the next


@dataclass(frozen=True, slots=True)
class StraightLine:
    """A block by numbers, per vector of results."""

    operations: int
    loads: int
    stores: int
    times: float  # vectors

    def seconds(self, m: Machine) -> float:
        cycles = self.operations / m.fma_per_cycle + (self.loads + self.stores) * _CYCLES_PER_MOVE
        return cycles * self.times / m.hertz


def stream_seconds(nbytes: float, footprint: float, m: Machine) -> float:
    """To read `nbytes` again after `footprint` bytes of other data."""
    if footprint <= m.l2_bytes:
        return nbytes / _FROM_L2
    return nbytes / (_FROM_L3 if footprint <= m.l3_bytes else _FROM_MEMORY)


def staged_seconds(
    transforms: float, product: float, weight_bytes: float, between_bytes: float, blocks: int, m: Machine
) -> float:
    """Transforms and products of so many blocks of tiles, each of which reads all weights and hands `between_bytes` on
    from stage to stage.
    """
    weights = stream_seconds(weight_bytes * blocks, weight_bytes + between_bytes, m)
    # Written and read by stages that walk it in different orders: lines come and go twice.
    between = stream_seconds(4 * between_bytes * blocks, between_bytes, m)
    few = 1 + 0.01 * max(0.0, 16 / blocks - 1) if blocks > 1 else 1.0  # they cannot be balanced
    far = weight_bytes > m.l3_bytes
    multiplied = max(product, weights) + _NOT_HIDDEN * min(product, weights) * far
    return transforms + (multiplied + between) * few + (3 * _STAGE_SECONDS if blocks == 1 else 0.0)

"""The time it takes that one layout meets another, beyond that of whole vectors in order.

A kernel has the innermost dimension of what it stores in vector lanes. What it reads lies in lanes too, or is
transposed in registers on the way, or is put together element by element. Most blocks that only move data are not there
at all where layouts agree: others store in place, or leave room for a border.
"""

from enum import Enum

import numpy as np

from tilewright.cost.caches import LINE_BYTES, l1_room, per_byte
from tilewright.target.machine import Machine


class LaneAccess(Enum):
    """Where neighbouring lanes find their elements. The value: cycles an element costs more than in a whole vector, as
    kernels of `benchmarks.predicted` that do so take.
    """

    PLAIN = 0.0  # side by side, or all in one place
    TRANSPOSED = 0.9  # side by side along another loop: squares of elements are transposed in registers
    INTERLEAVED = 0.5  # near each other: one of every few
    SCATTERED = 2.5  # anywhere; or rows are shorter than a vector, each with edges of its own

    __hash__ = object.__hash__


# Cycles to copy an element in order, from the nearest cache and back. Counted: a vector of 8 takes a store and a load,
# and the step of a loop. Swept (docs/results/constants.md).
COPIED = 0.25
_UNKNOWN = 1.0  # cycles of a step of a reduction that no closed form is for; counted: at least one operation
# Of the time of a GEMM at most, for rows whose next elements along the reduction are in other lines. Swept
# (docs/results/constants.md).
_LOOSE = 0.2


def access_seconds(access: LaneAccess, elements: float, m: Machine) -> float:
    return access.value * elements / m.hertz


def copy_cycles(elements: float, bytes_each: int, m: Machine, cycles_each: float = COPIED) -> float:
    """A copy that is read again afterwards; in order, unless elements take `cycles_each`."""
    moved = 2.0 * elements * bytes_each
    return elements * cycles_each + moved * float(per_byte(m, np.array([moved]))[0])


def unknown_seconds(steps: float, lanes: int, m: Machine) -> float:
    """A reduction that no closed form is for, in vectors of `lanes` lanes."""
    return steps * _UNKNOWN / lanes / m.hertz


def loose_share(lines: int, m: Machine) -> float:
    """By how much a GEMM takes longer whose rows go through this many `lines`, each of which has little of a row: the
    more of the first-level cache they fill, the more often they have left it.
    """
    return _LOOSE * min(lines * LINE_BYTES / l1_room(m), 1.0) ** 2

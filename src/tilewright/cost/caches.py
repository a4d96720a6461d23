"""What finds room in a cache, and what a byte costs that does not come from the nearest.

Caches count as a little smaller than they are, since other data passes through them too.
"""

import numpy as np

from tilewright.support.arrays import FloatArray
from tilewright.target.machine import Machine

# Given: by every x86-64 and most aarch64.
LINE_BYTES = 64  # bytes of a line
SET_BYTES = 4096  # bytes: lines this far apart fall into one of the 64 sets of a first-level cache
# Bytes between rows up to which the prefetcher follows: where GEMMs on operands in place become slower. Swept
# (docs/results/constants.md).
PREFETCHED_BYTES = 512

# Of its size, what a kernel finds of a cache: where the times of GEMMs and passes of growing size bend. Swept
# (docs/results/constants.md).
_OF_L1 = 0.75  # the rest is for what passes by
_OF_L2 = 0.8  # likewise
_OF_L3 = 0.5  # shared with neighbours that cannot be seen
# Bytes: results that are worth a place in it, at most, since more belongs to the neighbours of a virtual machine, whose
# last-level cache may be that of fifty cores. Not swept: measured on an Ice Lake that saw 48 MiB. Past the caches, a
# norm of 8 MiB took 0.54 to 0.64 of the time, and softmax of 12 MiB 0.79; a product of 5.4 MiB took 1.6 times as long,
# and a norm of 6.2 MiB as long as before.
_MOST_RESULTS = 7 << 20
_MOST_OF_L3 = 6 << 20  # bytes: what is left of it to operands that are read again between others

# Of the time that a byte takes to be read in order, what a register tile waits for: the rest passes while it computes.
# Swept (docs/results/constants.md).
_EXPOSED_L2 = 0.04432  # of a byte from the second-level cache
_EXPOSED_L3 = 0.0909  # from the third
_EXPOSED_MEMORY = 0.1515  # from memory


def l2_cycles(m: Machine) -> float:
    """Cycles to read a byte in order from the second-level cache."""
    return m.hertz / m.l2_rate


def l3_cycles(m: Machine) -> float:
    return m.hertz / m.l3_rate


def l1_room(m: Machine) -> float:
    """Bytes that a kernel can count on."""
    return _OF_L1 * m.l1_bytes


def l2_room(m: Machine) -> float:
    return _OF_L2 * m.l2_bytes


def l3_room(m: Machine) -> float:
    return min(_OF_L3 * m.l3_bytes, _MOST_OF_L3)


def pass_room(m: Machine) -> float:
    """What the last cache holds for a kernel that passes over its data once."""
    return _OF_L3 * m.l3_bytes


def result_room(m: Machine) -> float:
    """Of results, what it still holds when the next kernel begins."""
    return min(pass_room(m), _MOST_RESULTS)


def from_l2(m: Machine) -> float:
    """Cycles a byte costs a register tile beyond a load that hits the first-level cache."""
    return _EXPOSED_L2 * l2_cycles(m)


def from_l3(m: Machine) -> float:
    return _EXPOSED_L3 * l3_cycles(m)


def from_memory(m: Machine) -> float:
    return _EXPOSED_MEMORY * m.hertz / m.memory_rate


def per_byte(m: Machine, footprint: FloatArray) -> FloatArray:
    """Cycles per byte for data that a register tile reads again after `footprint` bytes of other data."""
    return np.where(
        footprint <= l1_room(m),
        0.0,
        np.where(
            footprint <= l2_room(m),
            from_l2(m),
            np.where(footprint <= l3_room(m), from_l3(m), from_memory(m)),
        ),
    )

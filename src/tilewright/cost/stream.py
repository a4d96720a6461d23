"""What streams: the time to read, or to read and write, a number of bytes in order, from the cache that has them.

Rates are those of the machine, which are those of a loop that does nothing but read, times what kernels of a kind reach
of them.
"""

from typing import NamedTuple

from tilewright.cost.caches import l1_room, l2_room, l3_room, pass_room
from tilewright.cost.terms import TermName
from tilewright.target.machine import Machine


class Reached(NamedTuple):
    """Of what a loop reads that does nothing else, by where it reads from."""

    l2: float
    l3: float
    memory: float


# Operands of GEMMs, which are asked for between multiply-adds. Not swept; how it was measured is not known.
_OPERANDS = Reached(16 / 13, 0.6, 0.68)
# Passes that read and write, of what reads reach: a fifth less, for the stores between. Not swept; how it
# was measured is not known.
_PASSES = Reached(0.8, 0.8, 0.8)
# All of a block, whatever it does and however it is scheduled: below what any of the kinds above reaches. Not swept;
# how it was measured is not known.
_BLOCKS = Reached(0.82, 0.5333, 0.6)
_HALF_OF_L2 = 0.5  # of it, what a block finds that reads several buffers; swept


def stream_seconds(nbytes: float, footprint: float, m: Machine) -> float:
    """To read `nbytes` again after `footprint` bytes of other data."""
    if footprint <= l2_room(m):
        return nbytes / (_OPERANDS.l2 * m.l2_rate)
    rate = _OPERANDS.l3 * m.l3_rate if footprint <= l3_room(m) else _OPERANDS.memory * m.memory_rate
    return nbytes / rate


def stream_term(footprint: float, m: Machine) -> TermName:
    """What these seconds are called."""
    return "near" if footprint <= l3_room(m) else "far"


def pass_seconds(nbytes: float, m: Machine) -> float:
    """To read and write `nbytes` in all, each once, that were in the nearest cache that has room for them."""
    if nbytes <= l1_room(m):
        return 0.0
    if nbytes <= l2_room(m):
        return nbytes / (_PASSES.l2 * m.l2_rate)
    rate = _PASSES.l3 * m.l3_rate if nbytes <= pass_room(m) else _PASSES.memory * m.memory_rate
    return nbytes / rate


def pass_term(nbytes: float, m: Machine) -> TermName:
    """What these seconds are called."""
    return "near" if nbytes <= pass_room(m) else "far"


def moving_seconds(nbytes: float, m: Machine) -> float:
    """Of a block of which nothing is known but how many bytes it reads and writes."""
    if nbytes <= _HALF_OF_L2 * m.l2_bytes:
        return nbytes / (_BLOCKS.l2 * m.l2_rate)
    rate = _BLOCKS.l3 * m.l3_rate if nbytes <= l3_room(m) else _BLOCKS.memory * m.memory_rate
    return nbytes / rate

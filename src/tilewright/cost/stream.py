"""What streams from a far cache, or from memory."""

from tilewright.cost.machine import Machine

# Bytes a second that one core reads in a stream.
_FROM_L2 = 120e9
_FROM_L3 = 45e9
_FROM_MEMORY = 17e9


def stream_seconds(nbytes: float, footprint: float, m: Machine) -> float:
    """To read `nbytes` again after `footprint` bytes of other data."""
    if footprint <= m.l2_bytes:
        return nbytes / _FROM_L2
    return nbytes / (_FROM_L3 if footprint <= m.l3_bytes else _FROM_MEMORY)

"""What it costs that values change hands, between native code and a plugin or between two plugins: an estimate.

Nothing is copied where both sides see a value in the same order and of the same elements. But native code ends there
and begins again, and what one side has just written comes out of caches that the other side fills anew.
"""

from tilewright.graph.external import Region
from tilewright.graph.graph import Value
from tilewright.support.sizes import capacity

_CROSSING_SECONDS = 5e-6  # to leave one side and enter the other
_BYTES_PER_SECOND = 1e10  # of what crosses
_CONVERTED = 3  # times the bytes: read, written, and read again


def crossing_seconds(nbytes: int) -> float:
    """To hand `nbytes` on, once. Open sizes count as the largest that they may be."""
    return _CROSSING_SECONDS + capacity(nbytes) / _BYTES_PER_SECOND


def border_seconds(region: Region) -> float:
    """To enter the region with its inputs, and to leave it with its outputs."""

    def crossing(value: Value) -> int:
        return value.bytes * (1 if region.seen(value) == value.type else _CONVERTED)

    return sum(crossing_seconds(sum(map(crossing, vs))) for vs in (region.graph.inputs, region.graph.outputs))

"""Which open dimensions of a model vary, and the ranges that a program for all their sizes is made for.

A dimension that had one size so far is taken to keep it: what is fixed is quicker. One that was seen to vary gets room
to grow, so that a sequence that becomes longer and longer is compiled for a few times, not for every length.
"""

from collections.abc import Mapping, Sequence

from tilewright.support.arrays import Shapes
from tilewright.support.input_spec import InputSpec, dim_name
from tilewright.support.sizes import Dim

_ROOM = 2  # times the largest size seen: sizes that double need a program each, and no others do
_LEAST_CAPACITY = 64  # elements; below that, memory costs nothing and a second program a lot
_IMAGE_STEP = 32  # pixels: what networks of images that halve them five times can take
_IMAGE_RANK = 4  # batch, channels, height, width
_PIXEL_AXIS = 2  # the first that is neither batch nor channels


class SeenSizes:
    """The sizes of the open dimensions, as far as they were seen."""

    def __init__(self, specs: Sequence[InputSpec]) -> None:
        self._places = [
            (spec.name, axis, dim_name(spec, axis))
            for spec in specs
            for axis, n in enumerate(spec.shape or ())
            if isinstance(n, str)
        ]
        self._pixels = {
            dim_name(spec, axis)
            for spec in specs
            if len(spec.shape or ()) >= _IMAGE_RANK
            for axis, n in enumerate(spec.shape or ())
            if isinstance(n, str) and axis >= _PIXEL_AXIS
        }
        self._seen: dict[str, set[int]] = {}

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        """Of the dimensions in feeds of these shapes, which fit the model."""
        return {name: shapes[given][axis] for given, axis, name in self._places}

    def note(self, sizes: Mapping[str, int]) -> None:
        for name, size in sizes.items():
            seen = self._seen.setdefault(name, set())
            if len(seen) > 2:  # only the ends matter, and whether there is one that is no multiple
                odd = [n for n in seen if n % _IMAGE_STEP][:1]
                seen.intersection_update({min(seen), max(seen), *odd})
            seen.add(size)

    def ranges(self) -> dict[str, Dim]:
        """Of all dimensions: one size for those that never had another."""
        return {name: self._range(name, seen) for name, seen in self._seen.items()}

    def _range(self, name: str, seen: set[int]) -> Dim:
        most = max(seen)
        if len(seen) == 1:
            return Dim(name, most, most)
        room = max(_LEAST_CAPACITY, 1 << (_ROOM * most - 1).bit_length())
        if name in self._pixels and not any(n % _IMAGE_STEP for n in seen):
            return Dim(name, _IMAGE_STEP, room, _IMAGE_STEP)
        return Dim(name, 1, room)

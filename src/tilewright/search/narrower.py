"""Ranges for which a model has programs of their own, beside the one for all sizes.

A program is laid out and decided for its capacity: groups, layouts, algorithms, the pitch of rows. Along rows of a
matrix that costs next to nothing where less is in use (`search/ranges.py` sees to what does). Images are another
matter: Winograd's tiles, borders, and rows that are far apart make a program for 640 x 640 pixels 1.2 times as slow as
it need be at half of each side, and three times at a tenth. So where windows slide along open dimensions, there are
programs for half of each of them, for a quarter and for an eighth.
"""

from collections.abc import Iterable, Mapping

from tilewright.support.artifact import SizeBox
from tilewright.support.sizes import Dim

_MOST = 3  # times that ranges are halved; bound: each is a program to compile


def default_boxes(dims: Mapping[str, Dim], windowed: Iterable[str]) -> tuple[SizeBox, ...]:
    """The narrowest first. `windowed` are the dimensions that windows slide along."""
    halved = [dims[name] for name in sorted(windowed) if dims[name].least < dims[name].most]
    found: list[SizeBox] = []
    last = {d.name: d.most for d in halved}
    for n in range(1, _MOST + 1):
        sizes = {d.name: _at_most(d, d.most >> n) for d in halved}
        if sizes == last:
            break
        found.insert(0, tuple(sizes.items()))
        last = sizes
    return tuple(found)


def narrowed_dims(dims: Mapping[str, Dim], box: SizeBox) -> dict[str, Dim]:
    """The ranges as far as they are within the box."""
    most = dict(box)
    return {n: Dim(n, d.least, min(d.most, most.get(n, d.most)), d.multiple) for n, d in dims.items()}


def _at_most(dim: Dim, size: int) -> int:
    """The largest size of the dimension that is no larger; its least if there is none."""
    least, most = dim.units
    return max(least, min(most, size // dim.multiple)) * dim.multiple

"""Indices that are data, and may be out of range.

Native code brings them into range: a wrong one reads or changes the nearest element, never memory that is not ours.
Who wants to know of them asks for checks (`check_indices=True`, `--check-indices` or `TILEWRIGHT_CHECK_INDICES`). The
graph then computes the least and the greatest of all indices as further outputs, which callers do not see: the runtime
examines them after each run.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.support.errors import UserError

VARIABLE = "TILEWRIGHT_CHECK_INDICES"
_WORDS = {"": False, "0": False, "off": False, "1": True, "on": True}


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """What indices of a node must be: places on an axis of `extents[0]` elements, or along their last axis on several.
    Negative ones count from the back, or are wrong. `dtype` is that of the indices.
    """

    node: str  # for messages
    dtype: str
    extents: tuple[int, ...]
    from_back: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the least indices, and of the greatest."""
        return (len(self.extents),) if len(self.extents) > 1 else ()

    def axes(self, rank: int) -> tuple[int, ...]:
        """Over which indices of this rank are reduced to that shape."""
        return tuple(range(rank - len(self.shape)))

    def examine(self, low: NDArray[np.generic], high: NDArray[np.generic]) -> None:
        """UserError if an index is out of range, of which these are the least and the greatest."""
        for extent, least, most in zip(self.extents, np.ravel(low), np.ravel(high), strict=True):
            first = -extent if self.from_back else 0
            wrong = least if least < first else most if most >= extent else None
            if wrong is not None:
                raise UserError(
                    f"{self.node}: index {int(wrong)} is out of range on an axis of extent {extent}",
                    hint=f"indices have to be from {first} to {extent - 1}",
                )

    def examine_all(self, indices: NDArray[np.generic]) -> None:
        if indices.size:
            axes = self.axes(indices.ndim)
            self.examine(np.min(indices, axis=axes), np.max(indices, axis=axes))


def examine_outputs(checks: Sequence[IndexCheck], outputs: Sequence[NDArray[np.generic]]) -> None:
    """For each check, `outputs` have the least and the greatest index."""
    for n, check in enumerate(checks):
        check.examine(outputs[2 * n], outputs[2 * n + 1])


def are_checked(given: bool | None) -> bool:
    """What the user asks for; None is the default, which the environment may set."""
    if given is not None:
        return given
    text = os.environ.get(VARIABLE, "")
    if text.strip().lower() not in _WORDS:
        raise UserError(f"{VARIABLE} = {text!r} is neither on nor off", hint="write 1 or 0")
    return _WORDS[text.strip().lower()]

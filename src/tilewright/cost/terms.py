"""What costs are made of: seconds by name, of all points of a space, or the same for all of them.

There is one formula for a cost and for its terms: what is added up is written into a ledger as well, if there is one.
What a team makes of one core's time scales all terms, and what it adds is a term of its own. Of two things that happen
at the same time the longer one counts, under its own name; of the other there is only what is not hidden. Where a point
costs what another one does, for doubt or so that families can be compared, all terms are scaled alike.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from tilewright.support.arrays import FloatArray, IntArray

# `arithmetic`: steps of register tiles, instructions of elements. `edges`: starting and storing tiles, starting loops.
# `near`: bytes that come from caches. `far`: bytes that come from memory. `copies`: packing, transforms, conversions.
# `beside`: other blocks of the kernel. `team`: what too few parts, or meetings, add.
TermName: TypeAlias = Literal["arithmetic", "edges", "near", "far", "copies", "beside", "team"]
TERMS: tuple[TermName, ...] = get_args(TermName)
Terms: TypeAlias = Mapping[TermName, FloatArray]  # an entry for each point
Amount: TypeAlias = FloatArray | float
Amounts: TypeAlias = Mapping[TermName, Amount]  # likewise, or what is the same for all points


class Ledger:
    """What was added up so far, by name."""

    def __init__(self) -> None:
        self.terms: dict[TermName, Amount] = {}

    def add(self, name: TermName, more: Amount) -> None:
        self.terms[name] = self.terms[name] + more if name in self.terms else more

    def add_all(self, terms: Amounts, times: float = 1.0) -> None:
        for name, t in terms.items():
            self.add(name, t * times)

    def add_moved(self, more: Amount, is_far: NDArray[np.bool_] | np.bool_) -> None:
        """Of bytes that come from memory where they are far, and otherwise from caches."""
        self.add("near", np.where(is_far, 0.0, more))
        self.add("far", np.where(is_far, more, 0.0))


def summed(terms: Amounts) -> Amount:
    """All together."""
    total: Amount = 0.0
    for t in terms.values():
        total = total + t
    return total


def added(*every: Amounts) -> dict[TermName, Amount]:
    """Name by name."""
    out: dict[TermName, Amount] = {}
    for terms in every:
        for name, t in terms.items():
            out[name] = out[name] + t if name in out else t
    return out


def scaled(terms: Amounts, factor: Amount) -> dict[TermName, Amount]:
    return {name: t * factor for name, t in terms.items()}


def scaled_to(terms: Amounts, seconds: Amount) -> dict[TermName, Amount]:
    """The same, with this sum."""
    total, wanted = np.asarray(summed(terms), np.float64), np.asarray(seconds, np.float64)
    is_possible = np.isfinite(wanted) & (total > 0)
    factor = np.divide(wanted, total, out=np.ones(np.broadcast(wanted, total).shape), where=is_possible)
    return with_team(scaled(terms, factor), seconds)


def with_team(terms: Amounts, seconds: Amount) -> dict[TermName, Amount]:
    """These, and what a team makes more of it: all of it, where it is infinite. Rounding makes nothing negative."""
    return added(terms, {"team": np.maximum(np.subtract(seconds, summed(terms)), 0.0)})


def chosen_terms(is_first: NDArray[np.bool_], first: Amounts, second: Amounts) -> dict[TermName, Amount]:
    """Point by point, those or these."""
    names: list[TermName] = [name for name in TERMS if name in first or name in second]
    return {name: np.where(is_first, first.get(name, 0.0), second.get(name, 0.0)) for name in names}


def spread_terms(terms: Amounts, points: int) -> dict[TermName, FloatArray]:
    """With an entry for each point."""
    return {name: np.broadcast_to(np.asarray(t, np.float64), (points,)) for name, t in terms.items()}


def only(terms: Amounts) -> dict[TermName, float]:
    """Those of a single point."""
    return {name: np.asarray(t, np.float64).item() for name, t in terms.items()}


def stacked_terms(every: Sequence[Amounts]) -> dict[TermName, FloatArray]:
    """Those of one point after the other."""
    names: list[TermName] = [name for name in TERMS if any(name in terms for terms in every)]
    return {name: np.array([terms.get(name, 0.0) for terms in every], np.float64) for name in names}


def gathered(count: int, groups: Sequence[tuple[IntArray, Amounts]]) -> dict[TermName, FloatArray]:
    """Of `count` points in all, by where the points of each group are."""
    out: dict[TermName, FloatArray] = {}
    for at, terms in groups:
        for name, t in terms.items():
            out.setdefault(name, np.zeros(count))[at] = t
    return out

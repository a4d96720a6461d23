"""How far from the exact result a layer may be: the user's choice between speed and rounding errors.

Some algorithms need fewer multiplications than the plain sum, and have larger rounding errors. For every layer that
might use one, its error is measured at compile time, on the layer's own weights and relative to the layer's largest
output; it is used only if the bound allows that error. `docs/accuracy.md` has the figures.

Who does not say gets `TILEWRIGHT_ACCURACY`, or 2e-5.
"""

import math
import os
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.support.errors import UserError

EXACT = "exact"
_VARIABLE = "TILEWRIGHT_ACCURACY"
_HINT = f'give the largest error of a layer, such as 2e-5, or "{EXACT}" for plain sums only'


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The largest error that is allowed; None turns off every algorithm but the plain sum. As text it is what `of`
    reads, and it differs wherever the bound does.
    """

    bound: float | None

    def __post_init__(self) -> None:
        if self.bound is not None and not 0 < self.bound < 1:
            raise UserError(f"an accuracy of {self.bound!r} is not between 0 and 1", hint=_HINT)

    @classmethod
    def of(cls, value: "AccuracyLike | None") -> "Accuracy":
        """From what a user writes. None is the default, which the environment may set."""
        if value is None:
            return _default()
        if isinstance(value, Accuracy):
            return value
        if isinstance(value, str) and value.strip().lower() == EXACT:
            return cls(None)
        try:
            bound = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            bound = math.nan
        if math.isnan(bound):
            raise UserError(f"{value!r} is not an accuracy", hint=_HINT)
        return cls(bound)

    def allows(self, error: float) -> bool:
        """May an algorithm with this error be used? One whose error is not a number may not."""
        return self.bound is not None and error <= self.bound

    def covers(self, other: "Accuracy") -> bool:
        """Is a program that was compiled with `other` as accurate as this asks for?"""
        return other.bound is None or self.allows(other.bound)

    def __str__(self) -> str:
        return EXACT if self.bound is None else repr(self.bound)


AccuracyLike: TypeAlias = float | str | Accuracy
DEFAULT = Accuracy(2e-5)


def _default() -> Accuracy:
    text = os.environ.get(_VARIABLE, "")
    if not text:
        return DEFAULT
    try:
        return Accuracy.of(text)
    except UserError as e:
        raise UserError(f"{_VARIABLE} = {text!r} is not an accuracy", hint=_HINT) from e

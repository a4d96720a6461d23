"""Which layer gets which form: the most time saved for a bound on the sum of squared errors.

Errors of layers are independent, so their squares add up (`quantized_model.py` measures what comes of a plan, and
asks again with another bound where that is not so). Of each layer's forms those count that save more than any with a
smaller error, and more for their error than what is between them: the upper convex hull. Steps from one to the next are
taken in the order of what they save for what they cost, which is the best plan up to the last step.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.quantize.forms import LayerForm


@dataclass(frozen=True, slots=True)
class Option:
    """A form of a layer: the seconds that it saves, and its error alone."""

    form: LayerForm
    saved: float
    error: float

    @property
    def square(self) -> float:
        return self.error**2


_AS_IT_IS = Option(LayerForm.FLOAT, 0.0, 0.0)
_TINY = 1e-30  # an error that is none


def choose_forms(options: Mapping[str, Sequence[Option]], bound: float) -> dict[str, Option]:
    """Of each layer the form that it gets, where that is not floats; `bound` is on the error of all together."""
    steps = [
        ((b.saved - a.saved) / max(b.square - a.square, _TINY), name, a, b)
        for name, own in options.items()
        for a, b in _steps(own)
    ]
    chosen: dict[str, Option] = {}
    left = bound**2
    for _, name, before, after in sorted(steps, key=lambda s: -s[0]):
        cost = after.square - before.square
        if chosen.get(name, _AS_IT_IS) is before and cost <= left:
            chosen[name] = after
            left -= cost
    return chosen


def _steps(options: Iterable[Option]) -> Iterable[tuple[Option, Option]]:
    hull = [_AS_IT_IS]
    for o in sorted(options, key=lambda o: (o.square, -o.saved)):
        if o.saved <= hull[-1].saved:
            continue
        while len(hull) > 1 and _slope(hull[-2], o) >= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(o)
    return pairwise(hull)


def _slope(a: Option, b: Option) -> float:
    return (b.saved - a.saved) / max(b.square - a.square, _TINY)

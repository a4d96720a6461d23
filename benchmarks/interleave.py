"""Functions of this process that take turns as engines do."""

from collections.abc import Callable, Mapping
from functools import partial

from tilewright.cli.guest.turn import take_turn
from tilewright.support.turns import Series, take_turns


def interleave(
    engines: Mapping[str, Callable[[], object]], *, rounds: int, seconds: float
) -> dict[str, Series]:
    """As `tilewright.cli.measure` times engines: each runs for `seconds` in each of `rounds`."""
    return take_turns({name: partial(take_turn, run, seconds) for name, run in engines.items()}, rounds)

"""How long to tune: a time as a user writes it. Light to import: the command line shows the default in its help."""

import re

from tilewright.support.errors import UserError

DEFAULT_BUDGET = "60s"

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_HINT = "write 60s, 5m or 1.5h"


def parse_budget(budget: str | float) -> float:
    """Seconds: a number, or text such as `60s`, `5m`, `1.5h`."""
    if isinstance(budget, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", budget)
        if match is None or match[2] not in _UNITS:
            raise UserError(f"{budget!r} is not a time", hint=_HINT)
        seconds = float(match[1]) * _UNITS[match[2]]
    else:
        seconds = float(budget)
    if not 0 < seconds <= 1e7:
        raise UserError(f"a budget of {budget} is not possible", hint=_HINT)
    return seconds

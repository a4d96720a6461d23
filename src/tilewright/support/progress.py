"""How long work tells how far it is."""

from collections.abc import Callable
from typing import TypeAlias

OnProgress: TypeAlias = Callable[
    [str, int, int], None
]  # called with what is done, how much of it is, and of how much

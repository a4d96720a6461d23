"""The answer to a question about a program: it holds, it fails, or it is not known; and why."""

from enum import Enum, unique
from typing import NamedTuple


@unique
class Certainty(Enum):
    HOLDS = "holds"
    FAILS = "fails"
    UNKNOWN = "not known"


class Verdict(NamedTuple):
    """`reason` is empty exactly where the condition holds."""

    state: Certainty
    reason: str = ""

    def __bool__(self) -> bool:
        """Is the condition known to hold?"""
        return self.state is Certainty.HOLDS

    @property
    def is_broken(self) -> bool:
        """Is the condition known not to hold?"""
        return self.state is Certainty.FAILS


HOLDS = Verdict(Certainty.HOLDS)


def fails(reason: str) -> Verdict:
    return Verdict(Certainty.FAILS, reason)


def unknown(reason: str) -> Verdict:
    return Verdict(Certainty.UNKNOWN, reason)

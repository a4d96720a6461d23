"""Candidates that failed, by reason: how many, and one of them.

What is said of a failure names the values of that candidate. Two are of one reason if what is said of them differs in
numbers only.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Failure:
    """`count` candidates that failed for one reason; the rest is of the first of them."""

    status: str
    message: str
    task: str  # by name
    rule: str
    decisions: Mapping[str, int]
    count: int = 1

    @property
    def reason(self) -> str:
        """The first line of the message; of a step that refused, only its name."""
        line = self.message.partition("\n")[0].strip()
        called = re.match(r"(\w+)\(", line)
        if called is None:
            return line
        end = _closing(line, called.end())
        return f"{called[1]}{line[end + 1 :]}" if line[end + 1 : end + 3] == ": " else line

    def __str__(self) -> str:
        decisions = ", ".join(f"{k} {v}" for k, v in self.decisions.items())
        what = ": ".join(filter(None, (self.rule, decisions)))
        return f"{self.count} {self.status.replace('_', ' ')}: {self.reason} (such as {what} of {self.task})"


def by_reason(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """One for each reason, the most frequent first."""
    found: dict[tuple[str, str], Failure] = {}
    for f in failures:
        key = f.status, re.sub(r"\d+(\.\d+)?", "0", f.reason)
        found[key] = replace(found[key], count=found[key].count + f.count) if key in found else f
    return tuple(sorted(found.values(), key=lambda f: -f.count))


def by_status(failures: Iterable[Failure]) -> dict[str, int]:
    counts = Counter[str]()
    for f in failures:
        counts[f.status] += f.count
    return dict(counts)


def _closing(line: str, at: int) -> int:
    """Where the bracket that was opened before `at` is closed; the end if it is not."""
    depth = 1
    for i in range(at, len(line)):
        depth += (line[i] == "(") - (line[i] == ")")
        if not depth:
            return i
    return len(line)

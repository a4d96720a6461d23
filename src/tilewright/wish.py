"""What a user asks of plugins. Light to import: a program that was compiled before is loaded without the compiler."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, unique

from tilewright.support.errors import UserError


@unique
class Policy(Enum):
    """How to decide."""

    GREEDY = "greedy"  # whatever a plugin takes it gets; of several, the first named
    MEASURED = "measured"  # what is fastest, by measuring parts of the model and the whole


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asks for: plugins by name, in order of preference. `strict`: that a plugin fails is an error.
    `threads`: how many are measured with; None as many as a session has unless told.
    """

    plugins: tuple[str, ...] = ()
    policy: Policy = Policy.MEASURED
    strict: bool = False
    threads: int | None = None

    @classmethod
    def of(cls, plugins: Iterable[str], placement: str, strict: bool, threads: int | None = None) -> "Wish":
        """From what a user writes."""
        names = (plugins,) if isinstance(plugins, str) else tuple(plugins)
        try:
            return cls(names, Policy(placement), strict, threads)
        except ValueError:
            known = ", ".join(p.value for p in Policy)
            raise UserError(f"{placement!r} is no placement", hint=f"there are: {known}") from None

    def __str__(self) -> str:
        if not self.plugins:
            return ""
        threads = f" {self.threads}" if self.policy is Policy.MEASURED else ""
        return f"{','.join(self.plugins)} {self.policy.value}{threads}"


NATIVE = Wish()

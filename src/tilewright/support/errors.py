"""The two kinds of failure.

`UserError`: the input (model, feeds, options, schedule step) is at fault. Its text says what was attempted, where it
went wrong, which condition was violated and what to do next; the CLI prints it without a traceback.

`InternalError`: we are at fault. It is never used to report bad input.
"""


class TilewrightError(Exception):
    """Base of everything the package raises on purpose."""


class Hint(str):
    """What to do next where Python and the command line have different words for it: the text is for who calls us from
    Python, `command` for who typed a command.
    """

    __slots__ = ("command",)
    command: str

    def __new__(cls, text: str, *, command: str) -> "Hint":
        self = super().__new__(cls, text)
        self.command = command
        return self


class UserError(TilewrightError):
    """Bad input. `where` names the offending node, file or IR line; `hint` says what to do next: a `Hint` where that is
    an argument in Python and an option on the command line.
    """

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.message, self.where, self.hint = message, where, hint
        super().__init__(_text(message, where, hint))

    def for_command(self) -> str:
        """The text for who typed a command."""
        return _text(self.message, self.where, command_words(self.hint))


def command_words(hint: str | None) -> str | None:
    return hint.command if isinstance(hint, Hint) else hint


def _text(message: str, where: str | None, hint: str | None) -> str:
    lines = [message]
    if where is not None:
        lines.append(f"  at: {where}")
    if hint is not None:
        lines.append(f"  try: {hint}")
    return "\n".join(lines)


class ScheduleError(UserError):
    """A schedule step whose precondition does not hold. The program is left as it was."""


class MultipleProgramsError(UserError):
    """A model that cannot be compiled to one program as it is: shapes are open, or the host has a part in it."""


class InternalError(TilewrightError):
    """A broken promise of our own code. Please report it."""

"""Exit statuses of the command line; `main` says what each means."""

from enum import IntEnum


class ExitStatus(IntEnum):
    OK = 0
    USER_ERROR = 1
    USAGE = 2
    INTERNAL_ERROR = 3
    MISMATCH = 4
    INTERRUPTED = 130

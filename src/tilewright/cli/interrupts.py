"""What a Ctrl-C does to the command: it ends with 130, without a traceback, whatever was going on.

While modules are imported there is nothing to clean up, and a KeyboardInterrupt may come out of them as anything: the
process ends at once. While a command works it is an exception as usual: temporary files go, and `tune` shows what it
has found.

Light to import: what comes before `end_at_once` is not covered.
"""

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from tilewright.cli.status import ExitStatus
from tilewright.support.uninterrupted import is_uninterrupted

_LATER_SECONDS = 0.001


def end_at_once() -> None:
    """From now on, unless interrupts are ignored (`nohup`) or handled already."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


@contextmanager
def raising_interrupts() -> Generator[None]:
    """A KeyboardInterrupt instead, for as long as there is something to clean up."""
    if signal.getsignal(signal.SIGINT) is not _end:
        yield
        return
    signal.signal(signal.SIGINT, _raise)
    alarm = signal.signal(signal.SIGALRM, _raise)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGINT, _end)


def is_interrupt(error: BaseException) -> bool:
    """Did an interrupt cause it? An import that is interrupted may fail as an ImportError."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, KeyboardInterrupt):
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False


def _raise(number: int, frame: FrameType | None) -> None:
    """Where an exception would be lost, a little later."""
    if is_uninterrupted(frame):
        signal.setitimer(signal.ITIMER_REAL, _LATER_SECONDS)
    else:
        raise KeyboardInterrupt


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"\ninterrupted\n")  # not on the line on which a terminal shows ^C
    os._exit(ExitStatus.INTERRUPTED)

"""The other end of `tilewright.support.pool`: a process that another one of ours has started to answer its packets."""

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from tilewright.support.frames import frame, receive, unpack

READY = b""  # the message that comes before all answers
_PR_SET_PDEATHSIG = 1


def answer_requests(answer: Callable[[Any, list[bytes]], bytes | None]) -> None:
    """Answer one packet after the other until there are no more. `answer` gives a packet, or None if none is expected.

    If the one who started us is gone, so are we, even in the middle of native code. Whatever a library prints must not
    end up among the answers.
    """
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        sink.write(frame(READY))
        sink.flush()
        while (body := receive(sys.stdin.buffer)) is not None:
            said = answer(*unpack(body))
            if said is not None:
                sink.write(frame(said))
                sink.flush()
    except BrokenPipeError:
        os._exit(0)  # nobody is left to answer: no complaint, and no second attempt to flush

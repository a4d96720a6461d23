"""How a process begins that another one of ours has started to answer its packets."""

import contextlib
import ctypes
import os
import resource
import signal
from typing import BinaryIO

_PR_SET_PDEATHSIG = 1


def settle_as_child() -> BinaryIO:
    """What every child does first; returns where its answers go.

    If the one who started us is gone, so are we, even in the middle of native code. Whatever a library prints must not
    end up among the answers.
    """
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return sink

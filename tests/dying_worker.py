"""A stand-in for processes of ours that does what it is asked: `python -m tests.dying_worker`."""

import os
import signal
import time
from typing import Any

from tilewright.support.answering import answer_requests
from tilewright.support.frames import pack


def answer(head: Any, _: list[bytes]) -> bytes | None:
    match head:
        case "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            time.sleep(60)
        case "leave":
            os._exit(3)
        case "note":
            return None
        case "pass":
            return pack("")
        case _:
            pass
    return pack(head)


if __name__ == "__main__":
    answer_requests(answer)

"""A stand-in for the worker of ONNX's suite that does what it is told: `python -m tests.dying_worker`."""

import os
import signal
import sys
import time

from tilewright.support.frames import frame, receive
from tilewright.trial import settle_as_child


def main() -> None:
    sink = settle_as_child()
    answer = b"ready"
    while True:
        sink.write(frame(answer))
        sink.flush()
        answer = receive(sys.stdin.buffer) or b""
        match answer:
            case b"die":
                os.kill(os.getpid(), signal.SIGSEGV)
            case b"hang":
                time.sleep(60)
            case b"leave":
                os._exit(3)
            case b"pass":
                answer = b""
            case b"":
                return
            case _:
                pass


if __name__ == "__main__":
    main()

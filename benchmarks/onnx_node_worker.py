"""A process that runs node cases of ONNX's suite: `python -m benchmarks.onnx_node_worker`.

It says that it is ready, and then answers each case with what is wrong with its result.
"""

import os
import sys

from benchmarks.onnx_node_cases import run_case, unpack_case
from tilewright.support.frames import frame, receive
from tilewright.trial import settle_as_child


def main() -> None:
    sink = settle_as_child()
    answer = "ready"
    try:
        while True:
            sink.write(frame(answer.encode()))
            sink.flush()
            body = receive(sys.stdin.buffer)
            if body is None:
                return
            answer = run_case(unpack_case(body))
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()

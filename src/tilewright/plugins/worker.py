"""The process in which a plugin compiles: reads one request, answers, and ends."""

import sys

from tilewright.plugins.isolation import compile_request
from tilewright.support.frames import frame, pack, receive
from tilewright.trial import settle_as_child


def main() -> None:
    sink = settle_as_child()
    body = receive(sys.stdin.buffer)
    if body is None:
        return
    try:
        answer = compile_request(body)
    except Exception as e:
        answer = pack({"error": f"its compiler failed: {type(e).__name__}: {e}"})
    sink.write(frame(answer))
    sink.flush()


if __name__ == "__main__":
    main()

"""The process in which plugins compile: answers one request after the other."""

import sys

from tilewright.plugins.isolation import compile_request
from tilewright.support.frames import frame, pack, receive
from tilewright.support.settle import settle_as_child


def main() -> None:
    sink = settle_as_child()
    while (body := receive(sys.stdin.buffer)) is not None:
        try:
            answer = compile_request(body)
        except Exception as e:
            answer = pack({"error": f"its compiler failed: {type(e).__name__}: {e}"})
        sink.write(frame(answer))
        sink.flush()


if __name__ == "__main__":
    main()

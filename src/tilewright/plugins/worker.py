"""The process in which plugins compile: answers one request after the other."""

from typing import Any

from tilewright.plugins.isolation import compile_request
from tilewright.support.answering import answer_requests
from tilewright.support.frames import pack


def _answer(head: Any, blobs: list[bytes]) -> bytes:
    try:
        return compile_request(head, blobs)
    except Exception as e:
        return pack({"error": f"its compiler failed: {type(e).__name__}: {e}"})


if __name__ == "__main__":
    answer_requests(_answer)

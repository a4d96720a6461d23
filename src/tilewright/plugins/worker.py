"""The process in which plugins compile: answers one request after the other."""

from typing import Any

from tilewright.plugins.isolation import compile_request
from tilewright.support.answering import answer_requests
from tilewright.support.frames import pack


def answer_region(head: Any, blobs: list[bytes]) -> bytes:
    """What a plugin makes of a region, or why it made nothing."""
    try:
        return compile_request(head, blobs)
    except Exception as e:
        return pack({"error": f"its compiler failed: {type(e).__name__}: {e}"})


if __name__ == "__main__":
    answer_requests(answer_region)

"""A process that runs node cases of ONNX's suite: `python -m benchmarks.onnx_node_worker`.

It answers each case with what is wrong with its result.
"""

from typing import Any

from benchmarks.onnx_node_cases import run_case, unpack_case
from tilewright.support.answering import answer_requests
from tilewright.support.frames import pack


def _answer(head: Any, blobs: list[bytes]) -> bytes:
    return pack(run_case(unpack_case(head, blobs)))


if __name__ == "__main__":
    answer_requests(_answer)

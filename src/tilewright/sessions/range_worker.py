"""A process that compiles programs for smaller ranges (`driver/range_jobs.py`):
`python -m tilewright.sessions.range_worker`.
"""

from typing import Any

from tilewright.compiler import compile_open
from tilewright.driver.keys import model_digest
from tilewright.driver.range_jobs import RangeProgramMade
from tilewright.driver.trace import ProgramTrace
from tilewright.driver.worker import target_from_json
from tilewright.frontend.onnx.load import OnnxModel
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime.cache import NO_CACHE, default_cache
from tilewright.support.answering import answer_requests
from tilewright.support.frames import pack
from tilewright.support.sizes import Dim


def answer(head: Any, blobs: list[bytes]) -> bytes:
    """The program that is asked for; or an error, of which the other end finds out by trying itself."""
    try:
        return _made(head, target_from_json(blobs[0])).packed()
    except Exception as e:
        return pack({"error": f"{type(e).__name__}: {e}"}, ())


def _made(head: Any, target: Any) -> RangeProgramMade:
    cache = default_cache() if head["is_cached"] else NO_CACHE
    with OnnxModel(head["source"]) as model:
        if head["digest"] and model_digest(head["source"], NO_CACHE) != head["digest"]:
            raise RuntimeError("the file has changed")
        made = compile_open(
            target,
            model,
            {name: Dim(name, least, most, multiple) for name, least, most, multiple in head["dims"]},
            head["digest"],
            Accuracy.of(head["accuracy"]),
            cache,
            trace=ProgramTrace.parse(head["trace"]),
            is_alone=True,
        )
    return RangeProgramMade(made.artifact, made.trace, made.tasks, made.seconds)


if __name__ == "__main__":
    answer_requests(answer)

"""A process that compiles LLVM IR for `workers`: `python -m tilewright.driver.worker`.

It receives the target once, and then one module of LLVM IR after the other; it answers with objects, or with an error
message. Only what compiles IR is imported, so that it is ready soon.
"""

import json
from dataclasses import asdict
from typing import Any

from tilewright.codegen.objects import compile_object
from tilewright.support.answering import answer_requests
from tilewright.support.frames import pack
from tilewright.target.machine import Machine
from tilewright.target.target import Target

_EMPTY = "define void @nothing() {\n  ret void\n}\n"


def target_to_json(target: Target) -> bytes:
    return json.dumps({**asdict(target), "features": sorted(target.features)}).encode()


def target_from_json(text: bytes) -> Target:
    fields = json.loads(text)
    features = frozenset[str](fields.pop("features"))
    figures: dict[str, Any] = fields.pop("machine")
    figures |= {n: tuple(v) for n, v in figures.items() if n.endswith("_rates")}
    return Target(features=features, machine=Machine(**figures), **fields)


def compile_ir(ir: bytes, target: Target) -> tuple[Any, list[bytes]]:
    """The answer to a module."""
    try:
        return {"error": ""}, [compile_object(ir.decode(), target)]
    except Exception as e:  # whatever it is, the other end finds out by trying itself
        return {"error": f"{type(e).__name__}: {e}"}, []


class CodegenServer:
    def __init__(self) -> None:
        self._target: Target | None = None

    def answer(self, _: Any, blobs: list[bytes]) -> bytes | None:
        if self._target is not None:
            return pack(*compile_ir(blobs[0], self._target))
        self._target = target_from_json(blobs[0])
        compile_object(_EMPTY, self._target)  # what LLVM sets up on first use is done while nothing is to do
        return None


if __name__ == "__main__":
    answer_requests(CodegenServer().answer)

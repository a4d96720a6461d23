"""A process that compiles LLVM IR for `workers`: `python -m tilewright.worker`.

Through standard input comes the target, once, and then one module of LLVM IR after the other; through standard output
go the objects, in the same order. A message is its size (8 bytes, little endian) and its bytes; an answer starts with
one more byte, which tells objects from messages of error. The process ends when its input does.

Only what compiles IR is imported, so that it is ready soon.
"""

import json
import os
import signal
import sys
from typing import BinaryIO

from tilewright.codegen.objects import compile_object
from tilewright.support.frames import frame, receive
from tilewright.target.target import Target

OBJECT, ERROR = b"o", b"e"
_EMPTY = "define void @nothing() {\n  ret void\n}\n"


def target_to_json(target: Target) -> bytes:
    fields = {name: getattr(target, name) for name in Target.__slots__}
    return json.dumps({**fields, "features": sorted(target.features)}).encode()


def target_from_json(text: bytes) -> Target:
    fields = json.loads(text)
    features = frozenset[str](fields.pop("features"))
    return Target(features=features, **fields)


def _answer(ir: bytes, target: Target) -> bytes:
    try:
        return frame(OBJECT, compile_object(ir.decode(), target))
    except Exception as e:  # whatever it is, the other end finds out by trying itself
        return frame(ERROR, f"{type(e).__name__}: {e}".encode())


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    first = receive(source)
    if first is None:
        return
    target = target_from_json(first)
    compile_object(_EMPTY, target)  # what LLVM sets up on first use is done while there is nothing to compile
    while (ir := receive(source)) is not None:
        sink.write(_answer(ir, target))
        sink.flush()


def main() -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all of a terminal: the one who started us decides
    # Whatever a library prints must not end up among the answers.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(sys.stdin.buffer, sink)
    except BrokenPipeError:
        os._exit(0)  # nobody is left to answer: no complaint, and no second attempt to flush


if __name__ == "__main__":
    main()

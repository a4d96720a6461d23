"""Messages between processes: a size (8 bytes, little endian) and as many bytes; nothing is pickled.

A packet is a message of several parts, the first of which is JSON: a table of what the others are.
"""

import json
import struct
from collections.abc import Sequence
from typing import Any, BinaryIO

SIZE = struct.Struct("<Q")


def frame(*parts: bytes) -> bytes:
    """One message."""
    return b"".join((SIZE.pack(sum(map(len, parts))), *parts))


def receive(source: BinaryIO) -> bytes | None:
    """The next message; None at the end of input."""
    head = source.read(SIZE.size)
    if len(head) < SIZE.size:
        return None
    size = SIZE.unpack(head)[0]
    body = source.read(size)
    return body if len(body) == size else None


def take(received: bytearray) -> bytes | None:
    """Take the first message off what was received, if all of it has arrived."""
    if len(received) < SIZE.size:
        return None
    end = SIZE.size + SIZE.unpack_from(received)[0]
    if len(received) < end:
        return None
    message = bytes(received[SIZE.size : end])
    del received[:end]
    return message


def pack(head: object, blobs: Sequence[bytes] = ()) -> bytes:
    """A packet as the body of a message."""
    return b"".join(frame(part) for part in (json.dumps(head).encode(), *blobs))


def unpack(body: bytes) -> tuple[Any, list[bytes]]:
    """The JSON and the other parts of a packet; ValueError if it is none."""
    parts: list[bytes] = []
    at = 0
    while at < len(body):
        if at + SIZE.size > len(body):
            raise ValueError("a packet ends in the size of a part")
        end = at + SIZE.size + SIZE.unpack_from(body, at)[0]
        if end > len(body):
            raise ValueError("a packet ends in the middle of a part")
        parts.append(body[at + SIZE.size : end])
        at = end
    if not parts:
        raise ValueError("a packet has no parts")
    return json.loads(parts[0]), parts[1:]

"""What a session did and when, as a file of Chrome's trace events (chrome://tracing, Perfetto)."""

import json
import os
import threading
import time
from datetime import datetime
from typing import Any


class TraceEvents:
    """Spans of time of one session. May be added to from several threads at once."""

    def __init__(self, prefix: str) -> None:
        self.start_ns = time.monotonic_ns()
        self._path = f"{prefix}_{datetime.now().strftime('%Y-%m-%d_%H-%M-%S_%f')[:-3]}.json"
        self._events: list[dict[str, Any]] = []

    def add(self, name: str, start_ns: int, **details: Any) -> None:
        """What has begun then, and is over now."""
        self._events.append(
            {
                "cat": "Session",
                "pid": os.getpid(),
                "tid": threading.get_native_id(),
                "dur": (time.monotonic_ns() - start_ns) // 1000,
                "ts": (start_ns - self.start_ns) // 1000,
                "ph": "X",
                "name": name,
                "args": details,
            }
        )

    def write(self) -> str:
        """The name of the file."""
        with open(self._path, "w", encoding="utf-8") as file:
            file.write("[\n" + ",\n".join(map(json.dumps, self._events)) + "\n]\n")
        return self._path

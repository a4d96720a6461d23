"""Python's collector of cyclic garbage, while a model is compiled.

It looks at all that is alive again and again as more is made, which takes a fifth of the time: compiling makes much
that stays and hardly anything that refers to itself. So meanwhile it runs rarely. It is not switched off: other threads
of the process may well leave cycles behind.
"""

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

_NEW_OBJECTS = 300_000  # between two runs; about 30 MB

_lock = threading.Lock()
_inside = 0
_usual = gc.get_threshold()


@contextmanager
def rare_collections() -> Generator[None]:
    """Let the collector run rarely in here. It is one of the whole process: several threads may be inside at once."""
    global _inside, _usual
    with _lock:
        if _inside == 0:
            _usual = gc.get_threshold()
            if _usual[0]:  # 0 is never
                gc.set_threshold(max(_usual[0], _NEW_OBJECTS), *_usual[1:])
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                gc.set_threshold(*_usual)

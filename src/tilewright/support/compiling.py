"""Settings of Python while a model is compiled.

- The collector of cyclic garbage runs rarely. It looks at all that is alive again and again as more is made, which
  took a fifth of the time: compiling makes much that stays and hardly anything that refers to itself. It is not
  switched off, for other threads of the process may well leave cycles behind.
- Functions may call themselves deeply. Expressions are rewritten by recursion, and a group of 64 elementwise nodes,
  each expanded to a polynomial, is a thousand nodes high. Python's frames are not on the machine's stack, so more of
  them do no harm.
"""

import gc
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

_NEW_OBJECTS = 300_000  # between two runs of the collector; about 30 MB
_DEPTH = 20_000

_lock = threading.Lock()
_inside = 0
_usual = gc.get_threshold(), sys.getrecursionlimit()


@contextmanager
def compiling() -> Generator[None]:
    """What is in here compiles. The settings are those of the whole process: several threads may be inside at once."""
    global _inside, _usual
    with _lock:
        if _inside == 0:
            _usual = thresholds, depth = gc.get_threshold(), sys.getrecursionlimit()
            if thresholds[0]:  # 0 is never
                gc.set_threshold(max(thresholds[0], _NEW_OBJECTS), *thresholds[1:])
            sys.setrecursionlimit(max(depth, _DEPTH))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                gc.set_threshold(*_usual[0])
                sys.setrecursionlimit(_usual[1])

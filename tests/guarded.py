"""Arrays with nothing around them: memory that ends (or begins) at a page which nobody may touch.

Kernels run in a child process, so a read outside of an array is a failed test and not the end of all tests.
"""

import ctypes
import faulthandler
import mmap
import os
import signal
import warnings
from collections.abc import Callable, Mapping

import numpy as np
from native import BEST, load
from numpy.typing import NDArray

from tilewright.codegen.kernel import kernel_ir, parts
from tilewright.ir.expr import Buffer
from tilewright.runtime.memory import round_up
from tilewright.support.arrays import Array
from tilewright.target.target import Target
from tilewright.tir.func import Func

_PAGE = mmap.PAGESIZE
_PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Guarded:
    """A copy of an array in memory that a child process shares, between two forbidden pages."""

    def __init__(self, array: Array, *, at_end: bool) -> None:
        inside = round_up(max(array.nbytes, 1), _PAGE)
        self._mapping = mmap.mmap(-1, inside + 2 * _PAGE)  # shared with children
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        for page in (base, base + _PAGE + inside):
            assert _libc.mprotect(page, _PAGE, _PROT_NONE) == 0
        offset = _PAGE + (inside - array.nbytes if at_end else 0)
        raw = np.frombuffer(self._mapping, np.uint8, array.nbytes, offset)
        self.array: NDArray[np.generic] = raw.view(array.dtype).reshape(array.shape)
        self.array[...] = array


def run_guarded(
    func: Func, arrays: Mapping[Buffer, Array], target: Target = BEST, *, at_end: bool = True
) -> dict[Buffer, Array]:
    """Run a lowered Func on guarded copies of `arrays`; returns what they hold afterwards. Fails if it leaves them."""
    places = {b: Guarded(arrays[b], at_end=at_end) for b in func.params}
    _, call = load(kernel_ir(func), func.name, target)
    args = (ctypes.c_void_p * max(len(places), 1))(*(p.array.ctypes.data for p in places.values()))

    def body() -> None:
        for part in range(parts(func)):
            call(ctypes.addressof(args), part)

    status = in_child(body)
    assert status != -signal.SIGSEGV, f"{func.name} touches memory outside of its arrays"
    assert status == 0, f"{func.name} ended with {status}"
    return {b: p.array.copy() for b, p in places.items()}


def in_child(body: Callable[[], None]) -> int:
    """Run native code in a forked process; its exit code, or minus the signal that ended it."""
    with warnings.catch_warnings():
        # Forking a process with threads is dangerous for what takes locks: the child only calls a kernel.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        body()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

"""What external code gets in a program with open dimensions: arrays of the sizes in use, and contiguous.

The program's memory has the pitch of the capacity. Where what is in use of it is contiguous all the same (only the
outermost dimension is open, or the sizes are the largest), the code gets a view of it; otherwise a copy, of which
outputs are copied back.
"""

from collections.abc import Mapping
from math import prod

import numpy as np

from tilewright.runtime.dtypes import numpy_dtype
from tilewright.runtime.memory import ALIGN, MemoryRegion, round_up
from tilewright.support.arrays import OpaqueArray
from tilewright.support.artifact import ExternalCall, TensorSpec


def copied_bytes(call: ExternalCall) -> int:
    """What the copies of a call need at most."""
    specs = [s for _, s in (*call.inputs, *call.outputs) if s.sizes]
    return sum(round_up(numpy_dtype(s.dtype).itemsize * prod(s.shape), ALIGN) for s in specs)


class SizedViews:
    """The arrays of external calls, one call at a time. The memory for copies, at most `nbytes`, is taken when some are
    made, and only touched as far as they need it.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._memory: MemoryRegion | None = None
        self._used = 0
        self._results: list[tuple[OpaqueArray, OpaqueArray]] = []
        self.sizes: Mapping[str, int] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}  # by identity: specs are those of the program

    def use(self, sizes: Mapping[str, int]) -> None:
        """The open dimensions have these sizes from now on."""
        if sizes != self.sizes:
            self.sizes = sizes
            self._shapes.clear()

    def input(self, whole: OpaqueArray, spec: TensorSpec) -> OpaqueArray:
        """What is in use of an array of the capacity, for reading."""
        view = self._in_use(whole, spec)
        if not view.flags.c_contiguous:
            copy = self._next(view)
            np.copyto(copy, view)
            view = copy
        view.flags.writeable = False
        return view

    def output(self, whole: OpaqueArray, spec: TensorSpec) -> OpaqueArray:
        """What is in use of an array of the capacity, for writing. It is there after `finish`."""
        view = self._in_use(whole, spec)
        if view.flags.c_contiguous:
            return view
        copy = self._next(view)
        self._results.append((view, copy))
        return copy

    def finish(self) -> None:
        """The call is over: what it has written goes to where it belongs."""
        for view, copy in self._results:
            np.copyto(view, copy)
        self.forget()

    def forget(self) -> None:
        """The next call may have the memory of the copies."""
        self._results.clear()
        self._used = 0

    def _in_use(self, whole: OpaqueArray, spec: TensorSpec) -> OpaqueArray:
        if not spec.sizes:
            return whole
        shape = self._shapes.get(id(spec))
        if shape is None:
            shape = self._shapes[id(spec)] = spec.shape_at(self.sizes)
        return whole[tuple(map(slice, shape))]

    def _next(self, view: OpaqueArray) -> OpaqueArray:
        """Memory for a copy."""
        if self._memory is None:
            self._memory = MemoryRegion(self._nbytes, zeroed=False)
        start = self._used
        self._used += round_up(view.nbytes, ALIGN)
        return self._memory.array[start : start + view.nbytes].view(view.dtype).reshape(view.shape)

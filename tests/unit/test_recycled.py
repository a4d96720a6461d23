"""Memory of results is used again, and never while somebody has it."""

import gc

import numpy as np

from tilewright.runtime.memory import address_of
from tilewright.runtime.recycled import RecycledMemory

F32 = np.dtype(np.float32)
SHAPE = (4, 1 << 16)


def test_memory_comes_back_when_nothing_views_it() -> None:
    memory = RecycledMemory()
    first = memory.empty(SHAPE, F32)
    at, view = address_of(first), first[1:2, 3:]
    del first
    gc.collect()
    other = memory.empty(SHAPE, F32)
    assert address_of(other) != at  # the view has it still
    del view
    gc.collect()
    assert address_of(memory.empty(SHAPE, F32)) == at


def test_arrays_of_other_sizes_have_other_memory() -> None:
    memory = RecycledMemory()
    at = address_of(memory.empty(SHAPE, F32))
    assert address_of(memory.empty((8, 1 << 16), F32)) != at
    assert memory.empty((3,), F32).shape == (3,)


def test_what_is_given_back_after_the_end_is_not_kept() -> None:
    memory = RecycledMemory()
    array = memory.empty(SHAPE, F32)
    array[...] = 1.0
    memory.clear()
    kept = array[0]
    del array
    gc.collect()
    other = memory.empty(SHAPE, F32)
    other[...] = 2.0
    assert (kept == 1.0).all()

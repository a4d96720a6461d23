"""What external code gets of memory that has the pitch of the capacity: views where these are
contiguous, copies otherwise.
"""

import numpy as np

from tilewright.runtime.sized_views import SizedViews, copied_bytes
from tilewright.support.artifact import ExternalCall, Place, Slot, TensorSpec
from tilewright.support.sizes import Dim, SizeExpr

BATCH, N = Dim("batch", 1, 4), Dim("n", 1, 6)
SPEC = TensorSpec("t", "float32", (4, 6, 2), (SizeExpr.of_dim(BATCH), SizeExpr.of_dim(N), None))
FIXED = TensorSpec("f", "float32", (3,))


def call() -> ExternalCall:
    slot = Slot(Place.ARENA, 0)
    return ExternalCall("x", ((slot, SPEC), (slot, FIXED)), ((slot, SPEC),))


def views(batch: int, n: int) -> SizedViews:
    made = SizedViews(copied_bytes(call()))
    made.use({"batch": batch, "n": n})
    return made


def test_copies_need_what_is_open_at_most() -> None:
    assert copied_bytes(call()) == 2 * 4 * 6 * 2 * 4


def test_what_is_contiguous_is_not_copied() -> None:
    whole = np.arange(48, dtype=np.float32).reshape(4, 6, 2)
    for batch, n in (
        (4, 6),
        (2, 6),
        (1, 3),
    ):  # one row of the outermost dimension is contiguous, however long
        sized = views(batch, n)
        for array in (sized.input(whole, SPEC), sized.output(whole, SPEC)):
            assert array.shape == (batch, n, 2) and np.shares_memory(array, whole)
    fixed = np.zeros(3, np.float32)
    assert np.shares_memory(views(2, 2).input(fixed, FIXED), fixed)


def test_what_is_not_contiguous_is_copied_and_copied_back() -> None:
    whole = np.arange(48, dtype=np.float32).reshape(4, 6, 2)
    before, sized = whole.copy(), views(3, 2)
    given, made = sized.input(whole, SPEC), sized.output(whole, SPEC)
    for array in (given, made):
        assert array.flags.c_contiguous and array.ctypes.data % 64 == 0 and not np.shares_memory(array, whole)
    assert not np.shares_memory(given, made) and not given.flags.writeable
    np.testing.assert_array_equal(given, whole[:3, :2])
    made[...] = -1
    np.testing.assert_array_equal(whole, before)
    sized.finish()
    assert (whole[:3, :2] == -1).all()
    whole[:3, :2] = before[:3, :2]
    np.testing.assert_array_equal(whole, before, "nothing beyond the sizes in use was written")


def test_a_call_that_fails_writes_nothing() -> None:
    whole, sized = np.zeros((4, 6, 2), np.float32), views(3, 2)
    sized.output(whole, SPEC)[...] = 7
    sized.forget()
    sized.finish()
    assert not whole.any()


def test_sizes_change() -> None:
    whole, sized = np.zeros((4, 6, 2), np.float32), views(3, 2)
    assert sized.input(whole, SPEC).shape == (3, 2, 2)
    sized.forget()
    sized.use({"batch": 2, "n": 5})
    assert sized.input(whole, SPEC).shape == (2, 5, 2)

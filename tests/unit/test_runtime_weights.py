"""Large constants by content: one copy in memory for all programs, freed with the last of them."""

import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.runtime_programs import N, biased_program
from tilewright.runtime import file as tw
from tilewright.runtime import weights
from tilewright.runtime.memory import Constants, MemoryRegion, Shelf, address_of
from tilewright.runtime.session import Session
from tilewright.runtime.weights import LARGE, digests_of
from tilewright.support.artifact import Artifact
from tilewright.support.errors import UserError

pytestmark = pytest.mark.usefixtures("few_objects")

A = np.arange(N, dtype=np.float32)


def large(seed: int, nbytes: int = 4 * LARGE) -> NDArray[np.float32]:
    return np.random.default_rng(seed).random(nbytes // 4, np.float32)


def with_constants(*arrays: NDArray[np.generic], known: bool = True) -> Artifact:
    """A program that has more constants than it uses."""
    program = biased_program()
    constants = (*program.constants, *arrays)
    return replace(program, constants=constants, digests=digests_of(constants) if known else ())


def made(*arrays: NDArray[np.generic]) -> Constants:
    return Constants(arrays, digests_of(arrays))


def resident() -> int:
    """Bytes of anonymous memory of this process."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    raise AssertionError


def test_equal_contents_are_one_memory() -> None:
    one, two = made(large(0), large(1), A), made(large(1), large(2), A)
    assert one.addresses[1] == two.addresses[0]
    assert len({*one.addresses, *two.addresses}) == 5  # small ones are not shared
    for constants, seeds in ((one, (0, 1)), (two, (1, 2))):
        for array, seed in zip(constants.arrays, seeds, strict=False):
            np.testing.assert_array_equal(array, large(seed))
            assert not array.flags.writeable and address_of(array) % 64 == 0


def test_types_and_shapes_are_views_of_the_bytes() -> None:
    given = large(0)
    arrays = [given, given.reshape(2, -1), given.view(np.int32), given.view(ml_dtypes.bfloat16)]
    constants = made(*arrays)
    assert len(set(constants.addresses)) == 1
    for array, wanted in zip(constants.arrays, arrays, strict=True):
        assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
        assert array.tobytes() == wanted.tobytes()


def test_an_array_that_is_not_contiguous() -> None:
    turned = large(0).reshape(256, -1).T
    kept, plain = made(turned), made(np.ascontiguousarray(turned))
    assert kept.addresses == plain.addresses
    np.testing.assert_array_equal(kept.arrays[0], turned)


def test_entries_go_with_their_last_user() -> None:
    digest = digests_of([large(7)])[0]
    one = made(large(7))
    two = made(large(7))
    del one
    gc.collect()
    assert weights.shared_bytes(digest, 4 * LARGE) is not None
    np.testing.assert_array_equal(two.arrays[0], large(7))
    del two
    gc.collect()
    assert weights.shared_bytes(digest, 4 * LARGE) is None


def test_what_is_not_shared_is_freed_though_its_neighbour_is_not() -> None:
    """Constants that were loaded side by side belong to several programs, one of which goes."""
    size = 16 << 20
    first = made(large(1, size), large(2, size))
    second = made(large(2, size))
    before = resident()
    del first
    gc.collect()
    assert before - resident() > 0.9 * size
    np.testing.assert_array_equal(second.arrays[0], large(2, size))
    before = resident()  # what the comparison allocated may stay with the allocator
    del second
    gc.collect()
    assert before - resident() > 0.9 * size


def test_arrays_on_a_shelf_are_freed_one_by_one() -> None:
    size, shelf = 16 << 20, Shelf()
    kept, other = (shelf.empty((size // 4,), np.dtype(np.float32)) for _ in range(2))
    kept[...], other[...] = 1, 2
    before = resident()
    del other
    gc.collect()
    assert before - resident() > 0.9 * size and kept.min() == kept.max() == 1
    (digest,) = digests_of([kept])
    assert Constants([kept], [digest]).addresses == [address_of(kept)]  # shared where it is


def test_the_end_of_a_piece_leaves_its_neighbours_alone() -> None:
    """Pages that a piece has in common with others stay."""
    region = MemoryRegion(5 * 4096)
    region.array[:] = 1
    piece = region.piece(100, 3 * 4096)
    del piece
    gc.collect()
    freed = slice(4096, 3 * 4096)
    assert not region.array[freed].any()
    region.array[freed] = 1
    assert region.array[: 5 * 4096].all()


def test_threads_that_load_at_once_get_one_copy() -> None:
    barrier = threading.Barrier(8)

    def load(_: int) -> Constants:
        given = large(3)
        barrier.wait()
        return made(given)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(load, range(8)))
    assert len({c.addresses[0] for c in found}) == 1


FORKED = """
import os, sys, threading
import numpy as np
from tilewright.runtime import weights
from tilewright.runtime.memory import Constants
given = np.arange(1 << 16, dtype=np.float32)
keys = weights.digests_of([given])
parent = Constants([given], keys)
with weights._lock:  # as another thread may
    child = os.fork()
if child == 0:
    mine = Constants([given.copy()], keys)
    same = mine.addresses == parent.addresses and np.array_equal(mine.arrays[0], given)
    del parent, mine  # frees the child's pages alone
    os._exit(0 if same else 1)
_, status = os.waitpid(child, 0)
assert status == 0 and np.array_equal(parent.arrays[0], given)
"""


def test_a_forked_child_shares_and_frees_by_itself() -> None:
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60)


@pytest.mark.parametrize("known", [True, False])
def test_files_have_large_constants_once(tmp_path: Path, known: bool) -> None:
    tied = large(0)
    program = with_constants(tied, large(1), tied.reshape(4, -1), known=known)
    tw.save(program, tmp_path / "p.tw")
    assert 2 * tied.nbytes < (tmp_path / "p.tw").stat().st_size < 3 * tied.nbytes
    for mapped in (False, True):
        loaded = tw.load_artifact(tmp_path / "p.tw", mapped=mapped)
        assert loaded.digests == digests_of(program.constants)
        for a, b in zip(loaded.constants, program.constants, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
            assert not a.flags.writeable and address_of(a) % 64 == 0
    assert tw.to_bytes(loaded) == (tmp_path / "p.tw").read_bytes()


def test_sessions_of_files_share(tmp_path: Path) -> None:
    for name, seeds in (("one", (0, 1)), ("two", (1, 2))):
        tw.save(with_constants(*map(large, seeds)), tmp_path / f"{name}.tw")
    one = tw.load_artifact(tmp_path / "one.tw")
    with Session(one, 1) as session:
        two = tw.load_artifact(tmp_path / "two.tw")
        assert address_of(two.constants[1]) == address_of(one.constants[2])
        np.testing.assert_array_equal(two.constants[2], large(2))
        with Session(two, 1) as other:
            for s in (session, other):
                np.testing.assert_array_equal(s.run({"a": A, "b": A})["sum"], A * 3)
    digest = one.digests[1]
    assert weights.shared_bytes(digest, 4 * LARGE) is not None
    del one, two
    gc.collect()
    assert weights.shared_bytes(digest, 4 * LARGE) is None  # closed sessions hold nothing


def test_every_large_constant_is_checked(tmp_path: Path) -> None:
    data = tw.to_bytes(with_constants(large(0), large(1)))
    for at in (len(data) - 1, len(data) - 4 * LARGE, len(data) - 8 * LARGE + 3):
        flipped = bytearray(data)
        flipped[at] ^= 4
        (tmp_path / "p.tw").write_bytes(flipped)
        with pytest.raises(UserError, match="checksum of the weights"):
            tw.load_artifact(tmp_path / "p.tw")
        with pytest.raises(UserError, match="checksum of the weights"):
            tw.from_bytes(bytes(flipped))


def test_a_program_of_the_cache_says_that_it_is_not_whole(tmp_path: Path) -> None:
    data = b"".join(tw.chunks(with_constants(large(0)), with_large=False))
    (tmp_path / "p.tw").write_bytes(data)
    assert len(data) < large(0).nbytes
    for mapped in (False, True):
        with pytest.raises(UserError, match="weights are elsewhere"):
            tw.load_artifact(tmp_path / "p.tw", mapped=mapped)
    assert os.listdir(tmp_path) == ["p.tw"]

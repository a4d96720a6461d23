"""Weights in pieces: every damaged byte is found, by one thread or several."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from tilewright.runtime import memory, pieces
from tilewright.runtime.memory import Constants, Shelf
from tilewright.runtime.pieces import FileBytes, HeldBytes, are_whole, checksums

DATA = np.random.default_rng(0).bytes(1000)


@pytest.fixture(autouse=True, params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 64)
    monkeypatch.setattr(pieces, "default_threads", lambda: request.param)


def readers(tmp_path: Path) -> list[Callable[[bytes, int, list[int]], bool]]:
    """Both ways to check: in memory, and while reading a file."""

    def from_file(data: bytes, size: int, sums: list[int]) -> bool:
        (tmp_path / "f").write_bytes(b"header" + data)
        into = memoryview(bytearray(size))
        file = os.open(tmp_path / "f", os.O_RDONLY)
        try:
            stretch = FileBytes(lambda: nullcontext(file), 6, into, sums)
            return are_whole([stretch]) == [True] and bytes(into) == data[:size]
        finally:
            os.close(file)

    return [
        lambda data, size, sums: are_whole([HeldBytes(memoryview(data)[:size], sums)]) == [True],
        from_file,
    ]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 128, 1000])
def test_pieces_do_not_depend_on_parts(tmp_path: Path, size: int) -> None:
    data = DATA[:size]
    sums = checksums([data])
    assert len(sums) == -(-size // 64)
    assert sums == checksums([data[:10], b"", memoryview(data)[10:100], data[100:]])
    for check in readers(tmp_path):
        assert check(data, size, sums)


def test_every_flip_and_cut_is_found(tmp_path: Path) -> None:
    sums = checksums([DATA])
    for check in readers(tmp_path):
        for at in range(0, 1000, 37):
            damaged = bytearray(DATA)
            damaged[at] ^= 4
            assert not check(bytes(damaged), 1000, sums)
        assert not check(DATA[:999], 1000, sums)
        assert not check(DATA, 1000, sums[:-1])
        assert not check(DATA, 1000, [*sums, 0])


def test_damage_is_found_where_it_is() -> None:
    """Of many parts, several of which are read by one job."""
    parts = [DATA[:n] for n in (10, 64, 0, 30, 33, 200, 1, 64, 65, 5)]
    assert all(are_whole([HeldBytes(memoryview(p), checksums([p])) for p in parts]))
    for bad in (0, 1, 3, 5, 9):
        data = [bytearray(p) for p in parts]
        data[bad][-1] ^= 1
        held = [HeldBytes(memoryview(d), checksums([p])) for d, p in zip(data, parts, strict=True)]
        assert [i for i, is_whole in enumerate(are_whole(held)) if not is_whole] == [bad]


def test_constants_on_a_shelf_stay_where_they_are() -> None:
    shelf = Shelf()
    arrays = [shelf.empty((n, 3), np.dtype(np.float32)) for n in (1, 7, 1000)]
    for n, a in enumerate(arrays):
        a[...] = n
    large = shelf.empty(((65 << 20) // 4,), np.dtype(np.float32))  # larger than a shelf
    own = np.ones(5, np.float32)
    constants = Constants([*arrays, large, own])
    for a, view, address in zip(arrays, constants.arrays[:3], constants.addresses[:3], strict=True):
        assert address == a.ctypes.data and address % memory.ALIGN == 0
        assert not view.flags.writeable and np.array_equal(view, a)
    assert constants.addresses[3] == large.ctypes.data
    assert constants.addresses[4] != own.ctypes.data and constants.arrays[4].tolist() == [1] * 5

"""Large constants in the disk cache: programs have them in common, and whatever happens to one is a miss."""

import fcntl
import gc
import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.unit.test_runtime_weights import large, with_constants
from tilewright.runtime import cache_folder
from tilewright.runtime import file as tw
from tilewright.runtime.cache import Cache
from tilewright.runtime.weights import LARGE
from tilewright.support.artifact import Artifact
from tilewright.support.errors import UserError

pytestmark = pytest.mark.usefixtures("few_objects")

SIZE = 4 * LARGE  # of a blob


def key(n: int) -> str:
    return f"{n:08x}"


def put(cache: Cache, n: int, *seeds: int) -> None:
    """A program whose large constants come from these seeds."""
    program = with_constants(*map(large, seeds))
    cache.put_program(key(n), tw.chunks(program, with_large=False), tw.blobs(program))


def get(cache: Cache, n: int) -> Artifact | None:
    """As `load` does it."""
    gc.collect()  # what is in memory is not read
    path = cache.find_program(key(n))
    if path is None:
        return None
    try:
        return tw.load_artifact(path, blobs=cache)
    except UserError as e:
        cache.discard_program(key(n), e.message)
        return None


def check(cache: Cache, n: int, *seeds: int) -> None:
    found = get(cache, n)
    assert found is not None
    check_constants(found, *seeds)


def check_constants(found: Artifact, *seeds: int) -> None:
    for array, seed in zip(found.constants[1:], seeds, strict=True):
        np.testing.assert_array_equal(array, large(seed))


def blob(cache_path: Path, seed: int) -> Path:
    return cache_path / (hashlib.sha256(large(seed)).hexdigest() + ".tww")


def size_of(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.iterdir())


def test_programs_have_blobs_in_common(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c")
    put(cache, 0, 1, 2)
    put(cache, 1, 2, 3)
    for n, seeds in ((0, (1, 2)), (1, (2, 3))):
        check(Cache(tmp_path / "c"), n, *seeds)
    blobs = sorted((tmp_path / "c").glob("*.tww"))
    assert blobs == sorted(blob(tmp_path / "c", s) for s in (1, 2, 3))
    assert {p.stat().st_mode & 0o777 for p in blobs} == {0o600}
    assert size_of(tmp_path / "c") < 3 * SIZE + 2 * 100_000


@pytest.mark.parametrize("how", ["flip", "cut", "empty", "delete", "mode", "link", "longer"])
def test_a_blob_that_is_wrong_is_a_miss_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    folder = tmp_path / "c"
    cache = Cache(folder)
    put(cache, 0, 1, 2)
    put(cache, 1, 2)
    put(cache, 2, 3)
    path = blob(folder, 2)
    data = bytearray(path.read_bytes())
    if how == "delete":
        path.unlink()
    elif how == "mode":
        path.chmod(0o666)
    elif how == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        data[SIZE // 2] ^= 1
        path.write_bytes({"flip": data, "cut": data[:-1], "longer": data + b"x"}.get(how, b""))
    with caplog.at_level(logging.WARNING):
        assert get(cache, 0) is None and get(cache, 1) is None
    told = {r.message.split(":")[0] for r in caplog.records}
    assert 1 <= len(caplog.records) == len(told) <= 2  # whose it is, and that a program is of no use
    check(cache, 2, 3)
    put(cache, 0, 1, 2)
    put(cache, 1, 2)
    for n, seeds in ((0, (1, 2)), (1, (2,))):
        check(cache, n, *seeds)


def test_blobs_stay_while_a_program_names_them(tmp_path: Path) -> None:
    """The program used longest ago goes, and with it what no other names; all others are still whole."""
    folder = tmp_path / "c"
    cache = Cache(folder, capacity=6 * SIZE)
    for n, seeds in enumerate(((0, 1), (0, 2), (0, 3), (0, 4))):
        put(cache, n, *seeds)
        os.utime(folder / f"{key(n)}.tw", (n, n))
    check(cache, 0, 0, 1)  # just used
    put(cache, 4, 0, 5)  # more than there is room for
    assert size_of(folder) <= 6 * SIZE
    assert [cache.find_program(key(n)) is not None for n in range(5)] == [True, False, False, True, True]
    assert [blob(folder, s).exists() for s in range(6)] == [True, True, False, False, True, True]
    for n, s in ((0, 1), (3, 4), (4, 5)):
        check(cache, n, 0, s)


def test_a_blob_counts_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c", capacity=4 * SIZE)
    for n in range(8):
        put(cache, n, 1, 2)
    for n in range(8):
        check(cache, n, 1, 2)
    put(cache, 9, 1, 2, 3, 4, 5)  # does not fit, whatever else goes
    assert cache.find_program(key(9)) is None and not blob(tmp_path / "c", 3).exists()


def test_blobs_that_nobody_names_go(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    put(Cache(folder), 0, 1)
    put(Cache(folder), 1, 2)
    (folder / f"{key(0)}.tw").unlink()
    Cache(folder).put("ab" * 8, b"the first entry of a process")
    assert not blob(folder, 1).exists()
    check(Cache(folder), 1, 2)


def test_a_full_disk_leaves_nothing_and_hurts_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "c"
    cache = Cache(folder)
    put(cache, 0, 1)
    before, sync, count = sorted(folder.iterdir()), os.fsync, 0

    def full(file: int) -> None:
        nonlocal count
        count += 1
        if count > 2:  # two more blobs have room
            raise OSError(28, "No space left on device")
        sync(file)

    monkeypatch.setattr(os, "fsync", full)
    put(cache, 1, 1, 2, 3, 4)
    assert count == 3 and sorted(folder.iterdir()) == before
    assert "No space left" in caplog.text
    check(cache, 0, 1)


@contextmanager
def locked(folder: Path, kind: int) -> Iterator[None]:
    """As another process may hold it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, kind)
        yield
    finally:
        os.close(handle)


def test_nobody_removes_blobs_while_a_program_is_published(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    put(Cache(folder), 0, 1)
    blob(folder, 2).write_bytes(large(2).tobytes())  # its program is not there yet
    with locked(folder, fcntl.LOCK_SH):
        Cache(folder).put("ab" * 8, b"x")
        assert blob(folder, 2).exists()
    Cache(folder).put("ab" * 8, b"x")
    assert not blob(folder, 2).exists() and blob(folder, 1).exists()


def test_nothing_is_published_while_blobs_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache_folder, "_PATIENCE_SECONDS", 0.05)
    folder = tmp_path / "c"
    cache = Cache(folder)
    put(cache, 0, 1)
    with locked(folder, fcntl.LOCK_EX):
        put(cache, 1, 2)
        check(cache, 0, 1)  # readers do not wait
    assert "another process is cleaning up" in caplog.text and cache.find_program(key(1)) is None
    put(cache, 1, 2)
    check(cache, 1, 2)


PROCESS = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.unit.test_runtime_blobs import Cache, SIZE, check_constants, get, put
cache = Cache(Path(sys.argv[2]), capacity=5 * SIZE)
count = 0
for i in range(40):
    n = (i // 2 * int(sys.argv[3])) % 7
    found = get(cache, n)
    if found is None:
        put(cache, n, n, n + 1)
    else:
        check_constants(found, n, n + 1)
        count += 1
print(count)
"""


def test_processes_share_blobs(tmp_path: Path) -> None:
    """With room for a few programs only, so that they are removed all the time; what is found is right."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", PROCESS, str(root), str(tmp_path / "c")]
    children = [
        subprocess.Popen([*command, str(step)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for step in (1, 3)
    ]
    for child in children:
        found, errors = child.communicate(timeout=120)
        assert child.returncode == 0, errors
        assert int(found) > 0

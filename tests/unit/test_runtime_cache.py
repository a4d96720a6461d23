"""The disk cache: entries come back, everything else is a miss."""

import logging
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.runtime.cache import Cache, default_cache
from tilewright.search.database import database_path
from tilewright.support.errors import InternalError, UserError

KEY = "0123456789abcdef"


def test_put_and_get(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new" / "cache")
    assert cache.get(KEY) is None
    cache.put(KEY, b"code")
    cache.put("ff" * 32, b"")
    assert (cache.get(KEY), cache.get("ff" * 32)) == (b"code", b"")
    cache.put(KEY, b"newer")
    assert Cache(tmp_path / "new" / "cache").get(KEY) == b"newer"
    assert (tmp_path / "new" / "cache").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", [b"", b"x", b"flip", b"cut"])
def test_damaged_entry_is_a_miss_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    cache = Cache(tmp_path / "c")
    keys = [KEY, KEY[::-1]]
    for key in keys:
        cache.put(key, b"payload")
    for path in (tmp_path / "c").iterdir():
        data = path.read_bytes()
        path.write_bytes({b"flip": data[:-1] + b"?", b"cut": data[:-1]}.get(damage, damage))
    with caplog.at_level(logging.WARNING):
        assert [cache.get(k) for k in keys] == [None, None]
    assert len([r for r in caplog.records if "damaged" in r.message]) == 1
    cache.put(KEY, b"again")
    assert cache.get(KEY) == b"again"


def test_entry_of_another_key_is_not_mixed_up(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c")
    cache.put(KEY, b"one")
    assert cache.get(KEY[:-1] + "0") is None


def test_folder_that_others_can_write_to_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    for mode in (0o770, 0o707):
        folder.chmod(mode)
        cache = Cache(folder)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            cache.put(KEY, b"x")
            assert cache.get(KEY) is None
        assert len(caplog.records) == 1 and "chmod 700" in caplog.text
        assert not list(folder.iterdir())


def test_foreign_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "c"
    Cache(folder).put(KEY, b"x")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with caplog.at_level(logging.WARNING):
        assert Cache(folder).get(KEY) is None
    assert "belongs to somebody else" in caplog.text


def forge(path: Path, how: str) -> None:
    """Make an entry one that another user may have written."""
    if how == "owner":
        os.chown(path, os.geteuid() + 1, -1)
    elif how == "link":
        path.rename(path.with_suffix(".other"))
        path.symlink_to(path.with_suffix(".other"))
    elif how == "pipe":
        path.unlink()
        os.mkfifo(path, 0o600)
    else:
        path.chmod(int(how, 8))


FORGERIES = [
    pytest.param("owner", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root")),
    *("620", "602", "666", "link", "pipe"),
]


@pytest.mark.parametrize("how", FORGERIES)
def test_an_entry_that_others_may_have_written_is_a_miss_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Though the folder is private now, it may not have been so when the entry was put there."""
    cache, other = Cache(tmp_path / "c"), KEY[::-1]
    for key in (KEY, other):
        cache.put(key, b"code")
        cache.put_program(key, [b"program"])
    for path in list((tmp_path / "c").iterdir()):
        forge(path, how)
    with caplog.at_level(logging.WARNING):
        assert [cache.get(KEY), cache.get(other)] == [None, None]
        assert [cache.find_program(KEY), cache.find_program(other)] == [None, None]
    assert 1 <= len(caplog.records) <= 2  # of what cannot be opened, and of what must not be used
    cache.put(KEY, b"code")
    cache.put_program(KEY, [b"program"])
    assert cache.get(KEY) == b"code" and cache.find_program(KEY) is not None


def test_file_in_the_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "c").write_text("not a folder")
    cache = Cache(tmp_path / "c")
    cache.put(KEY, b"x")
    assert cache.get(KEY) is None
    assert "not a folder" in caplog.text
    below = Cache(tmp_path / "c" / "d")
    below.put(KEY, b"x")
    assert below.get(KEY) is None


def test_folder_that_cannot_be_written_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Root may write anywhere, so the refusal is made up."""
    cache = Cache(tmp_path / "c")
    cache.put(KEY, b"x")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tilewright.runtime.cache_folder.tempfile.mkstemp", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    with caplog.at_level(logging.WARNING):
        cache.put("ab" * 8, b"y")
        cache.put("ab" * 8, b"y")
    assert cache.get("ab" * 8) is None
    assert cache.get(KEY) == b"x"
    assert len(caplog.records) == 1


def test_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "c")

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    cache.put(KEY, b"x")
    assert cache.get(KEY) is None and not list((tmp_path / "c").iterdir())


def test_least_recently_used_go_first(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    cache = Cache(folder, capacity=10_000)
    folder.mkdir(mode=0o700)
    (folder / "notes.txt").write_text("not ours")
    keys = [f"{i:08x}" for i in range(12)]
    for i, key in enumerate(keys[:8]):
        cache.put(key, bytes(1000))
        os.utime(folder / f"{key}.twc", (i, i))
    assert cache.get(keys[0]) is not None  # just used
    for key in keys[8:]:
        cache.put(key, bytes(1000))
    kept = [k for k in keys if cache.get(k) is not None]
    assert keys[0] in kept and keys[1] not in kept and keys[-1] in kept
    assert sum(p.stat().st_size for p in folder.glob("*.twc")) <= 10_000
    assert (folder / "notes.txt").exists()
    cache.put("aa" * 8, bytes(20_000))
    assert cache.get("aa" * 8) is None  # larger than the whole cache


def test_leftovers_of_dead_processes_go(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir(mode=0o700)
    old, new = folder / ".tilewright-staged-1", folder / ".tilewright-staged-2"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    Cache(folder).put(KEY, b"x")
    assert not old.exists() and new.exists()


WRITER = """
import sys
from pathlib import Path
from tilewright.runtime.cache import Cache
cache = Cache(Path(sys.argv[1]), capacity=200_000)
for i in range(150):
    key = f"{i % 7:08x}"
    data = cache.get(key)
    assert data is None or data == key.encode() * 5000, "mixed up"
    cache.put(key, key.encode() * 5000)
"""


def test_processes_share_a_cache(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "c")]
    children = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for child in children:
        _, errors = child.communicate(timeout=60)
        assert child.returncode == 0 and not errors, errors


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TILEWRIGHT_CACHE_MIB", raising=False)
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    off = default_cache()
    off.put(KEY, b"x")
    assert not off.is_on and off.get(KEY) is None
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "mine"))
    default_cache().put(KEY, b"x")
    assert (tmp_path / "mine").is_dir()
    monkeypatch.delenv("TILEWRIGHT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    default_cache().put(KEY, b"x")
    assert (tmp_path / "xdg" / "tilewright").is_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    default_cache().put(KEY, b"x")
    assert (tmp_path / "home" / ".cache" / "tilewright").is_dir()
    monkeypatch.setenv("TILEWRIGHT_CACHE_MIB", "lots")
    with pytest.raises(UserError, match="whole number of MiB"):
        default_cache()


@pytest.mark.parametrize("home", ["relative", "", "./x", None])
def test_folders_are_absolute_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str | None
) -> None:
    """Otherwise there would be one in every folder that a program is started in."""
    monkeypatch.chdir(tmp_path)
    for name in ("TILEWRIGHT_CACHE", "TILEWRIGHT_DB", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, "relative")
    if home is not None:
        monkeypatch.setenv("HOME", home)
    entry = pwd.getpwuid(os.getuid())
    real = tmp_path / "real"
    fields = [*entry[:5], str(real), entry[6]]
    monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd(fields))
    default_cache().put(KEY, b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["real"]
    assert (real / ".cache" / "tilewright").is_dir()
    assert database_path() == real / ".local" / "share" / "tilewright" / "tuning.db"


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: int) -> None:
        raise KeyError

    for name in ("TILEWRIGHT_CACHE", "TILEWRIGHT_DB", "HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert not default_cache().is_on and database_path() is None


@pytest.mark.parametrize("key", ["", "short", "../../../../etc/passwd", "ABCDEF0123", "g" * 16])
def test_keys_are_hexadecimal(tmp_path: Path, key: str) -> None:
    with pytest.raises(InternalError):
        Cache(tmp_path / "c").put(key, b"x")

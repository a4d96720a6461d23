"""What all commands have, and those that keep an installation in order: verbosity, completion, the cache."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from examples.models import mlp
from tilewright.cli.main import main
from tilewright.runtime.cache import Cache
from tilewright.runtime.cache_contents import clear, contents
from tilewright.support.errors import UserError

KEY = "0123456789abcdef"


def call(*arguments: str, **extra: str) -> Result:
    return CliRunner().invoke(main, list(arguments), input=extra.get("answer"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two entries, of which one was not used for two days."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(folder))
    cache = Cache(folder)
    cache.put(KEY, b"new")
    cache.put(KEY[::-1], b"old")
    then = time.time() - 2 * 86400
    os.utime(folder / f"{KEY[::-1]}.twc", (then, then))
    return folder


# --------------------------------------------------------------------------------------------------------------- cache


def test_show_counts_by_kind(folder: Path) -> None:
    shown = json.loads(call("cache", "show", "--json").stdout)
    assert shown["folder"] == str(folder) and shown["unused_because"] is None
    assert shown["limit_bytes"] == 2048 << 20
    (entries,) = (k for k in shown["kinds"] if k["name"] == "objects and notes")
    assert entries["files"] == 2 and entries["bytes"] == shown["bytes"] > 0
    assert entries["newest_seconds"] < 3600 < 86400 < entries["oldest_seconds"]
    text = call("cache", "show").stdout
    assert str(folder) in text.replace("\n", "") and "2 d" in text


def test_clear_asks_first(folder: Path) -> None:
    kept = call("cache", "clear", answer="n\n")
    assert kept.exit_code == 1 and len(list(folder.iterdir())) == 2
    assert call("cache", "clear", answer="y\n").exit_code == 0
    assert not list(folder.iterdir())


def test_clear_what_is_old(folder: Path) -> None:
    found = json.loads(call("cache", "clear", "--yes", "--older-than", "1d", "--json").stdout)
    assert found["files"] == 1 and found["bytes"] > 0
    assert [p.name for p in folder.iterdir()] == [f"{KEY}.twc"]
    assert call("cache", "clear", "--older-than", "soon").exit_code == 2


def test_a_folder_with_other_files_is_left_alone(folder: Path) -> None:
    (folder / "thesis.txt").write_text("years of work")
    refused = call("cache", "clear", "--yes")
    assert refused.exit_code == 1 and "thesis.txt is no file of the cache" in refused.stderr
    assert len(list(folder.iterdir())) == 3


def test_a_link_in_the_folder_is_no_entry(folder: Path) -> None:
    (folder / f"{'ab' * 8}.tw").symlink_to("/etc/hostname")
    with pytest.raises(UserError, match="no file of the cache"):
        clear(folder)


def test_a_folder_that_others_can_write_to_is_not_emptied(folder: Path) -> None:
    folder.chmod(0o777)
    refused = call("cache", "clear", "--yes")
    assert refused.exit_code == 1 and "others can write to it" in refused.stderr
    assert len(list(folder.iterdir())) == 2
    assert "others can write" in json.loads(call("cache", "show", "--json").stdout)["unused_because"]


def test_a_cache_that_is_off_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "absent"))
    assert json.loads(call("cache", "show", "--json").stdout)["bytes"] == 0
    assert json.loads(call("cache", "clear", "--yes", "--json").stdout)["files"] == 0
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    assert json.loads(call("cache", "show", "--json").stdout)["folder"] is None
    assert call("cache", "clear", "--yes").exit_code == 1


def test_clear_while_others_write(tmp_path: Path) -> None:
    """Nobody fails, and what is there in the end can be read."""
    cache, stop = Cache(tmp_path / "cache"), threading.Event()
    cache.put(KEY, b"x")

    def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            cache.put(f"{n % 50:016x}", bytes(100), sync=False)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(50):
            clear(tmp_path / "cache")
            contents(tmp_path / "cache")
    finally:
        stop.set()
        writer.join()
    left = [p.stem for p in (tmp_path / "cache").iterdir()]
    assert all(cache.get(key) == bytes(100) for key in left)


def test_a_cleared_program_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(folder))
    model = tmp_path / "m.onnx"
    model.write_bytes(mlp((256, 256)).SerializeToString())  # with weights that are a file of their own
    first = call("run", str(model), "--json")
    assert {k.name: k.files for k in contents(folder)}["constants"] > 0
    assert clear(folder)[0] > 2 and not list(folder.iterdir())
    assert call("run", str(model), "--json").stdout == first.stdout


# ----------------------------------------------------------------------------------------------------------- verbosity


@pytest.mark.parametrize("place", ["before", "after"])
def test_verbosity_before_or_after_the_command(place: str, folder: Path, tmp_path: Path) -> None:
    """The log says why a folder is not used: a warning."""
    folder.chmod(0o777)
    model = tmp_path / "m.onnx"
    model.write_bytes(mlp((8, 4)).SerializeToString())

    def run(*flags: str) -> Result:
        words = ["run", str(model)]
        return call(*([*flags, *words] if place == "before" else [*words, *flags]))

    loud = run("-v")
    assert loud.exit_code == 0 and "is not used: others can write to it" in loud.stderr
    assert logging.getLogger("tilewright").level == logging.INFO
    assert run("-vv").exit_code == 0 and logging.getLogger("tilewright").level == logging.DEBUG
    quiet = run("-q")
    assert quiet.exit_code == 0 and quiet.stderr == "" and quiet.stdout == loud.stdout
    assert run().exit_code == 0 and logging.getLogger("tilewright").level == logging.NOTSET


def test_quiet_hides_remarks_and_not_errors(tmp_path: Path) -> None:
    assert "error: cannot read" in call("-q", "run", str(tmp_path / "absent.onnx")).stderr
    both = call("-q", "cache", "show", "-v")
    assert both.exit_code == 2 and "exclude each other" in both.stderr
    assert "--quiet" in call("cache", "show", "--help").stdout


# ---------------------------------------------------------------------------------------------------------- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell: str) -> None:
    printed = call("completion", shell)
    assert printed.exit_code == 0 and f"_TILEWRIGHT_COMPLETE={shell}_complete" in printed.stdout
    assert json.loads(call("completion", shell, "--json").stdout)["script"] in printed.stdout


@pytest.mark.parametrize(
    ("words", "wanted"), [("tilewright ca", "cache"), ("tilewright run --thr", "--threads")]
)
def test_what_is_completed(words: str, wanted: str) -> None:
    """As the script of bash asks for it."""
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    code = (
        "import sys\nfrom tilewright.cli.entry import main\nsys.argv = ['tilewright']\n"
        "try:\n    main()\nfinally:\n    assert not {'numpy', 'onnx', 'rich'} & sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **asked, "_TILEWRIGHT_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"plain,{wanted}" in done.stdout.splitlines(), done.stderr

"""What all tests share: golden texts, and the checks that every Func in hand should pass."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tilewright.tir.compare import same_func
from tilewright.tir.func import Func
from tilewright.tir.parser import parse_func
from tilewright.tir.printer import print_func
from tilewright.tir.verify import verify_func

# Tests start a few hundred processes: without bytecode, each would compile our sources for itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A test finds nothing that the user, or another run, has compiled; those of one process share what they compile.
os.environ["TILEWRIGHT_CACHE"] = tempfile.mkdtemp(prefix="tilewright-tests-")
atexit.register(shutil.rmtree, os.environ["TILEWRIGHT_CACHE"], ignore_errors=True)
os.environ["TILEWRIGHT_DB"] = "off"  # nor does what was tuned decide what tests compile
os.environ["TILEWRIGHT_FIGURES"] = "off"  # nor what was measured on this host
os.environ["TILEWRIGHT_COST_MODEL"] = "off"  # nor what was learned: most are about closed forms
os.environ["TILEWRIGHT_SECONDS_MODEL"] = "off"
# Tests keep all cores busy, so that a process for each compilation would only cost its start; where they are tried,
# they are asked for.
os.environ.setdefault("TILEWRIGHT_WORKERS", "0")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background; tests interrupt processes
    signal.signal(signal.SIGINT, signal.default_int_handler)

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bless", action="store_true", help="write the golden texts instead of comparing with them"
    )


def pytest_collection_finish() -> None:
    """Thousands of tests that wait for their turn are alive to the end: no collection need look at them again. Others
    come more rarely: most of what compilations make is gone without.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="module")
def few_objects() -> None:
    """For tests that collect garbage: what others have left alive is not looked at again each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("name.txt", text)`: the text is that of tests/golden/name.txt; `--bless` makes it so."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--bless"):
            path.write_text(text)
        assert path.is_file(), f"{path} is missing: run pytest with --bless and read what it wrote"
        assert text == path.read_text(), f"{path} differs: if the new text is right, run pytest with --bless"

    return check


@pytest.fixture
def sound() -> Callable[[Func], Func]:
    """Checks that a Func keeps the rules and survives the way to text and back; returns it."""

    def check(func: Func) -> Func:
        verify_func(func)
        text = print_func(func)
        assert same_func(parse_func(text), func), text
        return func

    return check

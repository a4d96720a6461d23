"""oneDNN's library: that it is not there, cannot be loaded or refuses something is said in words."""

from collections.abc import Iterator
from ctypes import CDLL
from importlib.metadata import PackagePath
from typing import Any

import pytest

from tilewright.plugins.onednn import library
from tilewright.plugins.onednn.library import LibraryError, call, dnnl_functions


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """What was found is found again in each test."""
    dnnl_functions.cache_clear()
    yield
    dnnl_functions.cache_clear()


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "PACKAGE", "nonesuch")
    with pytest.raises(LibraryError, match=r"nonesuch is not installed: pip install 'tilewright\[onednn\]'"):
        dnnl_functions()


def test_a_package_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    class Package:
        files = (PackagePath("readme.txt"),)

    monkeypatch.setattr(library, "distribution", lambda package: Package)
    with pytest.raises(LibraryError, match=r"libdnnl\.so\.3 of onednn-cpu-gomp cannot be loaded"):
        dnnl_functions()


def test_a_status_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """`toupper` gives back what it gets, if that is no letter."""

    class Functions:
        def __getattr__(self, name: str) -> Any:
            return getattr(CDLL("libc.so.6"), name.removeprefix("dnnl_"))

    monkeypatch.setattr(library, "dnnl_functions", Functions)
    call("toupper", 0)
    with pytest.raises(LibraryError, match="dnnl_toupper: out of memory"):
        call("toupper", 1)
    with pytest.raises(LibraryError, match="dnnl_toupper: 33"):
        call("toupper", 33)

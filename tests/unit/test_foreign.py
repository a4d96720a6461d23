"""Libraries of others: that they are not there, cannot be loaded or refuse something is said in words."""

from importlib.metadata import PackagePath

import pytest

from tilewright.plugins import foreign
from tilewright.plugins.foreign import ForeignError, Library


class Package:
    """Pretends to be installed, with the C library of the system."""

    def __init__(self, *files: str) -> None:
        self._files = files

    @property
    def files(self) -> list[PackagePath]:
        return [_At(f) for f in self._files]


class _At(PackagePath):
    def locate(self) -> str:  # the system finds it
        return str(self)


def library(monkeypatch: pytest.MonkeyPatch, *files: str) -> Library:
    monkeypatch.setattr(foreign, "distribution", lambda package: Package(*files))
    return Library("package", "libc.so.6", "to", "extra", ("fine", "out of luck"))


def test_a_package_that_is_not_installed() -> None:
    with pytest.raises(ForeignError, match=r"nonesuch is not installed: pip install 'tilewright\[extra\]'"):
        Library("nonesuch", "libnone.so", "none_", "extra", ())


def test_a_package_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ForeignError, match=r"libc\.so\.6 of package cannot be loaded"):
        library(monkeypatch, "readme.txt")


def test_a_status_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """`toupper` gives back what it gets, if that is no letter."""
    found = library(monkeypatch, "libc.so.6")
    found.call("upper", 0)
    with pytest.raises(ForeignError, match="toupper: out of luck"):
        found.call("upper", 1)
    with pytest.raises(ForeignError, match="toupper: 33"):
        found.call("upper", 33)

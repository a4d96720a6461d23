"""Packages that a plugin stands on, and that may not be there."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from tilewright.graph.external import YES, Answer, No


def installed_version(package: str) -> str:
    """Empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def needs(package: str, extra: str) -> Answer:
    """Whether a package can be imported; `extra` of ours brings it."""
    if find_spec(package) is not None:
        return YES
    return No(f"{package} is not installed: pip install 'tilewright[{extra}]'")

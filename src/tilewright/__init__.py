"""Tilewright: a tensor compiler in which graph, layouts, loops and tensor instructions are chosen together."""

from tilewright.version import __version__

__all__ = ["__version__"]

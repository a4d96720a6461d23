"""Tilewright: a tensor compiler in which graph, layouts, loops and tensor instructions are chosen together."""

__version__ = "0.1.0"

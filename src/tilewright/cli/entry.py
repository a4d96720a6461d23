"""Where the `tilewright` command begins: it can be interrupted before anything else is imported."""

from importlib import import_module

from tilewright.cli.interrupts import end_at_once


def main() -> None:
    end_at_once()
    import_module("tilewright.cli.main").main()

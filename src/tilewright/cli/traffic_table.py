"""How `inspect --traffic` shows what kernels move."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from tilewright.cli.output import milliseconds, print_table

_BEFORE = ("kernel", "calls", "time", "must move")  # then a column for each level
_AFTER = ("GB/s", "estimate", "of limit", "bound by")


def with_times(view: Mapping[str, Any], measured: Mapping[str, float]) -> dict[str, Any]:
    """The view with the seconds of kernels that were run."""
    kernels = [{**k, "measured_seconds": measured.get(k["name"])} for k in view["kernels"]]
    return {**view, "kernels": sorted(kernels, key=lambda k: -_time(k))}


def total_of(view: Mapping[str, Any]) -> dict[str, Any]:
    kernels = view["kernels"]
    measured = [k["measured_seconds"] for k in kernels]
    return {
        "must_move_bytes": sum(k["must_move_bytes"] for k in kernels),
        "moved_bytes": {level: sum(k["moved_bytes"][level] for k in kernels) for level in view["levels"]},
        "estimated_seconds": sum(k["estimated_seconds"] for k in kernels),
        "measured_seconds": None if not measured or None in measured else sum(measured),
    }


def show_traffic(view: Mapping[str, Any]) -> None:
    levels = view["levels"]
    rows = [_row(k, levels) for k in view["kernels"]]
    total = {
        **total_of(view),
        "name": "all",
        "calls": sum(k["calls"] for k in view["kernels"]),
        "bound_by": "",
    }
    print_table((*_BEFORE, *levels, *_AFTER), [*rows, _row(total, levels)])
    is_measured = total["measured_seconds"] is not None
    time = "time: measured" if is_measured else "time: estimated, nothing was run; --profile measures it"
    click.echo(f"\nbytes by the level that they come from or go to; {time}")
    click.echo(f"estimates for {view['threads']} thread(s) of {view['machine']}")


def _row(k: Mapping[str, Any], levels: Sequence[str]) -> tuple[str | int, ...]:
    seconds = _time(k)
    rate = k["must_move_bytes"] / seconds if seconds else 0.0
    is_measured = k["measured_seconds"] is not None
    return (
        k["name"],
        k["calls"],
        milliseconds(seconds),
        bytes_text(k["must_move_bytes"]),
        *(bytes_text(k["moved_bytes"][level]) for level in levels),
        f"{rate / 1e9:.1f}",
        milliseconds(k["estimated_seconds"]),
        f"{100 * k['estimated_seconds'] / seconds:.0f} %" if is_measured and seconds else "",
        k["bound_by"],
    )


def _time(k: Mapping[str, Any]) -> float:
    measured = k["measured_seconds"]
    return k["estimated_seconds"] if measured is None else measured


def bytes_text(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"

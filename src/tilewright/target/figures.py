"""Figures of this host that were measured (`tilewright doctor --calibrate`), where they are kept, and what is used.

    $TILEWRIGHT_FIGURES, or tilewright/figures/<digest of the CPU's model>.json in $XDG_DATA_HOME or ~/.local/share;
    TILEWRIGHT_FIGURES=off uses those that are shipped

A file is written whole or not at all. One that cannot be read, is of another CPU, or has figures that no machine has,
is ignored with a warning: figures make programs slower or faster, never wrong.
"""

import json
import logging
import math
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from tilewright.support.errors import UserError
from tilewright.support.user_folders import user_folder
from tilewright.target.machine import Machine

_log = logging.getLogger("tilewright")

_VERSION = 1
_VARIABLE = "TILEWRIGHT_FIGURES"
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Figures:
    """What is measured, in the units of `Machine`."""

    hertz: float
    fma_per_cycle: float
    loads_per_cycle: float
    fma_latency: float
    l2_rate: float
    l3_rates: tuple[float, ...]
    memory_rates: tuple[float, ...]
    meeting_seconds: float

    def check(self) -> None:
        """ValueError if a figure is none that a machine could have."""
        for f in fields(self):
            value: object = getattr(self, f.name)
            low, high = _RANGES[f.name]
            values = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
            if not values or not all(_is_within(v, low, high) for v in values):
                raise ValueError(f"{f.name} = {value!r} is not between {low:g} and {high:g}")

    def of(self, machine: Machine, name: str) -> Machine:
        """The machine of this name with these figures."""
        return replace(
            machine,
            name=name,
            hertz=self.hertz,
            fma_per_cycle=self.fma_per_cycle,
            loads_per_cycle=self.loads_per_cycle,
            fma_latency=self.fma_latency,
            l2_rate=self.l2_rate,
            l3_rates=self.l3_rates,
            memory_rates=self.memory_rates,
            meeting_seconds=self.meeting_seconds,
        )


# The least and the most that is believed.
_RATE = (1e8, 1e14)
_RANGES: dict[str, tuple[float, float]] = {
    "hertz": (1e8, 2e10),
    "fma_per_cycle": (0.1, 16),
    "loads_per_cycle": (0.1, 16),
    "fma_latency": (1, 64),
    "l2_rate": _RATE,
    "l3_rates": _RATE,
    "memory_rates": _RATE,
    "meeting_seconds": (1e-9, 1e-3),
}


def _is_within(value: object, low: float, high: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and low <= value <= high


def figures_path(model: str) -> Path | None:
    """Where those of a CPU are; None if they are turned off, or there is no home directory."""
    plugin_options = os.environ.get(_VARIABLE, "")
    if plugin_options.lower() == "off":
        return None
    if plugin_options:
        return Path(plugin_options)
    folder = user_folder("XDG_DATA_HOME", ".local/share")
    name = sha256(model.encode()).hexdigest()[:16]
    return None if folder is None else folder / "tilewright" / "figures" / f"{name}.json"


def save_figures(figures: Figures, model: str, when: str) -> Path:
    """Keep them for the CPU of this model; the file that they are in."""
    figures.check()
    path = figures_path(model)
    if path is None:
        raise UserError(
            "figures cannot be kept: there is no place for them", hint=f"{_VARIABLE}=FILE names one"
        )
    text = json.dumps({"version": _VERSION, "cpu": model, "when": when, "figures": asdict(figures)}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f".{path.name[:200]}.{os.getpid()}.partial")
        try:
            with open(staged, "w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(staged, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(staged)
    except OSError as e:
        raise UserError(f"the figures cannot be kept: {e.strerror}", where=str(path)) from None
    return path


def calibrated(shipped: Machine, model: str) -> Machine:
    """The machine with the figures that were measured on a CPU of this model; as it is, if there are none."""
    path = figures_path(model)
    if path is None:
        return shipped
    try:
        with open(path, "rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return shipped
    except OSError as e:
        _log.warning("figures of this machine are ignored: %s: %s", path, e.strerror)
        return shipped
    try:
        return _parsed(raw, shipped, model)
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        _log.warning(
            "figures of this machine are ignored: %s: %s; `tilewright doctor --calibrate` measures them anew",
            path,
            e,
        )
        return shipped


def _parsed(raw: bytes, shipped: Machine, model: str) -> Machine:
    if len(raw) > _MOST_BYTES:
        raise ValueError("the file is too long")
    found: dict[str, Any] = json.loads(raw)
    if not isinstance(found, dict) or found.get("version") != _VERSION:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError("this is no file of figures that this version can read")
    if found["cpu"] != model:
        raise ValueError(f"they are of another CPU, {found['cpu']!r}")
    values: dict[str, Any] = {**found["figures"]}
    values |= {n: tuple(v) for n, v in values.items() if n.endswith("_rates")}
    figures = Figures(**values)
    figures.check()
    return figures.of(shipped, f"{model}, calibrated {str(found['when'])[:40]}")

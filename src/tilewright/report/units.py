"""Numbers as people read them: three digits and a unit."""

import math

_SMALL = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_BYTES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def digits(value: float) -> str:
    """Three significant ones, and no exponent for what pages show."""
    if not value or not math.isfinite(value):
        return "0" if not value else "–"
    value = float(f"{value:.3g}")
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 6)}f}"


def seconds_text(value: float) -> str:
    scale, unit = next(((s, u) for s, u in _SMALL if value >= s), _SMALL[-1])
    return f"{digits(value / scale)} {unit}" if value else "0 s"


def count_text(value: float, unit: str) -> str:
    """`1.23 GFLOP`, `45.6 GB/s`."""
    scale, prefix = next(((s, p) for s, p in _LARGE if value >= s), _LARGE[-1])
    return f"{digits(value / scale)} {prefix}{unit}"


def size_text(value: float) -> str:
    scale, unit = next(((s, u) for s, u in _BYTES if value >= s), _BYTES[-1])
    return f"{digits(value / scale)} {unit}"


def share_text(value: float) -> str:
    percent = 100 * value
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.0f} %" if percent >= 99.95 or percent == 0 else f"{percent:.1f} %"

"""Charts of a report as SVG: the roofline, and the memory of a run."""

import math
from collections.abc import Iterator, Sequence
from html import escape

from tilewright.report.data import ArenaTensor, KernelFacts, ReportData
from tilewright.report.units import count_text, digits, share_text, size_text

_WIDTH, _HEIGHT = 560.0, 330.0
_LEFT, _RIGHT, _TOP, _FOOT = 54.0, 14.0, 14.0, 40.0
_LABELLED = 3  # kernels that have their names in the roofline
_MOST_POINTS, _MOST_TENSORS = 400, 600  # the largest


class _Log:
    """A logarithmic axis, in whole decades where labels stand."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = math.log10(low), math.log10(high)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        at = (math.log10(value) - self.low) / (self.high - self.low)
        return self._start + at * (self._end - self._start)

    def ticks(self) -> Iterator[float]:
        first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
        return (10.0**n for n in range(first, last + 1))


def roofline_svg(report: ReportData) -> str:
    """Each kernel a point: operations for each byte that it must move, and operations a second. Empty if no kernel has
    arithmetic that is known.
    """
    numbered = {n: k for n, k in enumerate(report.kernels) if k.flops and k.nbytes and k.seconds}
    shown = [*numbered.values()]
    if not shown:
        return ""
    peak, memory = report.machine.flop_rate, report.machine.byte_rate
    intensity = [_intensity(k) for k in shown]
    rates = [_rate(k) for k in shown]
    ridge = peak / memory
    x = _Log(min(*intensity, ridge) / 2.2, max(*intensity, ridge) * 2.2, _LEFT, _WIDTH - _RIGHT)
    low = max(min(rates), peak * 1e-5) / 2  # what takes no time to speak of would flatten the rest
    y = _Log(low, max(peak, *rates) * 1.9, _HEIGHT - _FOOT, _TOP)
    out = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="group"'
        ' aria-label="Roofline: operations a second against operations for each byte">'
    ]
    for t in x.ticks():
        out.append(f'<path class="grid" d="M{x(t):.1f} {_TOP}V{_HEIGHT - _FOOT}"/>')
        out.append(f'<text class="tick mid" x="{x(t):.1f}" y="{_HEIGHT - _FOOT + 15}">{_power(t)}</text>')
    for t in y.ticks():
        out.append(f'<path class="grid" d="M{_LEFT} {y(t):.1f}H{_WIDTH - _RIGHT}"/>')
        out.append(f'<text class="tick end" x="{_LEFT - 6}" y="{y(t) + 3.5:.1f}">{_power(t / 1e9)}</text>')
    first, last = 10**x.low, 10**x.high
    start = max(first, 10**y.low / memory)
    out.append(
        f'<path class="roof" d="M{x(start):.1f} {y(start * memory):.1f}L{x(ridge):.1f} {y(peak):.1f}H{x(last):.1f}"/>'
    )
    out.append(
        f'<text class="roofname end" x="{_WIDTH - _RIGHT - 2}" y="{y(peak) - 6:.1f}">'
        f"{escape(count_text(peak, 'FLOP/s'))}, multiply-add peak</text>"
    )
    low_end = start * (ridge / start) ** 0.22
    angle = math.degrees(math.atan2(y(low_end * memory) - y(ridge * memory), x(ridge) - x(low_end)))
    out.append(
        f'<text class="roofname mid" transform="translate({x(low_end):.1f} {y(low_end * memory) + 16:.1f})'
        f' rotate({-angle:.1f})">{escape(count_text(memory, "B/s"))} memory</text>'
    )
    top = sorted(numbered, key=lambda n: -numbered[n].seconds)
    for n in reversed(top[:_MOST_POINTS]):
        k = numbered[n]
        out.append(_point(report, n, x(_intensity(k)), y(max(_rate(k), low))))
    for rank, k in enumerate((numbered[n] for n in top[:_LABELLED]), 1):
        px, py = x(_intensity(k)), y(max(_rate(k), low))
        out.append(f'<text class="rank mid" x="{px:.1f}" y="{py + 3.5:.1f}" aria-hidden="true">{rank}</text>')
    out.append(
        f'<text class="tick mid" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 6}">FLOP for each byte that must'
        f' move</text><text class="tick mid" transform="translate(12 {(_HEIGHT - _FOOT) / 2:.0f}) rotate(-90)">'
        "GFLOP/s</text></svg>"
    )
    return "".join(out)


def slowest(report: ReportData) -> list[tuple[int, KernelFacts]]:
    """Those that the roofline has numbers for, with the indices of kernels."""
    shown = [n for n, k in enumerate(report.kernels) if k.flops and k.nbytes and k.seconds]
    return [
        (n, report.kernels[n]) for n in sorted(shown, key=lambda n: -report.kernels[n].seconds)[:_LABELLED]
    ]


def _point(report: ReportData, n: int, x: float, y: float) -> str:
    k = report.kernels[n]
    share = report.share(k.seconds)
    label = (
        f"{k.name}: {count_text(_rate(k), 'FLOP/s')} ({share_text(_rate(k) / report.machine.flop_rate)} of peak),"
        f" {digits(_intensity(k))} FLOP/byte, {share_text(share)} of the time"
    )
    return (
        f'<circle class="point" role="button" tabindex="0" data-kernel="{n}" cx="{x:.1f}"'
        f' cy="{y:.1f}" r="{4 + 14 * math.sqrt(share):.1f}" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title></circle>"
    )


def _intensity(k: KernelFacts) -> float:
    return (k.flops or 0) / (k.nbytes or 1)


def _rate(k: KernelFacts) -> float:
    return (k.flops or 0) / k.seconds


def _power(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


# -------------------------------------------------------------------------------------------------------------- memory


def peak_of(arena: Sequence[ArenaTensor]) -> tuple[int, int]:
    """The most bytes that are needed at one time, and at which call."""
    live = _live(arena)
    at = max(range(len(live)), key=lambda n: live[n], default=0)
    return (live[at], at) if live else (0, 0)


def memory_svg(report: ReportData) -> str:
    """Tensors over calls (to the right) and the bytes of the arena (upwards), and how much of it is needed; empty if
    nothing lies there.
    """
    arena = sorted(report.arena, key=lambda t: -t.nbytes)
    if not arena:
        return ""
    width, height, left, foot = 1040.0, 300.0, 74.0, 30.0
    times = 1 + max(t.last for t in arena)
    total = max(report.model.arena_bytes, *(t.at + t.nbytes for t in arena))

    def x(time: float) -> float:
        return left + time / times * (width - left - 8)

    def y(nbytes: float) -> float:
        return height - foot - nbytes / total * (height - foot - 12)

    out = [
        f'<svg class="chart wide" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="Memory of a run:'
        f' {escape(size_text(total))} of arena, over {times} calls">'
    ]
    for part in (0.0, 0.5, 1.0):
        at = y(part * total)
        out.append(f'<path class="grid" d="M{left} {at:.1f}H{width - 8}"/>')
        out.append(
            f'<text class="tick end" x="{left - 6}" y="{at + 3.5:.1f}">{size_text(part * total)}</text>'
        )
    for n, t in enumerate(arena[:_MOST_TENSORS]):
        label = f"{t.name}: {size_text(t.nbytes)}, calls {t.first} to {t.last}"
        out.append(
            f'<rect class="tensor k{n % 4}" x="{x(t.first):.1f}" y="{y(t.at + t.nbytes):.1f}"'
            f' width="{max(1.0, x(t.last + 1) - x(t.first) - 0.6):.1f}"'
            f' height="{max(0.8, y(t.at) - y(t.at + t.nbytes)):.1f}"><title>{escape(label)}</title></rect>'
        )
    steps = "".join(f"H{x(n):.1f}V{y(live):.1f}H{x(n + 1):.1f}" for n, live in enumerate(_live(arena)))
    out.append(f'<path class="live" d="M{x(0):.1f} {y(0):.1f}{steps}"/>')
    for n in {0, times // 2, times - 1}:
        out.append(f'<text class="tick mid" x="{x(n + 0.5):.1f}" y="{height - foot + 15}">call {n}</text>')
    return "".join([*out, "</svg>"])


def _live(arena: Sequence[ArenaTensor]) -> list[int]:
    """Bytes needed at each call."""
    change = [0] * (2 + max((t.last for t in arena), default=-2))
    for t in arena:
        change[t.first] += t.nbytes
        change[t.last + 1] -= t.nbytes
    total, out = 0, list[int]()
    for c in change[:-1]:
        total += c
        out.append(total)
    return out

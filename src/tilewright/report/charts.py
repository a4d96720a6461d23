"""Charts of a report as SVG: the roofline, memory and threads of a run, and trials of tuning."""

import math
from collections.abc import Iterator, Sequence
from html import escape

from tilewright.report.data import ArenaTensor, KernelFacts, ReportData, TuningCurve
from tilewright.report.units import count_text, digits, seconds_text, share_text, size_text

_WIDTH, _HEIGHT = 560.0, 330.0
_LEFT, _RIGHT, _TOP, _FOOT = 54.0, 14.0, 14.0, 40.0
_LABELLED = 3  # kernels that have their names in the roofline
_MOST_POINTS, _MOST_TENSORS, _MOST_SPANS = 400, 600, 1500  # the largest


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
    for n, anchor in {0: "mid", times // 2: "mid", times - 1: "end"}.items():
        at = x(n + 1) if anchor == "end" else x(n + 0.5)
        out.append(f'<text class="tick {anchor}" x="{at:.1f}" y="{height - foot + 15}">call {n}</text>')
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


# ------------------------------------------------------------------------------------------------------------- threads


def busy_shares(report: ReportData) -> dict[int, float]:
    """Of each thread, the share of the run in which it ran parts."""
    total = report.timeline.seconds
    found: dict[int, float] = {}
    for s in report.timeline.spans:
        found[s.thread] = found.get(s.thread, 0.0) + s.end - s.begin
    return {t: found[t] / total if total else 0.0 for t in sorted(found)}


def threads_svg(report: ReportData) -> str:
    """A row for each thread, a bar for each span of parts; empty if there is no record."""
    busy = busy_shares(report)
    if not busy:
        return ""
    width, left, row, foot = 1040.0, 118.0, 30.0, 28.0
    height = 8 + row * len(busy) + foot
    total = report.timeline.seconds

    def x(seconds: float) -> float:
        return left + seconds / total * (width - left - 8)

    out = [
        f'<svg class="chart wide" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="Threads of a run of'
        f' {escape(seconds_text(total))}">'
    ]
    for n in range(5):
        at = total * n / 4
        anchor = "mid" if n < 4 else "end"
        out.append(f'<path class="grid" d="M{x(at):.1f} 4V{height - foot}"/>')
        out.append(f'<text class="tick {anchor}" x="{x(at):.1f}" y="{height - 10}">{seconds_text(at)}</text>')
    level = {t: 8 + row * n for n, t in enumerate(busy)}
    for t, share in busy.items():
        name = "caller" if t == 0 else f"worker {t}"
        out.append(
            f'<text class="tick end" x="{left - 8}" y="{level[t] + 17:.0f}">{name}, {share_text(share)}</text>'
        )
    longest = sorted(report.timeline.spans, key=lambda s: s.begin - s.end)[:_MOST_SPANS]
    for s in longest:
        call = report.calls[s.call]
        kernel = report.kernels[call.kernel]
        label = f"{kernel.name}: {s.parts} of {kernel.parts} parts, {seconds_text(s.end - s.begin)}"
        out.append(
            f'<rect class="span" style="fill:var(--c{call.kernel % 8})" x="{x(s.begin):.2f}" y="{level[s.thread]:.0f}"'
            f' width="{max(0.3, x(s.end) - x(s.begin)):.2f}" height="{row - 8:.0f}" data-kernel="{call.kernel}">'
            f"<title>{escape(label)}</title></rect>"
        )
    return "".join([*out, "</svg>"])


# -------------------------------------------------------------------------------------------------------------- tuning


def tuning_svg(curve: TuningCurve) -> str:
    """The trials of a Func as points, the best so far as a line, and the time without tuning; upwards is slower."""
    width, height, left, right, top, foot = 320.0, 150.0, 56.0, 8.0, 10.0, 24.0
    known = [s for s in curve.trials if s is not None]
    marks = [*known, *([curve.default_seconds] if curve.default_seconds else [])]
    if not marks:
        return ""
    y = _Log(min(marks) / 1.15, min(max(marks), 20 * min(marks)) * 1.15, height - foot, top)
    most = 10**y.high

    def x(n: float) -> float:
        return left + n / max(1, len(curve.trials) - 1) * (width - left - right)

    out = [
        f'<svg class="chart" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{len(curve.trials)} trials'
        f' of {escape(curve.func)}">'
    ]
    for at in (min(marks), min(max(marks), most)):
        out.append(f'<path class="grid" d="M{left} {y(at):.1f}H{width - right}"/>')
        out.append(f'<text class="tick end" x="{left - 5}" y="{y(at) + 3.5:.1f}">{seconds_text(at)}</text>')
    if curve.default_seconds and curve.default_seconds <= most:
        at = y(curve.default_seconds)
        out.append(f'<path class="untuned" d="M{left} {at:.1f}H{width - right}"/>')
    best, path = math.inf, ""
    step = max(1, len(curve.trials) // 400)
    for n, s in enumerate(curve.trials):
        if s is None:
            continue
        if n % step == 0 and s <= most:
            out.append(f'<circle class="trial" cx="{x(n):.1f}" cy="{y(s):.1f}" r="1.8"/>')
        if s < best:
            path += f"M{x(n):.1f} {y(s):.1f}" if not path and s <= most else ""
            if path and s <= most:
                path += f"H{x(n):.1f}V{y(s):.1f}"
            best = s
    if path:
        out.append(f'<path class="best" d="{path}H{width - right}"/>')
    out.append(
        f'<text class="tick end" x="{width - right}" y="{height - 7}">{len(curve.trials)} trials</text></svg>'
    )
    return "".join(out)

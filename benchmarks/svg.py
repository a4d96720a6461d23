"""Line and bar charts as SVG text: enough for results in the documentation, without a plotting library."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TypeAlias

Line: TypeAlias = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 56, 200, 32, 44
BAR_BOTTOM = 84  # names under bars are slanted
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")


def ticks(low: float, high: float, count: int = 7) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from `low` to `high`, at most `count` and one more."""
    span = max(high - low, 1e-12)
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(power * m for m in (1, 2, 5, 10) if span / (power * m) <= count)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def step_chart(title: str, x_label: str, y_label: str, lines: Mapping[str, Line], x_end: float) -> str:
    """Each line holds its value until its next point, and its last until `x_end`."""
    values = [y for line in lines.values() for _, y in line]
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = 0.05 * (high - low or 1.0)
    low, high = low - margin, high + margin

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / x_end

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    parts = _start(title)
    for tick in ticks(low, high):
        parts += _y_tick(y(tick), f"{tick:.3g}")
    for tick in ticks(0.0, x_end):
        parts += _x_tick(x(tick), f"{tick:.3g}")
    parts += _x_label(x_label)
    parts += _axes(HEIGHT - BOTTOM, y_label)
    for n, (name, line) in enumerate(lines.items()):
        if not line:
            continue
        path = f"M{x(line[0][0]):.1f} {y(line[0][1]):.1f}"
        path += "".join(f"H{x(at):.1f}V{y(value):.1f}" for at, value in line[1:])
        parts += _named_path(n, name, f"{path}H{x(x_end):.1f}")
    return "\n".join((*parts, "</svg>\n"))


def log_chart(title: str, x_label: str, y_label: str, lines: Mapping[str, Line]) -> str:
    """Lines through points, with logarithmic axes from a power of ten to another. All numbers are positive."""
    points = [p for line in lines.values() for p in line] or [(1.0, 1.0)]
    (left, right), (low, high) = (_decades([p[n] for p in points]) for n in (0, 1))

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(value) - left) / (right - left)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(value)) / (high - low)

    parts = _start(title)
    for power in range(low, high + 1):
        parts += _y_tick(y(10.0**power), f"{10.0**power:g}")
    for power in range(left, right + 1):
        parts += _x_tick(x(10.0**power), f"{10.0**power:g}")
    parts += _x_label(x_label)
    parts += _axes(HEIGHT - BOTTOM, y_label)
    for n, (name, line) in enumerate(lines.items()):
        if line:
            path = "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in line)
            parts += _named_path(n, name, f"M{path}")
    return "\n".join((*parts, "</svg>\n"))


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten that they are between."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def bar_chart(
    title: str, y_label: str, groups: Mapping[str, Mapping[str, float]], line: float | None = None
) -> str:
    """A group of bars for each name, in one colour for each kind of bar; `line` is drawn across."""
    kinds = list(dict.fromkeys(k for bars in groups.values() for k in bars))
    values = [v for bars in groups.values() for v in bars.values()]
    high = 1.05 * max([*values, line or 0.0], default=1.0) or 1.0
    bottom = HEIGHT - BAR_BOTTOM

    def y(value: float) -> float:
        return TOP + (bottom - TOP) * (high - value) / high

    parts = _start(title)
    for tick in ticks(0.0, high):
        parts += _y_tick(y(tick), f"{tick:.3g}")
    slot = (WIDTH - LEFT - RIGHT) / max(len(groups), 1)
    width = 0.8 * slot / max(len(kinds), 1)
    for g, (name, bars) in enumerate(groups.items()):
        start = LEFT + g * slot + 0.1 * slot
        for k, kind in enumerate(kinds):
            if kind in bars:
                top = y(bars[kind])
                parts.append(
                    f'<rect x="{start + k * width:.1f}" y="{top:.1f}" width="{width:.1f}"'
                    f' height="{bottom - top:.1f}" fill="{_colour(k)}"><title>{escape(name)}, {escape(kind)}:'
                    f" {bars[kind]:.2f}</title></rect>"
                )
        at = LEFT + (g + 0.5) * slot
        parts.append(f'<text transform="translate({at:.1f} {bottom + 10}) rotate(40)">{escape(name)}</text>')
    if line is not None:
        parts.append(
            f'<path d="M{LEFT} {y(line):.1f}H{WIDTH - RIGHT}" stroke="black" stroke-dasharray="4 3"/>'
        )
    parts += _axes(bottom, y_label)
    for k, kind in enumerate(kinds):
        at = TOP + 16 * (k + 1)
        parts.append(
            f'<rect x="{WIDTH - RIGHT + 12}" y="{at - 9}" width="12" height="10" fill="{_colour(k)}"/>'
            f'<text x="{WIDTH - RIGHT + 30}" y="{at}">{escape(kind)}</text>'
        )
    return "\n".join((*parts, "</svg>\n"))


def _start(title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]


def _y_tick(at: float, text: str) -> list[str]:
    return [
        f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>',
        f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{text}</text>',
    ]


def _x_tick(at: float, text: str) -> list[str]:
    return [
        f'<path d="M{at:.1f} {HEIGHT - BOTTOM}v4" stroke="black"/>',
        f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{text}</text>',
    ]


def _x_label(text: str) -> list[str]:
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    return [f'<text x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(text)}</text>']


def _named_path(number: int, name: str, path: str) -> list[str]:
    """A line, and its name beside the chart."""
    colour, at = _colour(number), TOP + 16 * (number + 1)
    return [
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        f'<path d="M{WIDTH - RIGHT + 12} {at - 4}h18" stroke="{colour}" stroke-width="2"/>'
        f'<text x="{WIDTH - RIGHT + 36}" y="{at}">{escape(name)}</text>',
    ]


def _axes(bottom: float, y_label: str) -> list[str]:
    return [
        f'<path d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="black"/>',
        f'<text transform="translate(14 {TOP + (bottom - TOP) / 2:.0f}) rotate(-90)"'
        f' text-anchor="middle">{escape(y_label)}</text>',
    ]


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]

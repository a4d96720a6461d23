"""Line charts as SVG text: enough for results in the documentation, without a plotting library."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TypeAlias

Line: TypeAlias = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 56, 200, 32, 44
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

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for tick in ticks(low, high):
        parts.append(f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:.3g}</text>')
    for tick in ticks(0.0, x_end):
        parts.append(f'<path d="M{x(tick):.1f} {HEIGHT - BOTTOM}v4" stroke="black"/>')
        parts.append(
            f'<text x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick:.3g}</text>'
        )
    parts.append(f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="black"/>')
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(
        f'<text transform="translate(14 {TOP + (HEIGHT - TOP - BOTTOM) / 2:.0f}) rotate(-90)"'
        f' text-anchor="middle">{escape(y_label)}</text>'
    )
    for n, (name, line) in enumerate(lines.items()):
        if not line:
            continue
        colour = COLOURS[n % len(COLOURS)]
        path = f"M{x(line[0][0]):.1f} {y(line[0][1]):.1f}"
        path += "".join(f"H{x(at):.1f}V{y(value):.1f}" for at, value in line[1:])
        parts.append(f'<path d="{path}H{x(x_end):.1f}" fill="none" stroke="{colour}" stroke-width="2"/>')
        at = TOP + 16 * (n + 1)
        parts.append(
            f'<path d="M{WIDTH - RIGHT + 12} {at - 4}h18" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{WIDTH - RIGHT + 36}" y="{at}">{escape(name)}</text>'
        )
    return "\n".join((*parts, "</svg>\n"))

"""Drawings of what models say, as SVG text: contributions of features as bars, and predictions against measurements."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TypeAlias

MeasuredPredicted: TypeAlias = Sequence[tuple[float, float]]  # measured, predicted

_WIDTH = 720
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
_NAMES, _ROW, _TOP = 300, 22, 40  # pixels: of names, of a bar with its gap, above all bars
_SIDE, _LEFT, _HEAD = 400, 64, 32  # pixels: of a scatter plot, left of it and above it


def contribution_chart(title: str, bars: Sequence[tuple[str, float]]) -> str:
    """A bar for each name: to the left what makes it quicker, to the right what makes it slower; in percent."""
    height = _TOP + _ROW * len(bars) + 16
    most = max((abs(v) for _, v in bars), default=0.0) or 1.0
    middle, half = (_NAMES + _WIDTH) / 2, (_WIDTH - _NAMES) / 2 - 60
    parts = _start(title, _WIDTH, height)
    parts.append(f'<path d="M{middle} {_TOP - 4}V{height - 12}" stroke="black"/>')
    for n, (name, value) in enumerate(bars):
        top, length = _TOP + n * _ROW, half * abs(value) / most
        left = middle if value > 0 else middle - length
        colour = _COLOURS[1] if value > 0 else _COLOURS[2]
        at, anchor = (middle + length + 6, "start") if value > 0 else (middle - length - 6, "end")
        parts += [
            f'<text x="{_NAMES - 8}" y="{top + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{left:.1f}" y="{top + 3}" width="{length:.1f}" height="{_ROW - 6}" fill="{colour}"/>',
            f'<text x="{at:.1f}" y="{top + 14}" text-anchor="{anchor}">{value:+.1f} %</text>',
        ]
    return "\n".join((*parts, "</svg>\n"))


def scatter_chart(title: str, x_label: str, y_label: str, groups: Mapping[str, MeasuredPredicted]) -> str:
    """Points of several groups, with logarithmic axes of one scale; a line goes where both are the same."""
    values = [v for some in groups.values() for point in some for v in point if v > 0] or [1.0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)

    def place(value: float) -> float:
        return _SIDE * (math.log10(value) - low) / (high - low)

    bottom = _HEAD + _SIDE
    parts = _start(title, _WIDTH, bottom + 48)
    for power in range(low, high + 1):
        at = place(10.0**power)
        parts += [
            f'<path d="M{_LEFT} {bottom - at:.1f}h{_SIDE}M{_LEFT + at:.1f} {_HEAD}v{_SIDE}" stroke="#ddd"/>',
            f'<text x="{_LEFT - 6}" y="{bottom - at + 4:.1f}" text-anchor="end">{10.0**power:g}</text>',
            f'<text x="{_LEFT + at:.1f}" y="{bottom + 16}" text-anchor="middle">{10.0**power:g}</text>',
        ]
    parts += [
        f'<path d="M{_LEFT} {bottom}L{_LEFT + _SIDE} {_HEAD}" stroke="black" stroke-dasharray="4 3"/>',
        f'<text x="{_LEFT + _SIDE / 2}" y="{bottom + 36}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text transform="translate(14 {_HEAD + _SIDE / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>",
    ]
    for n, (name, points) in enumerate(groups.items()):
        colour, at = _COLOURS[n % len(_COLOURS)], _HEAD + 16 * (n + 1)
        dots = "".join(
            f"M{_LEFT + place(x):.1f} {bottom - place(y):.1f}h0" for x, y in points if x > 0 and y > 0
        )
        parts += [
            f'<path d="{dots}" stroke="{colour}" stroke-width="3" stroke-linecap="round" opacity="0.5"/>',
            f'<circle cx="{_LEFT + _SIDE + 24}" cy="{at - 4}" r="4" fill="{colour}"/>',
            f'<text x="{_LEFT + _SIDE + 36}" y="{at}">{escape(name)}</text>',
        ]
    return "\n".join((*parts, "</svg>\n"))


def _start(title: str, width: int, height: int) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="16" y="20" font-size="14">{escape(title)}</text>',
    ]

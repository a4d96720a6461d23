"""The graph of a report as SVG: a box for what runs together, lines for tensors, colours by what is asked for.

Boxes are buttons: the page's script (`page.js`) opens their details, and moves between them by arrow keys. Colours are
variables of the page, so that they follow its theme: `--t` is how much of the time a box takes, `--p`, `--l` and `--f`
are those of its placement, layout and family.
"""

from collections.abc import Mapping, Sequence
from html import escape

from tilewright.report.data import AS_STATED, HOST, NATIVE, BoxFacts, ReportData
from tilewright.report.layered import HEIGHT, WIDTH, PagePoint, lay_out_graph
from tilewright.report.units import seconds_text, share_text

MOST_BOXES = 1500  # more would be neither read nor quick
_TITLE, _SMALL = 21, 30  # characters that fit
_COLOURS = 8  # that the page has: --c0 … --c7


def categories(report: ReportData) -> dict[str, list[str]]:
    """What boxes are coloured by, and the values of each in the order of the colours."""
    placed = dict.fromkeys([NATIVE, *(b.placement for b in report.boxes if b.placement != HOST)])
    if any(b.placement == HOST for b in report.boxes):
        placed[HOST] = None
    return {
        "placement": [*placed],
        "layout": [*dict.fromkeys([AS_STATED, *(b.layout for b in report.boxes)])],
        "family": [*dict.fromkeys(_family(report, b) for b in report.boxes)],
    }


def colour(values: Sequence[str], value: str) -> str:
    return f"var(--c{values.index(value) % _COLOURS})"


def boxes_svg(report: ReportData) -> str:
    boxes = report.boxes[:MOST_BOXES]
    drawn = lay_out_graph([[r for r in b.reads if r < len(boxes)] for b in boxes])
    kinds = categories(report)
    most = max((b.seconds for b in boxes), default=0.0)
    out = [
        f'<svg id="graph" class="graph" data-colour="time" role="group" aria-label="Graph of {len(boxes)} boxes"'
        f' viewBox="0 0 {drawn.width:.0f} {drawn.height:.0f}" data-width="{drawn.width:.0f}"'
        f' data-height="{drawn.height:.0f}">',
        '<g class="edges" aria-hidden="true">',
    ]
    out += [f'<path d="{_path(points)}"/>' for points in drawn.lines.values()]
    out.append("</g>")
    for n, (b, at) in enumerate(zip(boxes, drawn.boxes, strict=True)):
        out.append(_box(report, n, b, at, most, kinds))
    return "".join([*out, "</svg>"])


def _family(report: ReportData, box: BoxFacts) -> str:
    """That of the kernel which takes longest."""
    if not box.kernels:
        return "none"
    return report.kernels[max(box.kernels, key=lambda k: report.kernels[k].seconds)].family or "none"


def _box(
    report: ReportData,
    n: int,
    b: BoxFacts,
    at: PagePoint,
    most: float,
    kinds: Mapping[str, Sequence[str]],
) -> str:
    x, y = at
    family = _family(report, b)
    timed = f"{share_text(report.share(b.seconds))} · {seconds_text(b.seconds)}" if b.seconds else "not timed"
    style = (
        f"--t:{b.seconds / most if most else 0:.3f};--p:{colour(kinds['placement'], b.placement)};"
        f"--l:{colour(kinds['layout'], b.layout)};--f:{colour(kinds['family'], family)}"
    )
    label = f"{b.title}, {b.name}: {timed}, {b.placement}, {b.layout}, {family}"
    layout = (
        ""
        if b.layout == AS_STATED
        else f'<rect class="lay" x="{WIDTH - 5:.0f}" y="0" width="5" height="{HEIGHT:.0f}"/>'
    )
    return (
        f'<g class="box" id="box{n}" data-box="{n}" role="button" tabindex="{0 if n == 0 else -1}"'
        f' aria-label="{escape(label)}" style="{style}" transform="translate({x:.0f},{y:.0f})">'
        f"<title>{escape(label)}</title>"
        f'<rect class="body" width="{WIDTH:.0f}" height="{HEIGHT:.0f}" rx="5"/>'
        f'<rect class="own" width="5" height="{HEIGHT:.0f}"/>{layout}'
        f'<text x="13" y="19">{escape(_cut(b.title, _TITLE))}</text>'
        f'<text class="dim" x="13" y="36">{escape(_cut(timed, _SMALL))}</text></g>'
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _path(points: Sequence[PagePoint]) -> str:
    """Straight beside boxes, bent between rows."""
    (x, y), *rest = points
    out = [f"M{x:.0f} {y:.0f}"]
    for nx, ny in rest:
        if nx == x:
            out.append(f"V{ny:.0f}")
        else:
            middle = (y + ny) / 2
            out.append(f"C{x:.0f} {middle:.0f} {nx:.0f} {middle:.0f} {nx:.0f} {ny:.0f}")
        x, y = nx, ny
    return "".join(out)

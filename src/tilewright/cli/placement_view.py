"""What plugins were asked and what they run, as a table and as a drawing.

The drawing has a box for each node of the imported graph, in rows by how far it is from the inputs, coloured by who
runs it. It is plain SVG text: a browser shows the reason for a refusal when the pointer rests on a box.
"""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import click

from tilewright.cli.output import print_json, print_table, write_drawing
from tilewright.graph.graph import Graph, Node, producers
from tilewright.graph.passes.partition import name_of
from tilewright.placement.place import UnitVerdict
from tilewright.stages import Stages

NATIVE = "native"
_COLOURS = ("#f2b35d", "#7fb2e5", "#8fcf8f", "#d9a0d9", "#e58f8f")
_NATIVE_COLOUR = "#e8e8e8"
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 150, 24, 12, 18


def show_placement(found: Stages, svg: Path | None, as_json: bool) -> None:
    assert found.imported is not None
    placement, graph = found.placement, found.imported
    owners = {n: p.plugin.name for p in placement.regions for n in p.region.graph.nodes}
    if svg is not None:
        write_drawing(svg, graph_svg(graph, owners, placement.verdicts))
    regions = [
        {
            "region": p.region.key,
            "plugin": p.plugin.name,
            "nodes": len(p.region.graph.nodes),
            "bytes": len(p.blob),
        }
        for p in placement.regions
    ]
    rows: list[dict[str, Any]] = [
        {
            "plugin": v.plugin,
            "unit": v.unit.name,
            "node": v.unit.nodes[-1].name,
            "region": v.region,
            "reason": v.reason,
        }
        for v in placement.verdicts
    ]
    native = len(graph.nodes) - len(owners)
    if as_json:
        print_json(
            {"regions": regions, "units": rows, "native_nodes": native, "svg": str(svg) if svg else None}
        )
        return
    if regions:
        print_table(("region", "plugin", "nodes", "code"), [tuple(r.values()) for r in regions])
        click.echo()
    refused = [(r["plugin"], r["unit"], r["node"], r["reason"]) for r in rows if r["reason"]]
    if refused:
        print_table(("plugin", "unit", "node", "why not"), refused)
        click.echo()
    click.echo(f"{len(owners)} nodes are run by plugins, {native} by native code")


def graph_svg(graph: Graph, owners: Mapping[Node, str], verdicts: tuple[UnitVerdict, ...]) -> str:
    """The graph as SVG."""
    places = _places(graph)
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(dict.fromkeys(owners.values()))}
    why = {n: f"{v.plugin}: {v.reason}" for v in verdicts if v.reason for n in v.unit.nodes}
    width = max((x for x, _ in places.values()), default=0) + 1
    height = max((y for _, y in places.values()), default=0) + 1
    size = f"{width * (_WIDTH + _GAP_X) + _GAP_X} {(height + 1) * (_HEIGHT + _GAP_Y) + _GAP_Y}"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="11">'
    ]
    for i, (name, colour) in enumerate([(NATIVE, _NATIVE_COLOUR), *colours.items()]):
        out.append(_box(_GAP_X + i * (_WIDTH + _GAP_X), _GAP_Y // 2, name, colour, ""))
    made = producers(graph)
    for n in graph.nodes:
        x, y = _corner(*places[n])
        for v in dict.fromkeys(n.inputs):
            if v in made:
                above_x, above_y = _corner(*places[made[v]])
                out.append(
                    f'<line x1="{above_x + _WIDTH // 2}" y1="{above_y + _HEIGHT}" x2="{x + _WIDTH // 2}" y2="{y}"'
                    ' stroke="#999"/>'
                )
    for n in graph.nodes:
        colour = colours.get(owners.get(n, ""), _NATIVE_COLOUR)
        title = owners.get(n, NATIVE) if n in owners else why.get(n, NATIVE)
        out.append(_box(*_corner(*places[n]), name_of(graph, n), colour, f"{n.name}: {title}"))
    return "\n".join([*out, "</svg>", ""])


def _box(x: int, y: int, label: str, colour: str, title: str) -> str:
    return (
        f'<g><title>{escape(title)}</title><rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="4"'
        f' fill="{colour}" stroke="#555"/><text x="{x + _WIDTH // 2}" y="{y + 16}" text-anchor="middle">'
        f"{escape(label[:24])}</text></g>"
    )


def _corner(column: int, row: int) -> tuple[int, int]:
    return _GAP_X + column * (_WIDTH + _GAP_X), _GAP_Y + (row + 1) * (_HEIGHT + _GAP_Y)


def _places(graph: Graph) -> dict[Node, tuple[int, int]]:
    """Column and row of each node: a row below all that it reads from, and beside the nodes that are placed already."""
    made = producers(graph)
    rows: dict[Node, int] = {}
    used: dict[int, int] = {}
    out: dict[Node, tuple[int, int]] = {}
    for n in graph.nodes:
        row = rows[n] = 1 + max((rows[made[v]] for v in n.inputs if v in made), default=-1)
        out[n] = (used.get(row, 0), row)
        used[row] = used.get(row, 0) + 1
    return out

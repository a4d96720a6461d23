"""How values flow in a kernel, as a drawing: before it was scheduled, when every value goes through memory, and after.

A box is a block, with the kind of value that it makes and how large all of it is; a line goes to each block that reads
it, in the colour of where it waits: memory, scratch that a worker keeps near, or registers. It is plain SVG text, and
follows the colours of its reader's screen, light or dark.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, TypeAlias

from tilewright.cli.traffic_table import bytes_text
from tilewright.cost.traffic import must_move
from tilewright.driver.kernels import Compiled
from tilewright.ir.expr import Buffer, Scope, loads
from tilewright.schedule.steps.stream_rows import StreamRows
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Store, blocks, stmt_exprs, walk_stmts

Waits: TypeAlias = Literal["memory", "scratch", "registers"]

_COLUMN, _TOP, _STEP, _FOOT = 430, 74, 58, 44  # pixels
_LEFT, _WIDTH, _HEIGHT = 150, 160, 34  # of a box in its column
_BEND = 22  # how far a line leaves the boxes for each box that it passes
_LONGEST = 22  # characters of a name in a box
_SCOPES: Mapping[Scope, Waits] = {
    Scope.GLOBAL: "memory",
    Scope.LOCAL: "scratch",
    Scope.REGISTER: "registers",
}
_STYLE = """
text { font: 12px sans-serif; fill: #1b1f24 } .small { font-size: 11px; fill: #57606a } .title { font-size: 15px }
.box { fill: #f6f8fa; stroke: #8c959f } .memory { stroke: #c4432b } .scratch { stroke: #2f6fdb }
.registers { stroke: #2a8a4a } .line { fill: none; stroke-width: 2 } .line.memory { stroke-width: 3.5 }
.given { stroke-dasharray: 4 3 } .edge { stroke-width: 2.5 } .paper { fill: #ffffff }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9da7b3 } .box { fill: #21262d; stroke: #6e7681 } .paper { fill: #0d1117 }
.memory { stroke: #ff7b63 } .scratch { stroke: #6ea8fe } .registers { stroke: #56d17f } }
"""


@dataclass(frozen=True, slots=True)
class _Made:
    """A value: what makes it, if not the caller, and what reads it."""

    buffer: Buffer
    kind: str
    readers: tuple[int, ...]  # numbers of values


def flow_svg(compiled: Compiled) -> str:
    """Of the Func that a kernel was made from."""
    func = compiled.func
    values = _values(func)
    before: dict[Buffer, Waits] = {v.buffer: "memory" for v in values}
    after: dict[Buffer, Waits] = {v.buffer: _waits(v.buffer, compiled) for v in values}
    height = _TOP + _STEP * len(values) + _FOOT
    moved = sum(v.buffer.bytes * (len(v.readers) + (v.kind != "input")) for v in values)
    least = sum(must_move(k.func) for k in compiled.kernels)
    count = len(compiled.kernels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * _COLUMN} {height}" width="{2 * _COLUMN}"'
        f' height="{height}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{2 * _COLUMN}" height="{height}"/>',
        *_column(0, f"{func.name}: as blocks", values, before, f"through memory: {bytes_text(moved)}"),
        *_column(
            _COLUMN,
            f"as {count} kernel{'s' * (count != 1)}",
            values,
            after,
            f"through memory: {bytes_text(least)}",
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _values(func: Func) -> list[_Made]:
    made = {s.buffer: b for b in blocks(func.body) for s in walk_stmts(b) if isinstance(s, Store)}
    read: dict[Buffer, list[Block]] = {}
    for block in blocks(func.body):
        for buffer in _read(block):
            read.setdefault(buffer, []).append(block)
    given = [b for b in func.params if b not in made and b in read]
    order = [*given, *made]
    numbers = {block: order.index(buffer) for buffer, block in made.items()}
    return [
        _Made(
            b,
            _kind(made[b]) if b in made else "input",
            tuple(numbers[r] for r in read.get(b, ()) if r in numbers),
        )
        for b in order
    ]


def _read(block: Block) -> Iterator[Buffer]:
    """What others have made, and it reads."""
    written = {s.buffer for s in walk_stmts(block) if isinstance(s, Store)}
    found = dict.fromkeys(ld.buffer for s in walk_stmts(block) for e in stmt_exprs(s) for ld in loads(e))
    return (b for b in found if b not in written)


def _kind(block: Block) -> str:
    return "reduction" if block.is_reduction else "map"


def _waits(buffer: Buffer, compiled: Compiled) -> Waits:
    """Where a value of the Func is when it has been scheduled. What has no buffer any more is computed where it is
    read.
    """
    if buffer in compiled.func.params:
        return "memory"
    kept = {n for step in compiled.trace if isinstance(step, StreamRows) for n in step.kept}
    if buffer.name in kept:
        return "scratch"
    left = [b for b in compiled.scheduled.locals if b.name == buffer.name]
    return _SCOPES[left[0].scope] if left else "registers"


# ------------------------------------------------------------------------------------------------------------- drawing


def _column(
    x: int, title: str, values: Sequence[_Made], waits: Mapping[Buffer, Waits], total: str
) -> Iterator[str]:
    yield f'<text class="title" x="{x + 16}" y="26">{escape(title)}</text>'
    for n, place in enumerate(("memory", "scratch", "registers")):
        at = x + 16 + 104 * n
        yield f'<path class="line {place}" d="M{at} 46h22"/><text class="small" x="{at + 28}" y="50">{place}</text>'
    for n, value in enumerate(values):
        for reader in value.readers:
            yield _line(x, n, reader, waits[value.buffer])
    for n, value in enumerate(values):
        yield from _box(x, n, value, waits[value.buffer])
    yield f'<text x="{x + 16}" y="{_TOP + _STEP * len(values) + 22}">{escape(total)}</text>'


def _box(x: int, n: int, value: _Made, place: Waits) -> Iterator[str]:
    y = _TOP + _STEP * n
    buffer = value.buffer
    name = buffer.name if len(buffer.name) <= _LONGEST else buffer.name[: _LONGEST - 1] + "…"
    shape = "x".join(map(str, buffer.shape)) or "scalar"
    given = " given" if value.kind == "input" else ""
    yield (
        f'<rect class="box edge {place}{given}" x="{x + _LEFT}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5">'
        f"<title>{escape(f'{buffer.name}: {buffer.dtype}[{shape}], {place}')}</title></rect>"
    )
    middle = x + _LEFT + _WIDTH // 2
    yield f'<text x="{middle}" y="{y + 15}" text-anchor="middle">{escape(name)}</text>'
    yield f'<text class="small" x="{middle}" y="{y + 28}" text-anchor="middle">{value.kind}</text>'
    yield f'<text class="small" x="{x + _LEFT - 10}" y="{y + 15}" text-anchor="end">{shape}</text>'
    yield (
        f'<text class="small" x="{x + _LEFT - 10}" y="{y + 28}" text-anchor="end">{bytes_text(buffer.bytes)}</text>'
    )


def _line(x: int, start: int, end: int, place: Waits) -> str:
    """From a value to one that reads it: straight down, or around those between."""
    title = f"<title>{place}</title>"
    if end == start + 1:
        at, top = x + _LEFT + _WIDTH // 2, _TOP + _STEP * start + _HEIGHT
        return f'<path class="line {place}" d="M{at} {top}V{_TOP + _STEP * end}">{title}</path>'
    side = x + _LEFT + _WIDTH
    top, bottom = (_TOP + _STEP * n + _HEIGHT // 2 for n in (start, end))
    bend = min(_BEND * (end - start), _COLUMN - _LEFT - _WIDTH - 8)
    curve = f"M{side} {top}C{side + bend} {top} {side + bend} {bottom} {side} {bottom}"
    return f'<path class="line {place}" d="{curve}">{title}</path>'

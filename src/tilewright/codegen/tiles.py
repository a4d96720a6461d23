"""Registers for matrices: which of them a statement uses, in which shapes, and the data that sets these.

They are no values in LLVM IR: instructions name them by number, in the order of the program. The shapes of all are set
together, which clears them; so this happens around whatever fills them and reads them, as far outside as one set of
shapes does for everything inside.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from tilewright.ir.expr import Buffer, Scope
from tilewright.support.errors import InternalError
from tilewright.target.intrinsics import find_intrinsic
from tilewright.tir.stmt import Emit, Stmt, seq, walk_stmts

TileShapes: TypeAlias = Mapping[int, tuple[int, int]]  # by number: rows, and bytes of a row

_CONFIG_BYTES = 64  # of what ldtilecfg reads; given
_COLUMNS_AT, _ROWS_AT = 16, 48  # places in it, of two bytes and of one for each register; given


def uses_tiles(s: Stmt) -> bool:
    return any(True for _ in _tiles(s))


def tile_shapes(s: Stmt) -> TileShapes | None:
    """The shapes of all that `s` uses; None if a register has several."""
    shapes: dict[int, tuple[int, int]] = {}
    for e in _tiles(s):
        intrinsic = find_intrinsic(e.intrinsic)
        assert intrinsic is not None
        for number, rows, nbytes in intrinsic.tiles:
            if shapes.setdefault(number, (rows, nbytes)) != (rows, nbytes):
                return None
    return shapes


def tile_groups(stmts: Sequence[Stmt]) -> list[Stmt]:
    """Statements that follow each other, with those as one between which a register is filled: setting shapes would
    clear it. InternalError if that one needs several shapes.
    """
    last: dict[Buffer, int] = {}
    used = [_held(s) for s in stmts]
    for n, buffers in enumerate(used):
        last.update(dict.fromkeys(buffers, n))
    groups: list[Stmt] = []
    start = end = 0
    for n, buffers in enumerate(used):
        end = max((end, n, *(last[b] for b in buffers)))
        if n < end:
            continue
        groups.append(seq(*stmts[start : n + 1]))
        if n > start and tile_shapes(groups[-1]) is None:
            raise InternalError("a register for matrices has several shapes while it is in use")
        start = n + 1
    return groups


def is_in_tiles(buffer: Buffer, s: Stmt) -> bool:
    """Is it an operand that intrinsics keep in these registers?"""
    return buffer in _held(s)


def _held(s: Stmt) -> set[Buffer]:
    """The buffers that are kept in them."""
    places = (place[0].buffer for e in _tiles(s) for place in e.operands)
    return {b for b in places if b.scope is Scope.REGISTER}


def config_text(shapes: TileShapes) -> str:
    """What sets the shapes, as a constant of LLVM IR with its type."""
    data = bytearray(_CONFIG_BYTES)
    data[0] = 1  # the palette
    for number, (rows, nbytes) in shapes.items():
        at = _COLUMNS_AT + 2 * number
        data[at : at + 2] = nbytes.to_bytes(2, "little")
        data[_ROWS_AT + number] = rows
    return f"[{_CONFIG_BYTES} x i8] " + 'c"' + "".join(f"\\{b:02X}" for b in data) + '"'


def _tiles(s: Stmt) -> Iterator[Emit]:
    for e in walk_stmts(s):
        if isinstance(e, Emit):
            intrinsic = find_intrinsic(e.intrinsic)
            if intrinsic is not None and intrinsic.tiles:
                yield e

"""How columns are cut into tiles of registers for matrices."""

from tilewright.target.x86_amx import TILE_ROWS


def column_cuts(extent: int, columns: int) -> list[tuple[int, int]]:
    """(end, width): full tiles, then whole registers, then what is left of one."""
    cuts: list[tuple[int, int]] = []
    start = 0
    for width in (columns, (extent % columns) // TILE_ROWS * TILE_ROWS, extent % columns % TILE_ROWS):
        end = start + (extent - start) // width * width if width else start
        if end > start:
            cuts.append((end, width))
            start = end
    return cuts

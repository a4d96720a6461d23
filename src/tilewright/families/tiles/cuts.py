"""How columns are cut into tiles."""


def column_cuts(extent: int, columns: int, register: int) -> list[tuple[int, int]]:
    """(end, width): full tiles, then whole registers, then what is left of one, which holds `register` columns."""
    cuts: list[tuple[int, int]] = []
    start = 0
    for width in (columns, (extent % columns) // register * register, extent % columns % register):
        end = start + (extent - start) // width * width if width else start
        if end > start:
            cuts.append((end, width))
            start = end
    return cuts

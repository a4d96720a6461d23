"""Convolution with fewer multiplications: tiles of the image and the filters are transformed, multiplied element by
element (which over all channels is a GEMM for each element), and transformed back.

Blocks: `<name>_pad`, `<name>_filter` (reads weights alone), then `<name>_input`, `<name>_gemm` and `<name>_tile`,
whose first axis goes over blocks of tiles, of a part of an image or of several: a schedule runs all three for one of
them after the other, so that what they hand on stays in a near cache; and the bias. The transforms are straight-line
code (`cook_toom.py`) that a schedule writes out.

A value that is not finite spreads over its tile, and rounding errors are larger than a sum's: whoever chooses this
has to accept both.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr
from tilewright.ops.core.cook_toom import Scheme, apply_transforms, scheme, select_element
from tilewright.ops.core.window import Window
from tilewright.ops.core.winograd_error import winograd_error
from tilewright.ops.opdef import TensorType
from tilewright.support.arrays import Array
from tilewright.support.sizes import capacity, is_open
from tilewright.tir.build import FuncBuilder

_MAX_PRODUCTS = 36  # of a tile: as many statements are written out
_MIN_CHANNELS = 16  # with fewer, the transforms cost more than the multiplications save
_TILES = (12, 48)  # of a block, at least
_OUTPUTS = (4, 2)  # of a tile along an axis, at most
_MOST_OPEN_ROWS = (
    2  # rows of tiles of one of several blocks where the height is open; bound: one is computed in vain
)
_WIDTHS = 2  # by which the capacity of an open width is larger than one that a block is made for


@dataclass(frozen=True, slots=True)
class Winograd:
    """A block of `rows` × `columns` tiles, along the first and the last spatial axis, goes through all stages together;
    both divide the tiles there, as many as there may be. Where a block is all of an image, `images` of them, which
    divide the batch, go together too. If the last axis is open, a block has all of its tiles, and an axis for them, so
    that only those in use are computed: `columns` is 0.
    """

    schemes: tuple[Scheme, ...]
    rows: int
    columns: int
    images: int = 1

    def __str__(self) -> str:
        tile, taps = ("×".join(str(n) for n in ns) for ns in (self.outputs, [s.taps for s in self.schemes]))
        images = "" if self.images == 1 else f"{self.images}×"
        columns = self.columns or "all"
        return f"Winograd F({tile}, {taps}) in blocks of {images}{self.rows}×{columns} tiles"

    def error(self, weights: Array | None) -> float:
        """Of a layer with these weights; without them, nothing is known of it."""
        return math.inf if weights is None else winograd_error(self.schemes, weights)

    @property
    def outputs(self) -> list[int]:
        return [s.outputs for s in self.schemes]

    def tiles(self, spatial: Sequence[int]) -> list[int]:
        """How many cover an output of these extents."""
        return [-(-n // s.outputs) for n, s in zip(spatial, self.schemes, strict=True)]

    def compute(
        self, b: FuncBuilder, x: Buffer, w: Buffer, window: Window, out: TensorType, name: str
    ) -> "Tiles":
        """The results, tile by tile."""
        schemes, rank = self.schemes, len(self.schemes)
        grid = self.tiles(out.shape[2:])
        # Of images first, then along each axis: tiles of a block, and blocks.
        block = [self.images, self.rows, *grid[1:-1], *([self.columns] if rank > 1 else [])]
        block = [capacity(n) for n in (block[:-1] if self.columns == 0 else block)]
        parts = [-(-capacity(n) // size) for n, size in zip((out.shape[0], *grid), block, strict=False)]
        covered = [t * s.outputs for t, s in zip(grid, schemes, strict=True)]
        padded = window.pad(b, x, covered, 0, f"{name}_pad")
        planes = [s.products for s in schemes]
        depth, channels, axes = w.shape[1], w.shape[0], window.axes()

        def transformed_filter(*i: Expr) -> Expr:
            weights = apply_transforms([s.filter for s in schemes], lambda *k: w[(i[-1], i[-2], *k)])
            return select_element(i[:rank], weights)

        def corner(g: Expr, t: Expr, *across: Expr) -> tuple[Expr, list[Expr]]:
            """The image of tile t of a block, and where in it the tile begins."""
            left, inside = math.prod(parts[1:]), math.prod(block[1:])
            image = g // left * self.images + t // inside % self.images
            start: list[Expr] = []
            for count, size, s in zip(parts[1:], block[1:], schemes, strict=False):
                left, inside = left // count, inside // size
                start.append((g // left % count * size + t // inside % size) * s.outputs)
            return image, [*start, *(a * schemes[-1].outputs for a in across)]

        def transformed_input(g: Expr, *i: Expr) -> Expr:
            c = i[-1]
            image, start = corner(g, *i[rank:-1])
            values = apply_transforms(
                [s.data for s in schemes],
                lambda *k: padded[(image, c, *(p + n for p, n in zip(start, k, strict=True)))],
            )
            return select_element(i[:rank], values)

        u = b.compute(
            f"{name}_filter", (*planes, depth, channels), transformed_filter, axes=[*axes, "i", "o"]
        )
        blocks = math.prod(parts)
        if parts[0] == 1:  # of all images together: those along the first axis are as many as are in use
            blocks = -(-grid[0] // self.rows) * math.prod(parts[2:])
        tiles, names = ((math.prod(block),), ["t"])
        if self.columns == 0:
            # A block that has all rows of an image, which may be open too, has as many as are in use.
            rows = grid[0] if block == [1, capacity(grid[0])] else math.prod(block)
            tiles, names = ((rows, grid[-1]), ["r", "t"])
        v = b.compute(
            f"{name}_input",
            (blocks, *planes, *tiles, depth),
            transformed_input,
            axes=["g", *axes, *names, "i"],
        )

        def factors(*i: Expr) -> tuple[Expr, Expr]:
            g, plane, t, o, c = i[0], i[1 : 1 + rank], i[1 + rank : -2], i[-2], i[-1]
            return v[(g, *plane, *t, c)], u[(*plane, c, o)]

        m = b.reduce(
            f"{name}_gemm",
            (blocks, *planes, *tiles, channels),
            (depth,),
            factors,
            "sum",
            axes=["g", *axes, *names, "o", "i"],
        )

        def result(g: Expr, *i: Expr) -> Expr:
            t, place, o = i[: len(tiles)], i[len(tiles) : -1], i[-1]
            values = apply_transforms([s.output for s in schemes], lambda *k: m[(g, *k, *t, o)])
            return select_element(place, values)

        y = b.compute(
            f"{name}_tile",
            (blocks, *tiles, *self.outputs, channels),
            result,
            axes=["g", *names, *axes, "o"],
        )
        return Tiles(self.outputs, y, parts, block)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Results [block, tile, place in the tile…, channel], with an axis for tiles of the last axis if that is open."""

    outputs: Sequence[int]  # of a tile, along each axis
    buffer: Buffer
    parts: Sequence[int]  # blocks: of images, and along each axis
    block: Sequence[int]  # tiles of a block: of images, and along each axis

    def at(self, *i: Expr) -> Expr:
        """The result for image, channel and place."""
        n, o, places = i[0], i[1], i[2:]
        g, t = n // self.block[0], n % self.block[0]
        for p, size, count, many in zip(places, self.outputs, self.parts[1:], self.block[1:], strict=False):
            g = g * count + p // (size * many)
            t = t * many + p // size % many
        across = [p // size for p, size in zip(places, self.outputs, strict=True)][len(self.block) - 1 :]
        within = [p % size for p, size in zip(places, self.outputs, strict=True)]
        return self.buffer[(g, t, *across, *within, o)]


def algorithms(w: TensorType, window: Window, group: int, out: TensorType) -> Iterator[Winograd]:
    """Those that fit a convolution. Which of them pays is a question of cost."""
    plain = max(*window.strides, *window.dilations) == 1 and group == 1 and out.dtype is DType.F32
    if not plain or min(w.shape[:2]) < _MIN_CHANNELS or max(window.kernel) == 1:
        return
    for outputs in _OUTPUTS:
        schemes = [scheme(1 if k == 1 else outputs, k) for k in window.kernel]
        found = tuple(s for s in schemes if s is not None)
        if len(found) < len(schemes) or math.prod(s.products for s in found) > _MAX_PRODUCTS:
            continue
        grid = Winograd(found, 1, 1).tiles(out.shape[2:])
        most = [capacity(n) for n in grid]
        if math.prod((capacity(out.shape[0]), *most)) == 1:
            continue  # one tile: filters, which are larger than those of the convolution, are all that is read
        if is_open(out.shape):
            if len(grid) > 1 and is_open(grid[-1:]):
                yield from (Winograd(found, rows, 0) for rows in _open_rows(most, is_open(grid[:1])))
            elif len(grid) > 1:
                yield from (Winograd(found, *b) for b in _blocks(most))
            continue
        for rows, columns in _blocks(grid):
            yield Winograd(found, rows, columns)
        for images in _images(grid, out.shape[0]):
            yield Winograd(found, grid[0], grid[-1] if len(grid) > 1 else 1, images)


def _images(grid: Sequence[int], batch: int) -> list[int]:
    """How many images a block may have, if more than one: as few as make tiles enough, for the same two reasons as
    below. Images with enough tiles read filters seldom enough, each for itself.
    """
    each = math.prod(grid)
    wanted = [next((n for n in _divisors(batch) if n * each >= least), batch) for least in _TILES]
    return sorted({*wanted} - {1})


def _blocks(grid: Sequence[int]) -> list[tuple[int, int]]:
    """Rows and columns of blocks: of tiles enough for register tiles, of more so that filters are read less often, and
    of all.
    """
    first, last = grid[0], grid[-1] if len(grid) > 1 else 1
    between = math.prod(grid[1:-1])
    whole = [(n, last) for n in _divisors(first)]
    # A part of a row, where a row is long.
    candidates = [(1, n) for n in _divisors(last)[:-1]] + whole
    wanted = [
        next((c for c in candidates if c[0] * c[1] * between >= least), (first, last)) for least in _TILES
    ]
    return sorted({*wanted, (first, last)})


def _open_rows(grid: Sequence[int], are_rows_open: bool) -> list[int]:
    """As above, of blocks that are as wide as the image, if a part of the width is in use. Where the height is open,
    too, the last of several blocks has rows beyond it; one block has none.
    """
    each = max(math.prod(grid[1:]) // _WIDTHS, 1)
    rows = {next((n for n in _divisors(grid[0]) if n * each >= least), grid[0]) for least in _TILES}
    if are_rows_open and len(grid) == 2:
        rows = {n if n <= _MOST_OPEN_ROWS else grid[0] for n in rows}
    return sorted(rows)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]

"""The program of a layer under a tiling.

    for tiles of the image, for blocks of output channels (or the other way round):
        for chunks of input channels:
            LOAD the window of the tile, padding included, and the weights, unless a slot has them
            MATMUL, once for each row of the window
        TABLE, LOAD of the residual; VECTOR; STORE

Weights lie in DRAM in the order in which they are loaded: block by block, chunk by chunk, each a matrix for every row
of the window (`constants.packed`).
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from tilewright_npu.emitter import Emitter, Slot
from tilewright_npu.isa import Fill, Load, Matmul, Store, Table, Vector
from tilewright_npu.tiling import Place, Tiling, Work
from tilewright_npu.timeline import ENTRY


class _Pool:
    """Slots that hold what was used last."""

    def __init__(self, slots: list[Slot]) -> None:
        self._held: list[tuple[Hashable, Slot]] = [(None, s) for s in slots]

    def take(self, key: Hashable) -> tuple[Slot, bool]:
        """The slot for it, and whether it is there already."""
        at = next((n for n, (held, _) in enumerate(self._held) if held == key), 0)
        held, slot = self._held.pop(at)
        self._held.append((key, slot))
        return slot, held == key


@dataclass(frozen=True, slots=True)
class _Tile:
    """A part of the output image."""

    image: int
    y: int
    x: int
    rows: int
    columns: int

    @property
    def points(self) -> int:
        return self.rows * self.columns


def emit_layer(out: Emitter, work: Work, tiling: Tiling) -> None:
    _Layer(out, work, tiling).emit()


class _Layer:
    def __init__(self, out: Emitter, work: Work, tiling: Tiling) -> None:
        self._out, self._work, self._tiling = out, work, tiling
        self._pools: dict[str, _Pool] = {}
        at = 0
        for name, (count, size) in tiling.areas(work).items():
            self._pools[name] = _Pool([out.slot(at + n * size) for n in range(count)])
            at += count * size
        count, size = tiling.sums(work)
        self._sums = _Pool([out.slot(n * size) for n in range(count)])
        self._tables = _Pool([out.slot(n * tiling.entries) for n in range(2)])

    def emit(self) -> None:
        tiles = list(self._tiles())
        blocks = _parts(self._work.outputs, self._tiling.outputs)
        if self._tiling.weights_first:
            steps = [(t, b) for b in blocks for t in tiles]
        else:
            steps = [(t, b) for t in tiles for b in blocks]
        for tile, (first, count) in steps:
            sums, _ = self._sums.take((tile, first))
            self._products(tile, first, count, sums)
            self._results(tile, first, count, sums)

    def _tiles(self) -> Iterator[_Tile]:
        for image in range(self._work.images):
            for y, rows in _parts(self._work.rows, self._tiling.rows):
                for x, columns in _parts(self._work.columns, self._tiling.columns):
                    yield _Tile(image, y, x, rows, columns)

    def _products(self, tile: _Tile, block: int, columns: int, sums: Slot) -> None:
        work = self._work
        (height, width), (down, right) = work.kernel, work.strides
        for chunk, channels in _parts(work.channels, self._tiling.channels):
            x = self._window(tile, chunk, channels)
            weights = self._weights(block, columns, chunk, channels)
            pitch = ((tile.columns - 1) * right + width) * channels
            for row in range(height):
                self._out.emit(
                    Matmul(
                        at=x.at + row * pitch,
                        row_pitch=down * pitch if tile.rows > 1 else 0,
                        pixel_pitch=right * channels,
                        rows=tile.rows,
                        pixels=tile.columns,
                        depth=width * channels,
                        columns=columns,
                        weights=weights.at + row * width * channels * columns,
                        acc=sums.at,
                        accumulate=int(chunk > 0 or row > 0),
                    ),
                    reads=(x, weights),
                    writes=(sums,),
                )

    def _window(self, tile: _Tile, chunk: int, channels: int) -> Slot:
        """What a tile needs of the input."""
        work, numbers = self._work, self._work.numbers
        slot, is_there = self._pools["x"].take((tile, chunk))
        if is_there:
            return slot
        top, left = (o * s - b for o, s, b in zip((tile.y, tile.x), work.strides, work.before, strict=True))
        rows = (tile.rows - 1) * work.strides[0] + work.kernel[0]
        pixels = (tile.columns - 1) * work.strides[1] + work.kernel[1]
        y, x = max(top, 0), max(left, 0)
        inside = min(top + rows, work.height) - y, min(left + pixels, work.width) - x
        if inside != (rows, pixels):
            self._out.emit(Fill(slot.at, rows * pixels * channels, numbers.zero), writes=(slot,))
        if min(inside) > 0:
            at = slot.at + ((y - top) * pixels + x - left) * channels
            box = (*inside, channels)
            self._load(work.x, (tile.image, y, x, chunk), box, at, pixels * channels, slot)
        return slot

    def _load(
        self, place: Place, start: tuple[int, ...], box: tuple[int, int, int], at: int, pitch: int, slot: Slot
    ) -> None:
        numbers = self._work.numbers
        if place.wide and place is self._work.x:
            self._out.scale(numbers.factor, numbers.zero)
        elif place.wide:
            self._out.scale(numbers.residual_factor, numbers.residual_zero)
        rows, pixels, channels = box
        i = Load(
            _address(place, start),
            *place.strides[1:],
            at,
            pitch if rows > 1 else 0,
            channels,
            rows,
            pixels,
            channels,
            int(place.wide),
        )
        self._out.emit(i, reads=(self._out.tensor(place.at),), writes=(slot,))

    def _weights(self, block: int, columns: int, chunk: int, channels: int) -> Slot:
        work = self._work
        slot, is_there = self._pools["weights"].take((block, chunk))
        if not is_there:
            height, width = work.kernel
            before = height * width * (block * work.channels + chunk * columns)
            i = Load(
                dram=work.weights + before,
                pixel=columns,
                channel=1,
                at=slot.at,
                pixel_pitch=columns,
                rows=1,
                pixels=height * width * channels,
                channels=columns,
            )
            self._out.emit(i, writes=(slot,))
        return slot

    def _results(self, tile: _Tile, block: int, columns: int, sums: Slot) -> None:
        work, numbers = self._work, self._work.numbers
        table, is_there = self._tables.take(block)
        if not is_there:
            self._out.emit(Table(work.table + block * ENTRY, table.at, columns), writes=(table,))
        start, box = (tile.image, tile.y, tile.x, block), (tile.rows, tile.columns, columns)
        pitch = tile.columns * columns
        residual: Slot | None = None
        if work.residual is not None:
            residual, _ = self._pools["residual"].take((tile, block))
            self._load(work.residual, start, box, residual.at, pitch, residual)
        # Bytes first: floats take the place of the sums.
        for place in sorted(work.results, key=lambda p: p.wide):
            target = sums if place.wide else self._pools["out"].take((tile, block))[0]
            self._out.emit(
                Vector(
                    acc=sums.at,
                    rows=tile.points,
                    columns=columns,
                    table=table.at,
                    at=0 if place.wide else target.at,
                    residual=0 if residual is None else residual.at,
                    zero=numbers.out_zero,
                    low=numbers.low,
                    high=numbers.high,
                    residual_zero=numbers.residual_zero,
                    has_residual=int(residual is not None),
                    wide=int(place.wide),
                    relu=int(numbers.relu),
                ),
                reads=(sums, table, *(() if residual is None else (residual,))),
                writes=(target,),
            )
            rows = pitch if tile.rows > 1 else 0
            i = Store(
                _address(place, start), *place.strides[1:], target.at, rows, columns, *box, int(place.wide)
            )
            self._out.emit(i, reads=(target,), writes=(self._out.tensor(place.at),))


def _address(place: Place, start: tuple[int, ...]) -> int:
    """The first byte of what starts at this image, row, pixel and channel."""
    return place.at + sum(n * s for n, s in zip(start, place.strides, strict=True)) * (4 if place.wide else 1)


def _parts(n: int, size: int) -> list[tuple[int, int]]:
    """Where parts start, and how long they are."""
    return [(at, min(size, n - at)) for at in range(0, n, size)]

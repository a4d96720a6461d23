"""Tiles of what windows read: how a convolution's input is unfolded (ALT's overlapped tiling).

T outputs a tile, window stride V, dilation d, kernel of K elements: the index V·o + d·r, o < O, r < K

one window spans M = d·(K - 1) + 1 elements, a tile B = V·(T - 1) + M; tiles start every S = V·T elements, and
there are ceil(O / T). Output o finds its window in tile o // T, from V·(o % T) on.
"""

from dataclasses import dataclass

from tilewright.ir.layout import CropDim, Layout, LayoutPrimitive, UnfoldDim


@dataclass(frozen=True, slots=True)
class WindowTiles:
    """Windows along one dimension, `per_tile` outputs of which read from one tile."""

    outputs: int
    per_tile: int
    kernel: int
    stride: int = 1
    dilation: int = 1

    @property
    def span(self) -> int:
        """Of one window, in elements."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def reach(self) -> int:
        """How many elements are read, up to the last."""
        return self.stride * (self.outputs - 1) + self.span

    @property
    def tile(self) -> int:
        return self.stride * (self.per_tile - 1) + self.span

    @property
    def step(self) -> int:
        """From one tile to the next, in elements."""
        return self.stride * self.per_tile

    @property
    def tiles(self) -> int:
        return -(-self.outputs // self.per_tile)

    def layout(self, dim: int, extent: int) -> Layout:
        """Dimension `dim` of `extent` elements as tiles. What no window reads is cut off: it would get tiles, too."""
        unread = extent - self.reach
        cut: tuple[LayoutPrimitive, ...] = (CropDim(dim, 0, unread),) if unread > 0 else ()
        return Layout((*cut, UnfoldDim(dim, self.tile, self.step)))

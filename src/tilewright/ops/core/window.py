"""Sliding windows, which convolutions and pools share: where a window starts, what it reads, and the padded input.

A window at output position p reads the inputs p·stride + k·dilation − pad for k below the kernel's extent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    Buffer,
    Expr,
    Scalar,
    const,
    select,
)
from tilewright.ops.opdef import OnnxNode
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.support.sizes import is_at_most
from tilewright.tir.build import FuncBuilder

_SPATIAL = "dhw"  # names of the spatial axes, counted from the last


@dataclass(frozen=True, slots=True)
class Window:
    """Per spatial axis: extent of the kernel, step, distance of its taps, and zeros assumed before and after the
    input. With `ceil`, a last window may reach beyond the padding, if it starts before its end."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    ceil: bool = False

    @staticmethod
    def from_onnx(node: OnnxNode, spatial: Sequence[int], kernel: tuple[int, ...]) -> "Window":
        """With automatic padding resolved for input extents `spatial`."""
        rank = len(spatial)
        strides = node.integers("strides") or (1,) * rank
        dilations = node.integers("dilations") or (1,) * rank
        pads = node.integers("pads") or (0,) * (2 * rank)
        if not len(kernel) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
            raise UserError(
                f"{node.op_type} over {rank} spatial axes: kernel, strides, dilations and pads do not match"
            )
        if min(*kernel, *strides, *dilations) < 1 or min(pads) < 0:
            raise UserError(
                f"{node.op_type}: kernel, strides and dilations must be positive, pads not negative"
            )
        before, after = pads[:rank], pads[rank:]
        auto = node.text("auto_pad", "NOTSET")
        match auto:
            case "NOTSET":
                pass
            case "VALID":
                before = after = (0,) * rank
            case "SAME_UPPER" | "SAME_LOWER":
                total = [
                    max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
                    for n, k, s, d in zip(spatial, kernel, strides, dilations, strict=True)
                ]
                small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
                before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
            case _:
                raise UserError(f"{node.op_type}: unknown auto_pad '{auto}'")
        return Window(kernel, strides, dilations, before, after, bool(node.integer("ceil_mode", 0)))

    def reach(self, d: int) -> int:
        """How many inputs one window spans along axis d."""
        return (self.kernel[d] - 1) * self.dilations[d] + 1

    def outputs(self, spatial: Sequence[int]) -> tuple[int, ...] | None:
        """The output's extents by ONNX's formula, which may be 0 if the input is smaller than a window; None if it is
        so much smaller that there would be fewer than none.
        """
        out: list[int] = []
        for d, n in enumerate(spatial):
            room, stride = n + self.before[d] + self.after[d] - self.reach(d), self.strides[d]
            count = room // stride + 1
            if self.ceil:
                count = -(-room // stride) + 1
                count -= (count - 1) * stride >= n + self.before[d]  # starts behind the input
            out.append(count)
        return None if any(n < 0 for n in out) else tuple(out)

    def extents(self, outputs: Sequence[int]) -> tuple[int, ...]:
        """The extents of the padded input that the windows read."""
        return tuple(
            (p - 1) * s + self.reach(d) for d, (p, s) in enumerate(zip(outputs, self.strides, strict=True))
        )

    def taps(self, place: Sequence[Expr], k: Sequence[Expr]) -> tuple[Expr, ...]:
        """The index into the padded input."""
        return tuple(p * s + t * d for p, s, t, d in zip(place, self.strides, k, self.dilations, strict=True))

    def axes(self) -> list[str]:
        return list(_SPATIAL[-len(self.kernel) :])

    def kernel_axes(self) -> list[str]:
        return [f"k{a}" for a in self.axes()]

    def pad(self, b: FuncBuilder, x: Buffer, outputs: Sequence[int], fill: Scalar, name: str) -> Buffer:
        """A block `name` that holds exactly what the windows read: `x` with `fill` around it, or `x` itself if the
        windows never leave it."""
        spatial, read = x.shape[2:], self.extents(outputs)
        if not any(self.before) and all(map(is_at_most, read, spatial)):
            return x

        def element(*i: Expr) -> Expr:
            inside: list[Expr] = []
            at: list[Expr] = []
            for p, n, r, low in zip(i[2:], spatial, read, self.before, strict=True):
                at.append(p - low)
                if low > 0:
                    inside.append(const(low) <= p)
                if not is_at_most(r, low + n):
                    inside.append(p < low + n)
            return select(logical_and(*inside), x[(*i[:2], *at)], const(fill, x.dtype))

        return b.compute(name, (*x.shape[:2], *read), element, axes=["n", "c", *self.axes()])

    def view(self, x: Array, outputs: Sequence[int], fill: float) -> Array:
        """For references: an array [n, c, outputs…, kernel…] of all windows, `fill` outside the input."""
        read = self.extents(outputs)
        padded = np.full(
            (*x.shape[:2], *(max(r, n + p) for r, n, p in zip(read, x.shape[2:], self.before, strict=True))),
            fill,
            x.dtype,
        )
        padded[(..., *(slice(p, p + n) for p, n in zip(self.before, x.shape[2:], strict=True)))] = x
        rank = len(self.kernel)
        grids = np.ix_(*(np.arange(p) for p in outputs), *(np.arange(k) for k in self.kernel))
        at = [grids[d] * self.strides[d] + grids[rank + d] * self.dilations[d] for d in range(rank)]
        return padded[(slice(None), slice(None), *at)]


def check_rank(node: OnnxNode) -> tuple[int, ...]:
    """The spatial extents of input 0, which is [n, c, spatial…]."""
    x = node.input(0)
    if not 3 <= x.rank <= 5:
        raise UserError(f"{node.op_type} of {x}: 1 to 3 spatial axes are supported")
    return x.shape[2:]

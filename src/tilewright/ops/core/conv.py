"""Convolution and its transpose, over 1 to 3 spatial axes.

Blocks: `<name>_pad` if the windows leave the input, then one plain contraction, then the bias. The contraction
takes one of three forms, so that the common ones are free of group arithmetic: all channels together, one channel at
a time (depthwise), or groups in general.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import ml_dtypes
import numpy as np

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    Buffer,
    Expr,
    cast,
    const,
    equal,
    select,
)
from tilewright.ops.axes import FLOATS, accumulator, narrow, widen
from tilewright.ops.core.cook_toom import Scheme
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.window import Window, check_rank
from tilewright.ops.core.winograd import Winograd, algorithms
from tilewright.ops.opdef import Compute, Kind, OnnxNode, Op, OpAlternative, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder

_WIDE = 16  # channels that fill vectors by themselves


def contract(
    b: FuncBuilder,
    x: Buffer,
    w: Buffer,
    window: Window,
    group: int,
    out: TensorType,
    name: str,
    bound: Callable[[Expr], Expr] = lambda weight: weight,
) -> Buffer:
    """The sum over the windows of an input that is already padded, in the accumulator's type. `bound` says more of
    weights in this type than they do themselves.
    """
    rank, wide = len(window.kernel), accumulator(out.dtype)
    places, taps = window.axes(), window.kernel_axes()

    def factors(
        n: Expr, c: Expr, weight: Sequence[Expr], place: Sequence[Expr], k: Sequence[Expr]
    ) -> tuple[Expr, Expr]:
        return cast(wide, x[(n, c, *window.taps(place, k))]), bound(cast(wide, w[(*weight, *k)]))

    if group == 1:

        def together(*i: Expr) -> tuple[Expr, Expr]:
            n, o, place, c, k = i[0], i[1], i[2 : 2 + rank], i[2 + rank], i[3 + rank :]
            return factors(n, c, (o, c), place, k)

        over = (w.shape[1], *window.kernel)
        return b.reduce(name, out.shape, over, together, "sum", axes=["n", "o", *places, "i", *taps])

    if w.shape[0] == group and w.shape[1] == 1:

        def depthwise(*i: Expr) -> tuple[Expr, Expr]:
            return factors(i[0], i[1], (i[1], const(0)), i[2 : 2 + rank], i[2 + rank :])

        return b.reduce(name, out.shape, window.kernel, depthwise, "sum", axes=["n", "c", *places, *taps])

    each, depth = w.shape[0] // group, w.shape[1]

    def grouped(*i: Expr) -> tuple[Expr, Expr]:
        n, g, o, place, c, k = i[0], i[1], i[2], i[3 : 3 + rank], i[3 + rank], i[4 + rank :]
        return factors(n, g * depth + c, (g * each + o, c), place, k)

    shape, axes = (out.shape[0], group, each, *out.shape[2:]), ["n", "g", "o", *places]
    groups = b.reduce(
        f"{name}_groups", shape, (depth, *window.kernel), grouped, "sum", axes=[*axes, "i", *taps]
    )
    return b.compute(
        name,
        out.shape,
        lambda *i: groups[(i[0], i[1] // each, i[1] % each, *i[2:])],
        axes=["n", "o", *places],
    )


def add_bias(
    b: FuncBuilder,
    total: Callable[..., Expr],
    bias: Sequence[Buffer],
    window: Window,
    out: TensorType,
    name: str,
) -> Buffer:
    """The result of a contraction with the bias, if there is one, in the output's type. `total` gives it at a place.

    It is a block of its own even if it only copies: so the contraction's result, which need not be stored, may have
    another layout than the output.
    """

    def finished(*i: Expr) -> Expr:
        return cast(out.dtype, _with_bias(total(*i), bias, i[1]))

    return b.compute(name, out.shape, finished, axes=["n", "o", *window.axes()])


@dataclass(frozen=True, slots=True)
class Conv(Op):
    """x[n, c, …] with weights [o, c / group, kernel…] and an optional bias [o]."""

    onnx = ("Conv",)
    kind = Kind.CONTRACTION
    window: Window
    group: int = 1

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        spatial, weight = check_rank(node), node.input(1)
        kernel = node.integers("kernel_shape") or weight.shape[2:]
        if kernel != weight.shape[2:]:
            raise UserError(f"Conv: kernel_shape {list(kernel)} is not that of the weights {weight}")
        return cls(Window.from_onnx(node, spatial, kernel), node.integer("group", 1)), node.present

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2, 3)
        x, w, *bias = inputs
        rank = len(self.window.kernel)
        if any(t.dtype is not x.dtype for t in inputs) or x.dtype not in FLOATS:
            raise self.misfit(inputs, "all must have the same float type")
        if x.rank != rank + 2 or w.rank != rank + 2 or w.shape[2:] != self.window.kernel:
            raise self.misfit(inputs, f"the window is {list(self.window.kernel)}")
        if self.group < 1 or w.shape[1] * self.group != x.shape[1] or w.shape[0] % self.group:
            raise self.misfit(inputs, f"the channels do not fit {self.group} group(s)")
        if bias and bias[0].shape != w.shape[:1]:
            raise self.misfit(inputs, f"the bias must have {w.shape[0]} elements")
        places = self.window.outputs(x.shape[2:])
        if places is None:
            raise self.misfit(inputs, "the padded input is smaller than the window")
        return (TensorType(x.dtype, (x.shape[0], w.shape[0], *places)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, w, *bias = inputs
        (out,) = self.infer([TensorType(t.dtype, t.shape) for t in inputs])
        padded = self.window.pad(b, x, out.shape[2:], 0, f"{name}_pad")
        total = contract(b, padded, w, self.window, self.group, out, f"{name}_conv")
        return (add_bias(b, lambda *i: total[i], bias, self.window, out, name),)

    def alternatives(self, inputs: Sequence[TensorType]) -> Sequence[OpAlternative]:
        (out,) = self.infer(inputs)
        w = inputs[1]
        measured: dict[tuple[Scheme, ...], float] = {}

        def error(a: Winograd, weights: Array | None) -> float:
            """How many tiles go together makes no difference to it."""
            if a.schemes not in measured:
                measured[a.schemes] = a.error(weights)
            return measured[a.schemes]

        found = algorithms(w, self.window, self.group, out)
        return [OpAlternative(str(a), self._by(a), lambda known, a=a: error(a, known[1])) for a in found]

    def _by(self, algorithm: Winograd) -> Compute:
        def compute(b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
            x, w, *bias = inputs
            (out,) = self.infer([TensorType(t.dtype, t.shape) for t in inputs])
            tiles = algorithm.compute(b, x, w, self.window, out, name)
            return (add_bias(b, tiles.at, bias, self.window, out, name),)

        return compute

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(t) for t in inputs])
        x, w, *bias = (widen(t) for t in inputs)
        rank, g = len(self.window.kernel), self.group
        views = self.window.view(x, out.shape[2:], 0.0)
        views = views.reshape(x.shape[0], g, x.shape[1] // g, *views.shape[2:])
        weights = w.reshape(g, w.shape[0] // g, *w.shape[1:])
        places, taps = "xyz"[:rank], "uvw"[:rank]
        with np.errstate(all="ignore"):
            total = np.einsum(f"ngi{places}{taps},goi{taps}->ngo{places}", views, weights).reshape(out.shape)
            if bias:
                total = total + bias[0].reshape(-1, *[1] * rank)
        return (narrow(total, out.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x, w, bias = normal(rng, 1, 2, 5, 4), normal(rng, 3, 2, 3, 3), normal(rng, 3)
        yield cls.sample(x, w)
        yield cls.sample(x, w, bias, pads=[1, 1, 1, 1], kernel_shape=[3, 3])
        yield cls.sample(x, w, bias, pads=[1, 0, 2, 1], strides=[2, 3])
        yield cls.sample(x, w, pads=[2, 2, 2, 2], dilations=[2, 2], strides=[1, 2])
        yield cls.sample(x, normal(rng, 3, 2, 1, 1), bias, strides=[2, 2])
        yield cls.sample(x, w, auto_pad="SAME_UPPER", strides=[2, 2])
        yield cls.sample(x, normal(rng, 3, 2, 2, 2), auto_pad="SAME_LOWER")
        yield cls.sample(x, w, auto_pad="VALID")
        depthwise = normal(rng, 2, 1, 3, 3)
        yield cls.sample(x, depthwise, normal(rng, 2), group=2, pads=[1, 1, 1, 1])
        yield cls.sample(x, normal(rng, 4, 1, 2, 2), group=2)
        yield cls.sample(
            normal(rng, 2, 4, 3, 3), normal(rng, 6, 2, 2, 2), normal(rng, 6), group=2, pads=[0, 0, 1, 1]
        )
        yield cls.sample(normal(rng, 1, 2, 7), normal(rng, 2, 2, 3), pads=[1, 1], strides=[2])
        yield cls.sample(normal(rng, 1, 1, 3, 3, 3), normal(rng, 2, 1, 2, 2, 2), pads=[0, 1, 0, 0, 0, 0])
        yield cls.sample(
            normal(rng, 1, 4, 6), normal(rng, 4, 1, 2), group=4, strides=[3], auto_pad="SAME_UPPER"
        )
        deep = normal(rng, 1, 4, 3, 3, 4), normal(rng, 2, 2, 2, 2, 2), normal(rng, 2)
        yield cls.sample(*deep, group=2, strides=[1, 2, 1], auto_pad="SAME_LOWER")
        yield cls.sample(x.astype(np.float16), w.astype(np.float16), bias.astype(np.float16))
        yield cls.sample(*(a.astype(np.float64) for a in (x, w, bias)), pads=[1, 1, 1, 1])
        op = cls.sample(x, w, bias, strides=[2, 1]).op
        yield Sample(op, tuple(a.astype(ml_dtypes.bfloat16) for a in (x, w, bias)))


def _with_bias(value: Expr, bias: Sequence[Buffer], channel: Expr) -> Expr:
    for c in bias:
        value = value + cast(value.dtype, c[channel])
    return value


class _Residues:
    """Outputs of a transposed convolution whose kernels are multiples of the strides, by their residues modulo these.

    With position + padding = stride·q + r, out[…] is the sum over t of x[…, q - t·dilation] · w[…, r + stride·t]. The
    `sparse` window has the taps that one residue sees; at place 0 it is at the q of position 0.
    """

    def __init__(self, window: Window, outputs: Sequence[int]) -> None:
        axes = list(zip(window.kernel, window.strides, window.dilations, window.before, strict=True))
        kernel = tuple(k // s for k, s, _, _ in axes)
        before = tuple((k // s - 1) * d - p // s for k, s, d, p in axes)
        rank = len(kernel)
        self.sparse = Window(kernel, (1,) * rank, window.dilations, before, (0,) * rank)
        self.strides = window.strides
        self.start = [p % s for _, s, _, p in axes]  # the residue of position 0
        # How many q there are: for one residue that position 0 has, and for all residues together.
        self.apart = tuple(-(-n // s) for n, s in zip(outputs, window.strides, strict=True))
        self.together = tuple(
            -(-(n + first) // s) for n, first, s in zip(outputs, self.start, window.strides, strict=True)
        )

    def taps(self, residue: Sequence[Expr], t: Sequence[Expr]) -> list[Expr]:
        """Where in the kernel tap number t of the window is: from the last one of the residue to the first."""
        axes = zip(residue, t, self.strides, self.sparse.kernel, strict=True)
        return [r + (const(count - 1) - k) * s for r, k, s, count in axes]


@dataclass(frozen=True, slots=True)
class ConvTranspose(Op):
    """The transpose of a convolution: each element of x[n, c, …] adds its multiple of the weights
    [c, o / group, kernel…] to the output, `strides` apart.

    Where the kernel is a multiple of the stride, outputs of one residue modulo the stride all have the same number of
    taps, `strides` apart in the weights and side by side in x. So it is a convolution without strides with a set of
    output channels per residue, and a block that puts the residues next to each other. Other kernels would have to be
    filled up with zeros, which are not neutral (0·∞); there x with zeros between its elements is convolved instead.
    `window` has the padding that is cut off the output; `extra` is added at its end.
    """

    onnx = ("ConvTranspose",)
    kind = Kind.CONTRACTION
    window: Window
    group: int = 1
    extra: tuple[int, ...] = ()

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        spatial, kernel = check_rank(node), node.input(1).shape[2:]
        rank, auto = len(spatial), node.text("auto_pad", "NOTSET")
        plain = replace(node, attrs={k: v for k, v in node.attrs.items() if k != "auto_pad"})
        window = Window.from_onnx(plain, spatial, kernel)
        extra = node.integers("output_padding") or (0,) * rank
        if len(extra) != rank or min(extra) < 0:
            raise UserError(f"ConvTranspose: output_padding {list(extra)} for {rank} spatial axes")
        wanted = node.integers("output_shape")
        if wanted is not None or auto.startswith("SAME"):
            sizes = (
                tuple(n * s for n, s in zip(spatial, window.strides, strict=True))
                if wanted is None
                else wanted[-rank:]
            )
            full = cls(replace(window, before=(0,) * rank, after=(0,) * rank), 1, extra).places(spatial)
            cut = [max(0, f - n) for f, n in zip(full, sizes, strict=True)]
            small, large = tuple(c // 2 for c in cut), tuple(c - c // 2 for c in cut)
            before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
            window = replace(window, before=before, after=after)
            extra = tuple(e + max(0, n - f) for e, f, n in zip(extra, full, sizes, strict=True))
        return cls(window, node.integer("group", 1), extra), node.present

    def places(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """The output's extents."""
        w, extra = self.window, self.extra or (0,) * len(spatial)
        return tuple(
            (n - 1) * w.strides[d] + w.reach(d) + extra[d] - w.before[d] - w.after[d]
            for d, n in enumerate(spatial)
        )

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2, 3)
        x, w, *bias = inputs
        rank = len(self.window.kernel)
        if any(t.dtype is not x.dtype for t in inputs) or x.dtype not in FLOATS:
            raise self.misfit(inputs, "all must have the same float type")
        if x.rank != rank + 2 or w.rank != rank + 2 or w.shape[2:] != self.window.kernel:
            raise self.misfit(inputs, f"the window is {list(self.window.kernel)}")
        if self.group < 1 or w.shape[0] != x.shape[1] or x.shape[1] % self.group:
            raise self.misfit(inputs, f"the channels do not fit {self.group} group(s)")
        if bias and bias[0].shape != (w.shape[1] * self.group,):
            raise self.misfit(inputs, f"the bias must have {w.shape[1] * self.group} elements")
        places = self.places(x.shape[2:])
        if any(n < 0 for n in places):
            raise self.misfit(inputs, "more padding is cut off than there is of the output")
        return (TensorType(x.dtype, (x.shape[0], w.shape[1] * self.group, *places)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, w, *bias = inputs
        (out,) = self.infer([TensorType(t.dtype, t.shape) for t in inputs])
        window = self.window
        axes = zip(window.kernel, window.strides, window.dilations, strict=True)
        if not all(s == 1 or (d == 1 and k % s == 0) for k, s, d in axes):
            return (self._zero_stuffed(b, x, w, bias, out, name),)
        if self.group == 1 and w.shape[1] >= _WIDE:
            return (self._residue_by_residue(b, x, w, bias, out, name),)
        return (self._residues_together(b, x, w, bias, out, name),)

    def _residues_together(
        self, b: FuncBuilder, x: Buffer, w: Buffer, bias: Sequence[Buffer], out: TensorType, name: str
    ) -> Buffer:
        """All residues are computed for all q, in channels side by side: one plain convolution, which fills vectors
        even with few channels. Some that belong to positions cut off by the padding are computed in vain.
        """
        window, strides, wide = self.window, self.window.strides, accumulator(out.dtype)
        r = _Residues(window, out.shape[2:])
        count, depth, each = math.prod(strides), x.shape[1] // self.group, w.shape[1]

        def taps(*i: Expr) -> Expr:
            o, c, t = i[0], i[1], i[2:]
            residue, rest = list[Expr](), o // each % count
            for s in reversed(strides):
                residue.insert(0, rest % s)
                rest = rest // s
            return w[(o // (count * each) * depth + c, o % each, *r.taps(residue, t))]

        def finished(*i: Expr) -> Expr:
            residue: Expr = const(0)
            for p, s, first in zip(i[2:], strides, r.start, strict=True):
                residue = residue * s + (p + first) % s
            channel = (i[1] // each * count + residue) * each + i[1] % each
            at = [(p + first) // s for p, s, first in zip(i[2:], strides, r.start, strict=True)]
            return cast(out.dtype, _with_bias(total[(i[0], channel, *at)], bias, i[1]))

        channels = out.shape[1] * count
        padded = r.sparse.pad(b, x, r.together, 0, f"{name}_pad")
        weights = b.compute(
            f"{name}_taps", (channels, depth, *r.sparse.kernel), taps, axes=["o", "i", *window.kernel_axes()]
        )
        images = TensorType(wide, (x.shape[0], channels, *r.together))
        total = contract(b, padded, weights, r.sparse, self.group, images, f"{name}_conv")
        return b.compute(name, out.shape, finished, axes=["n", "o", *window.axes()])

    def _residue_by_residue(
        self, b: FuncBuilder, x: Buffer, w: Buffer, bias: Sequence[Buffer], out: TensorType, name: str
    ) -> Buffer:
        """Each residue is a convolution of its own, over just the q that it needs; for one group."""
        window, strides, wide = self.window, self.window.strides, accumulator(out.dtype)
        r = _Residues(window, out.shape[2:])
        rank, names, kernel = len(strides), window.axes(), r.sparse.kernel
        carry = [(first + s - 1) // s for first, s in zip(r.start, strides, strict=True)]

        def taps(*i: Expr) -> Expr:
            j, o, c, t = i[:rank], i[rank], i[rank + 1], i[rank + 2 :]
            residue = [(v + first) % s for v, first, s in zip(j, r.start, strides, strict=True)]
            return w[(c, o, *r.taps(residue, t))]

        def factors(*i: Expr) -> tuple[Expr, Expr]:
            n, j, o, q = i[0], i[1 : 1 + rank], i[1 + rank], i[2 + rank : 2 + 2 * rank]
            c, t = i[2 + 2 * rank], i[3 + 2 * rank :]
            place = [p + (v + first) // s for p, v, first, s in zip(q, j, r.start, strides, strict=True)]
            return cast(wide, padded[(n, c, *r.sparse.taps(place, t))]), cast(wide, weights[(*j, o, c, *t)])

        def finished(*i: Expr) -> Expr:
            j = [p % s for p, s in zip(i[2:], strides, strict=True)]
            at = [p // s for p, s in zip(i[2:], strides, strict=True)]
            return cast(out.dtype, _with_bias(total[(i[0], *j, i[1], *at)], bias, i[1]))

        reached = [n + extra for n, extra in zip(r.apart, carry, strict=True)]
        padded = r.sparse.pad(b, x, reached, 0, f"{name}_pad")
        residues = [f"r{a}" for a in names]
        weights = b.compute(
            f"{name}_taps",
            (*strides, w.shape[1], w.shape[0], *kernel),
            taps,
            axes=[*residues, "o", "i", *window.kernel_axes()],
        )
        total = b.reduce(
            f"{name}_conv",
            (x.shape[0], *strides, w.shape[1], *r.apart),
            (w.shape[0], *kernel),
            factors,
            "sum",
            axes=["n", *residues, "o", *names, "i", *window.kernel_axes()],
        )
        return b.compute(name, out.shape, finished, axes=["n", "o", *names])

    def _zero_stuffed(
        self, b: FuncBuilder, x: Buffer, w: Buffer, bias: Sequence[Buffer], out: TensorType, name: str
    ) -> Buffer:
        """A convolution of x, with zeros between its elements, by the mirrored weights."""
        window, names = self.window, self.window.axes()
        rank, depth, each = len(window.kernel), x.shape[1] // self.group, w.shape[1]
        dense = Window(window.kernel, (1,) * rank, window.dilations, (0,) * rank, (0,) * rank)

        def spread(*i: Expr) -> Expr:
            inside: list[Expr] = []
            at: list[Expr] = []
            for d, p in enumerate(i[2:]):
                place = p - (window.reach(d) - 1 - window.before[d])
                stride = window.strides[d]
                inside += [
                    const(0) <= place,
                    place < (x.shape[2 + d] - 1) * stride + 1,
                    equal(place % stride, 0),
                ]
                at.append(place // stride)
            return select(logical_and(*inside), x[(*i[:2], *at)], const(0, x.dtype))

        def mirror(*i: Expr) -> Expr:
            o, c, k = i[0], i[1], i[2:]
            taps = [const(n - 1) - t for n, t in zip(window.kernel, k, strict=True)]
            return w[((o // each) * depth + c, o % each, *taps)] if self.group > 1 else w[(c, o, *taps)]

        sparse = b.compute(
            f"{name}_pad", (*x.shape[:2], *dense.extents(out.shape[2:])), spread, axes=["n", "c", *names]
        )
        weights = b.compute(
            f"{name}_mirror",
            (out.shape[1], depth, *window.kernel),
            mirror,
            axes=["o", "i", *window.kernel_axes()],
        )
        total = contract(b, sparse, weights, dense, self.group, out, f"{name}_conv")
        return add_bias(b, lambda *i: total[i], bias, window, out, name)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(t) for t in inputs])
        x, w, *bias = (widen(t) for t in inputs)
        window, g, rank = self.window, self.group, len(self.window.kernel)
        shape = [n + p + q for n, p, q in zip(out.shape[2:], window.before, window.after, strict=True)]
        total = np.zeros((x.shape[0], out.shape[1], *shape))
        groups, weights = x.reshape(x.shape[0], g, -1, *x.shape[2:]), w.reshape(g, -1, *w.shape[1:])
        for tap in np.ndindex(*window.kernel):
            part = np.einsum("ngi...,gio->ngo...", groups, weights[(..., *tap)]).reshape(
                x.shape[0], -1, *x.shape[2:]
            )
            steps = zip(tap, window.dilations, window.strides, x.shape[2:], strict=True)
            total[(..., *(slice(t * d, t * d + s * (n - 1) + 1, s) for t, d, s, n in steps))] += part
        places = (slice(p, p + n) for p, n in zip(window.before, out.shape[2:], strict=True))
        value = total[(..., *places)] + (bias[0].reshape(-1, *[1] * rank) if bias else 0)
        return (narrow(value, out.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x, w, bias = normal(rng, 1, 2, 3, 4), normal(rng, 2, 3, 3, 3), normal(rng, 3)
        yield cls.sample(x, w, bias)
        yield cls.sample(x, w, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])
        yield cls.sample(x, w, bias, strides=[2, 1], pads=[1, 0, 0, 2], dilations=[1, 2])
        yield cls.sample(x, w, strides=[2, 2], auto_pad="SAME_UPPER")
        yield cls.sample(x, w, strides=[2, 2], output_shape=[6, 8])
        yield cls.sample(x, normal(rng, 2, 2, 2, 2), normal(rng, 4), group=2, strides=[2, 2])
        yield cls.sample(x, normal(rng, 2, 1, 2, 2), group=2)
        yield cls.sample(normal(rng, 1, 2, 4), normal(rng, 2, 1, 3), strides=[3])
        even = normal(rng, 2, 3, 4, 2)
        yield cls.sample(x, even, bias, strides=[2, 2], pads=[1, 0, 1, 0])
        wide = normal(rng, 2, 16, 4, 4)
        yield cls.sample(x, wide, normal(rng, 16), strides=[2, 2], pads=[1, 1, 1, 1])
        yield cls.sample(x, wide, strides=[2, 4], pads=[1, 3, 2, 0], output_padding=[0, 1])
        yield cls.sample(normal(rng, 2, 2, 4), normal(rng, 2, 16, 6), strides=[3], pads=[2, 1])
        yield cls.sample(x, even, strides=[2, 1], pads=[3, 1, 2, 0], output_padding=[1, 0], dilations=[1, 2])
        yield cls.sample(
            x, normal(rng, 2, 2, 4, 4), normal(rng, 4), group=2, strides=[2, 2], pads=[1, 1, 1, 1]
        )
        yield cls.sample(
            normal(rng, 1, 2, 2, 3, 2), normal(rng, 2, 2, 2, 2, 4), strides=[2, 1, 2], pads=[0, 1, 3, 1, 0, 0]
        )
        yield cls.sample(x, w, strides=[2, 2], auto_pad="SAME_LOWER")
        yield cls.sample(x, w, strides=[2, 3], auto_pad="VALID")
        yield cls.sample(x, w, strides=[3, 2], output_shape=[10, 8], output_padding=[1, 0])
        yield cls.sample(x, w, strides=[2, 2], output_shape=[6, 9], auto_pad="SAME_UPPER")
        yield cls.sample(normal(rng, 1, 4, 5), normal(rng, 4, 2, 3), normal(rng, 4), group=2, dilations=[2])
        for dtype in (np.float16, np.float64):
            yield cls.sample(*(a.astype(dtype) for a in (x, w, bias)), strides=[2, 1])
        op = cls.sample(x, even, bias, strides=[2, 2]).op
        yield Sample(op, tuple(a.astype(ml_dtypes.bfloat16) for a in (x, even, bias)))

"""Random tensor functions: chains of products, convolutions, elementwise stages, reductions, paddings and movements.

`random_func(seed)` is the same each time. Shapes are small and odd, so that splits leave remainders; there are integer
and float types. No transcendental functions: their native versions round differently from the reference.
"""

import math
import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    Buffer,
    Expr,
    const,
    maximum,
    minimum,
    select,
)
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func

Value: TypeAlias = Callable[[list[Expr]], Expr]
ReduceValue: TypeAlias = Callable[[list[Expr]], "Expr | tuple[Expr, Expr]"]

DTYPES = (DType.I32, DType.I64, DType.F32, DType.F64)
MAX_ELEMENTS = 400  # of one buffer
MAX_UPDATES = 4000  # of one reduction


class _Author:
    """Writes one function, stage by stage. Each stage reads an earlier buffer, mostly the last one."""

    def __init__(self, rng: random.Random, dims: Sequence[int] = ()) -> None:
        self.rng = rng
        self.dtype = rng.choice(DTYPES)
        self.b = FuncBuilder("random")
        self.made: list[Buffer] = []
        self.inputs: list[Buffer] = []
        shape = [rng.randint(1, 7) for _ in range(rng.randint(1, 3))]
        for n in dims:  # open ones, somewhere
            shape.insert(rng.randint(0, len(shape)), n)
        self._input(tuple(shape[:4]))

    def _input(self, shape: tuple[int, ...]) -> Buffer:
        x = self.b.param(f"X{len(self.inputs)}", shape, self.dtype)
        self.inputs.append(x)
        return x

    def _name(self) -> str:
        return f"T{len(self.made)}"

    def _axes(self, n: int) -> list[str]:
        return [f"a{d}" for d in range(n)]

    def compute(self, shape: tuple[int, ...], value: Value) -> None:
        out = self.b.compute(self._name(), shape, lambda *i: value(list(i)), axes=self._axes(len(shape)))
        self.made.append(out)

    def reduce(
        self, shape: tuple[int, ...], over: tuple[int, ...], value: ReduceValue, combine: str = "sum"
    ) -> None:
        out = self.b.reduce(
            self._name(),
            shape,
            over,
            lambda *i: value(list(i)),
            combine,
            axes=self._axes(len(shape) + len(over)),
        )
        self.made.append(out)

    def source(self) -> Buffer:
        known = [*self.inputs, *self.made]
        return self.made[-1] if self.made and self.rng.random() < 0.7 else self.rng.choice(known)

    # ------------------------------------------------------------------------------------------------------- stages

    def elementwise(self) -> None:
        x = self.source()
        same = [y for y in (*self.inputs, *self.made) if y.shape == x.shape]
        y, k = self.rng.choice(same), self.rng.randint(-3, 3)

        def value(i: list[Expr]) -> Expr:
            a, b = x[tuple(i)], y[tuple(i)]
            return (a * k + b, maximum(a, const(0, self.dtype)), minimum(a, b) - k, a * b)[k % 4]

        self.compute(x.shape, value)

    def broadcast(self) -> None:
        x = self.source()
        d = self.rng.randrange(len(x.shape)) if x.shape else None
        w = self._input((x.shape[d],) if d is not None else (1,))
        self.compute(x.shape, lambda i: x[tuple(i)] + w[(i[d] if d is not None else const(0),)])

    def transpose(self) -> None:
        x = self.source()
        order = self.rng.sample(range(len(x.shape)), len(x.shape))
        inverse = [order.index(d) for d in range(len(order))]
        self.compute(tuple(x.shape[d] for d in order), lambda i: x[tuple(i[p] for p in inverse)] * 2)

    def pad(self) -> None:
        x = self.source()
        if not x.shape:
            return self.elementwise()
        d = self.rng.randrange(len(x.shape))
        before, after = self.rng.randint(0, 2), self.rng.randint(0, 3)
        shape = tuple(n + (before + after if e == d else 0) for e, n in enumerate(x.shape))
        if math.prod(shape) > MAX_ELEMENTS:
            return self.elementwise()

        def value(i: list[Expr]) -> Expr:
            inside = logical_and(const(before) <= i[d], i[d] < before + x.shape[d])
            there = tuple(e - before if n == d else e for n, e in enumerate(i))
            return select(inside, x[there], const(0, self.dtype))

        self.compute(shape, value)

    def take(self) -> None:
        """Every second element, or a part."""
        x = self.source()
        big = [d for d, n in enumerate(x.shape) if n > 2]
        if not big:
            return self.elementwise()
        d, step = self.rng.choice(big), self.rng.choice((1, 2))
        start = self.rng.randint(0, 1)
        shape = tuple((n - start - 1) // step + 1 if e == d else n for e, n in enumerate(x.shape))
        self.compute(
            shape, lambda i: x[tuple(e * step + start if n == d else e for n, e in enumerate(i))] + 1
        )

    def reshape(self) -> None:
        x = self.source()
        if len(x.shape) < 2:
            return self.elementwise()
        *rest, m, n = x.shape
        self.compute((*rest, m * n), lambda i: x[(*i[:-1], i[-1] // n, i[-1] % n)] - 1)

    def sum_of(self) -> None:
        x = self.source()
        if not x.shape:
            return self.elementwise()
        n = self.rng.randint(1, len(x.shape))
        over = sorted(self.rng.sample(range(len(x.shape)), n))
        kept = [d for d in range(len(x.shape)) if d not in over]
        order = [*kept, *over]
        combine = self.rng.choice(("sum", "max", "min", "prod") if self.dtype.is_float else ("sum", "max"))
        self.reduce(
            tuple(x.shape[d] for d in kept),
            tuple(x.shape[d] for d in over),
            lambda i: x[tuple(i[order.index(d)] for d in range(len(order)))],
            combine,
        )

    def product(self) -> None:
        x = self.source()
        if not x.shape:
            return self.elementwise()
        n = self.rng.randint(1, 7)
        *rest, k = x.shape
        if math.prod(rest) * n > MAX_ELEMENTS or math.prod(rest) * n * k > MAX_UPDATES:
            return self.elementwise()
        batched = bool(rest) and self.rng.random() < 0.3
        w = self._input((rest[0], k, n) if batched else (k, n))

        def value(i: list[Expr]) -> tuple[Expr, Expr]:
            *outer, j, r = i
            return x[(*outer, r)], w[(outer[0], r, j) if batched else (r, j)]

        self.reduce((*rest, n), (k,), value)

    def convolution(self) -> None:
        x = self.source()
        if not x.shape or x.shape[-1] < 3:
            return self.elementwise()
        *rest, size = x.shape
        taps, stride = self.rng.randint(1, 3), self.rng.randint(1, 2)
        dilation = self.rng.randint(1, 2) if (taps - 1) * 2 < size else 1
        out = (size - (taps - 1) * dilation - 1) // stride + 1
        w = self._input((taps,))
        self.reduce(
            (*rest, out), (taps,), lambda i: (x[(*i[:-2], i[-2] * stride + i[-1] * dilation)], w[(i[-1],)])
        )


STAGES = (
    _Author.elementwise,
    _Author.broadcast,
    _Author.transpose,
    _Author.pad,
    _Author.take,
    _Author.reshape,
    _Author.sum_of,
    _Author.product,
    _Author.product,
    _Author.convolution,
    _Author.convolution,
    _Author.convolution,
)


def random_func(seed: int, dims: Sequence[int] = ()) -> Func:
    """`dims` are further dimensions of its first input, which may be open."""
    rng = random.Random(seed)
    author = _Author(rng, dims)
    for _ in range(rng.randint(1, 4)):
        rng.choice(STAGES)(author)
    last = author.made[-1]
    other = rng.choice(author.made)
    return author.b.finish(*dict.fromkeys((last, other) if rng.random() < 0.2 else (last,)))

"""Einsum: a sum of products, with the axes named by letters."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, cast
from tilewright.ops.axes import NUMBERS, accumulator, narrow, widen
from tilewright.ops.elementwise import normal
from tilewright.ops.opdef import Array, Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class Einsum(Op):
    """`terms` has a letter for every axis of each input, `result` for those of the output; the other letters are summed
    over. An axis of extent 1 stretches.

    Axes that ONNX leaves to an ellipsis have capital letters, counted from the last.
    """

    onnx = ("Einsum",)
    kind = Kind.CONTRACTION
    terms: tuple[str, ...]
    result: str

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        equation = node.text("equation", "").replace(" ", "")
        left, arrow, right = equation.partition("->")
        ranks = [node.input(i).rank for i in range(len(node.inputs))]
        terms = left.split(",")
        if len(terms) != len(ranks):
            raise UserError(f"Einsum '{equation}' has {len(terms)} terms for {len(ranks)} inputs")
        spans = [rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True)]
        if any(n < 0 or (n and "..." not in t) for t, n in zip(terms, spans, strict=True)):
            raise UserError(f"Einsum '{equation}' does not fit inputs with {ranks} axes")
        letters = [c for t in terms for c in t if c != "."]
        if not arrow:
            right = "..." * ("..." in left) + "".join(
                sorted(c for c in set(letters) if letters.count(c) == 1)
            )
        # Capital letters are free for the ellipsis if the equation uses none.
        names = "".join(letters) + right.replace("...", "")
        if (not names.isalpha() and names) or any(c.isupper() for c in names) or max(spans, default=0) > 26:
            raise UserError(
                f"Einsum '{equation}': only small letters and one ellipsis per term are supported"
            )
        shared = "".join(chr(ord("A") + k) for k in reversed(range(max(spans, default=0))))
        spelled = tuple(
            t.replace("...", shared[len(shared) - n :]) for t, n in zip(terms, spans, strict=True)
        )
        return cls(spelled, right.replace("...", shared)), node.present

    def _extents(self, inputs: Sequence[TensorType]) -> dict[str, int]:
        """The extent of each letter, in the order of their first use."""
        out: dict[str, int] = {}
        for term, t in zip(self.terms, inputs, strict=True):
            for letter, n in zip(term, t.shape, strict=True):
                if n != 1 and out.get(letter, 1) not in (1, n):
                    raise self.misfit(
                        inputs, f"axis {letter} of {','.join(self.terms)} has extents {out[letter]} and {n}"
                    )
                out[letter] = max(n, out.get(letter, n))
        return out

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, len(self.terms))
        if any(t.dtype is not inputs[0].dtype for t in inputs) or inputs[0].dtype not in NUMBERS:
            raise self.misfit(inputs, "all must have the same numeric type")
        if any(len(term) != t.rank for term, t in zip(self.terms, inputs, strict=True)):
            raise self.misfit(inputs, f"does not fit {','.join(self.terms)}")
        extents = self._extents(inputs)
        if len(set(self.result)) != len(self.result) or any(c not in extents for c in self.result):
            raise self.misfit(inputs, f"the output {self.result} repeats a letter or has a new one")
        return (TensorType(inputs[0].dtype, tuple(extents[c] for c in self.result)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        types = [TensorType(x.dtype, x.shape) for x in inputs]
        (out,) = self.infer(types)
        extents, wide = self._extents(types), accumulator(out.dtype)
        over = [c for c in extents if c not in self.result]

        def factors(*i: Expr) -> list[Expr]:
            at = dict(zip((*self.result, *over), i, strict=True))
            return [
                cast(
                    wide,
                    x[tuple(at[c] if n == extents[c] else 0 for c, n in zip(term, x.shape, strict=True))],
                )
                for term, x in zip(self.terms, inputs, strict=True)
            ]

        def product(*i: Expr) -> Expr:
            return reduce(lambda p, q: p * q, factors(*i))

        def pair(*i: Expr) -> Expr | tuple[Expr, Expr]:
            *first, last = factors(*i)
            return (reduce(lambda p, q: p * q, first), last) if first else last

        if not over:
            return (
                b.compute(name, out.shape, lambda *i: cast(out.dtype, product(*i)), axes=list(self.result)),
            )
        axes, depth = [*self.result, *over], [extents[c] for c in over]
        if wide is out.dtype:
            return (b.reduce(name, out.shape, depth, pair, "sum", axes=axes),)
        total = b.reduce(f"{name}_sum", out.shape, depth, pair, "sum", axes=axes)
        return (b.compute(name, out.shape, lambda *i: cast(out.dtype, total[i]), axes=list(self.result)),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        extents = self._extents([TensorType.of(x) for x in inputs])
        wide = [
            np.broadcast_to(widen(x), [extents[c] for c in term])
            for term, x in zip(self.terms, inputs, strict=True)
        ]
        with np.errstate(all="ignore"):
            total = np.einsum(f"{','.join(self.terms)}->{self.result}", *wide)
        return (narrow(np.asarray(total), DType.of(inputs[0].dtype)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        a, b = normal(rng, 2, 3, 4), normal(rng, 2, 4, 3)
        yield cls.sample(a, b, equation="bij,bjk->bik")
        yield cls.sample(a, b, equation="bij, bjk")
        yield cls.sample(normal(rng, 2, 1, 3, 4), normal(rng, 2, 2, 4, 2), equation="...ij,...jk->...ik")
        yield cls.sample(a, equation="ijk->ki")
        yield cls.sample(a, equation="...j->...")
        yield cls.sample(normal(rng, 3, 3), equation="ii->i")
        yield cls.sample(normal(rng, 3), normal(rng, 4), equation="i,j->ij")
        yield cls.sample(normal(rng, 3), normal(rng, 3, 4), normal(rng, 4), equation="i,ij,j->")

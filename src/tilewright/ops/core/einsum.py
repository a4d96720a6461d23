"""Einsum: a sum of products, with the axes named by letters."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from string import ascii_letters, ascii_lowercase, ascii_uppercase
from typing import Self

import ml_dtypes
import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, cast
from tilewright.ops.axes import NUMBERS, accumulator, narrow, widen
from tilewright.ops.core.elementwise import normal
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.support.sizes import same_size
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class Einsum(Op):
    """`terms` has a letter for every axis of each input, `result` for those of the output; the other letters are summed
    over. An axis of extent 1 stretches.

    Axes that ONNX leaves to an ellipsis have letters that the equation does not use, capitals first, counted from the
    last. Of many inputs two are contracted at a time, those first that give the least to compute.
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
        names = "".join(letters) + right.replace("...", "")
        free = [c for c in ascii_uppercase + ascii_lowercase if c not in names]
        if not set(names) <= set(ascii_letters) or any(t.count("...") > 1 for t in (*terms, right)):
            raise UserError(f"Einsum '{equation}': letters and one ellipsis per term are supported")
        if max(spans, default=0) > len(free):
            raise UserError(f"Einsum '{equation}' has more axes than there are letters")
        shared = "".join(reversed(free[: max(spans, default=0)]))
        spelled = tuple(
            t.replace("...", shared[len(shared) - n :]) for t, n in zip(terms, spans, strict=True)
        )
        return cls(spelled, right.replace("...", shared)), node.present

    def _extents(self, inputs: Sequence[TensorType]) -> dict[str, int]:
        """The extent of each letter, in the order of their first use."""
        out: dict[str, int] = {}
        for term, t in zip(self.terms, inputs, strict=True):
            for letter, n in zip(term, t.shape, strict=True):
                seen = out.get(letter, 1)
                if same_size(seen, 1):
                    out[letter] = n
                elif not same_size(n, 1) and seen != n:
                    raise self.misfit(
                        inputs, f"axis {letter} of {','.join(self.terms)} has extents {seen} and {n}"
                    )
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
        (out,) = self.infer([TensorType(x.dtype, x.shape) for x in inputs])
        wide = accumulator(out.dtype)
        terms = list(zip(self.terms, inputs, strict=True))
        for step in range(len(terms) - 2):
            pair = min(combinations(terms, 2), key=lambda p: math.prod(_extents(p).values()))
            for t in pair:
                terms.remove(t)
            needed = {*self.result, *(c for t, _ in terms for c in t)}
            kept = "".join(c for c in _extents(pair) if c in needed)
            terms.append((kept, _contract(b, pair, kept, wide, f"{name}_step{step}")))
        if wide is out.dtype:
            return (_contract(b, terms, self.result, wide, name),)
        total = _contract(b, terms, self.result, wide, f"{name}_sum")
        return (b.compute(name, out.shape, lambda *i: cast(out.dtype, total[i]), axes=list(self.result)),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        extents = self._extents([TensorType.of(x) for x in inputs])
        wide = [
            np.broadcast_to(widen(x), [extents[c] for c in term])
            for term, x in zip(self.terms, inputs, strict=True)
        ]
        with np.errstate(all="ignore"):
            total = np.einsum(f"{','.join(self.terms)}->{self.result}", *wide, optimize=len(wide) > 2)
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
        yield cls.sample(normal(rng, 2, 3, 3), equation="...ii->...i")
        yield cls.sample(normal(rng, 3, 3), equation="ii")
        yield cls.sample(normal(rng, 2, 3, 3), normal(rng, 3), equation="Bii,i->B")
        yield cls.sample(normal(rng), normal(rng, 2), equation=",i->i")
        yield cls.sample(
            normal(rng, 2, 3), normal(rng, 3, 4), normal(rng, 4, 2), normal(rng, 2), equation="ab,bc,cd,d->ad"
        )
        yield Sample(cls(("BAa", "aA"), "BAa"), (normal(rng, 2, 3, 1), normal(rng, 2, 3)))
        yield cls.sample(normal(rng, 1, 3), normal(rng, 3, 2), equation="bA,AB->bB")
        yield cls.sample(normal(rng, 2, 1, 4), normal(rng, 1, 3, 4), equation="bij,bij->b")
        for dtype in (np.int32, np.int64, np.float64):
            yield cls.sample((a * 9).astype(dtype), (b * 9).astype(dtype), equation="bij,bjk->ki")
        for kind in (
            np.float16,
            ml_dtypes.bfloat16,
            np.int8,
            np.uint8,
            np.uint16,
            np.uint32,
            np.uint64,
            np.int16,
        ):
            pair = tuple(rng.integers(0, 9, (2, 3)).astype(kind) for _ in range(2))
            yield Sample(cls(("ij", "ij"), "i"), pair)


def _extents(terms: Iterable[tuple[str, Buffer]]) -> dict[str, int]:
    """The extent of each letter, in the order of their first use; one of 1 stretches."""
    out: dict[str, int] = {}
    for letter, n in ((c, n) for term, x in terms for c, n in zip(term, x.shape, strict=True)):
        out[letter] = n if same_size(out.get(letter, 1), 1) else out[letter]
    return out


def _contract(
    b: FuncBuilder, terms: Sequence[tuple[str, Buffer]], result: str, wide: DType, name: str
) -> Buffer:
    """A block `name`: the product of the terms, summed over the letters that are not in the result."""
    extents = _extents(terms)
    over = [c for c in extents if c not in result]

    def factors(*i: Expr) -> list[Expr]:
        at = dict(zip((*result, *over), i, strict=True))
        return [
            cast(
                wide,
                x[
                    tuple(
                        [at[c] if same_size(n, extents[c]) else 0 for c, n in zip(term, x.shape, strict=True)]
                    )
                ],
            )
            for term, x in terms
        ]

    def product(*i: Expr) -> Expr:
        return reduce(lambda p, q: p * q, factors(*i))

    def pair(*i: Expr) -> Expr | tuple[Expr, Expr]:
        found = factors(*i)
        return (found[0], found[1]) if len(found) == 2 else found[0]

    shape = [extents[c] for c in result]
    if not over:
        return b.compute(name, shape, product, axes=list(result))
    depth = [extents[c] for c in over]
    return b.reduce(name, shape, depth, pair, "sum", axes=[*result, *over])

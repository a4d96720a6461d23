"""Does a block compute what a tensor intrinsic computes, where it is not asked at which indices?

    block       Y[n, o, h, w] = fma(P[n, c, h + r, w + s], W[o, c, r, s], Y[n, o, h, w])
    intrinsic   C[i, j]       = fma(A[i, k], B[k, j], C[i, j])
    matches     A is P and B is W;  A is W and B is P

Types are equal to the bit, and so are roundings: `fma(a, b, c)` and `a * b + c` are different computations. Operands of
commutative operations may change places, so one block can match in several ways. What stands for an operand of the
intrinsic is most often a load, but any expression of its type will do (padding that was inlined, a product of three
factors): then the operand has to be computed into a buffer first. Where the intrinsic widens an integer, so may the
block, from another type or from an expression whose values fit: `i32(x) - zero_point` of bytes is an i16 for it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.ir.commute import operand_orders
from tilewright.ir.expr import (
    Binary,
    Bitcast,
    Buffer,
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Unary,
    Var,
    loads,
)
from tilewright.ir.rewrite import transform
from tilewright.target.intrinsic import Intrinsic
from tilewright.tir.analysis.value_range import fits_dtype
from tilewright.tir.printer import print_expr
from tilewright.tir.stmt import Block, blocks


@dataclass(frozen=True, slots=True)
class IntrinsicMatch:
    """What plays the part of each param of the intrinsic, in their order: first the output, as it is loaded."""

    operands: tuple[Expr, ...]

    @property
    def output(self) -> Load:
        load = self.operands[0]
        assert isinstance(load, Load)
        return load


def meaning_block(intrinsic: Intrinsic) -> Block:
    """The one block of an intrinsic's meaning."""
    (block,) = blocks(intrinsic.meaning.body)
    return block


def matches(block: Block, intrinsic: Intrinsic) -> list[IntrinsicMatch] | str:
    """All ways to see the block's computation as the intrinsic's, or the reason why there is none."""
    pattern = meaning_block(intrinsic)
    store = block.try_store
    if store is None:
        return f"{block.name} is more than one store"
    if (pattern.init is not None) and block.init is None:
        return f"{intrinsic.name} starts with an initial value, and {block.name} has none"
    output = pattern.store.buffer
    here = Load(store.buffer, store.indices)
    found: list[IntrinsicMatch] = []
    for bound in _unify(pattern.store.value, store.value, output, here, {output: here}):
        match = IntrinsicMatch(tuple(bound[p] for p in intrinsic.meaning.params))
        if match not in found:
            found.append(match)
    if found:
        return found
    ours, theirs = _skeleton(store.value), _skeleton(pattern.store.value)
    text = f"{block.name} computes {store.buffer.name} = {ours}, {intrinsic.name} {output.name} = {theirs}"
    types = _types(store.value), _types(pattern.store.value)
    return text if types[0] == types[1] else f"{text} (of {types[0]} and {types[1]})"


def _unify(
    p: Expr, e: Expr, output: Buffer, here: Load, bound: Mapping[Buffer, Expr]
) -> Iterator[Mapping[Buffer, Expr]]:
    """The ways to bind the buffers that `p` loads so that it becomes `e`, each on top of `bound`."""
    if p.dtype is not e.dtype:
        return
    match p, e:
        case Load(), _:
            if p.buffer is output:
                known = e is here
            else:
                known = all(ld.buffer is not here.buffer for ld in loads(e)) and bound.get(p.buffer, e) is e
            if known:
                yield {**bound, p.buffer: e}
        case (Fma(), Fma()):
            yield from _unify_operands(p, e, output, here, bound)
        case (Binary(), Binary()) | (Unary(), Unary()) if p.op is e.op:
            yield from _unify_operands(p, e, output, here, bound)
        case (Bitcast(), Bitcast()):
            yield from _unify(p.a, e.a, output, here, bound)
        case (Cast(), Cast()) if e.a.dtype is p.a.dtype:
            yield from _unify(p.a, e.a, output, here, bound)
        case (Cast(a=Load()), _) if fits_dtype(e, p.a.dtype):
            yield from _unify(p.a, Cast(p.a.dtype, e), output, here, bound)
        case (Const(), Const()) if p is e:
            yield bound
        case _:
            return


def _unify_operands(
    p: Expr, e: Expr, output: Buffer, here: Load, bound: Mapping[Buffer, Expr]
) -> Iterator[Mapping[Buffer, Expr]]:
    for operands in operand_orders(e):
        yield from _unify_all(p.children(), operands, output, here, bound)


def _unify_all(
    ps: tuple[Expr, ...], es: tuple[Expr, ...], output: Buffer, here: Load, bound: Mapping[Buffer, Expr]
) -> Iterator[Mapping[Buffer, Expr]]:
    if not ps:
        yield bound
        return
    for first in _unify(ps[0], es[0], output, here, bound):
        yield from _unify_all(ps[1:], es[1:], output, here, first)


def _skeleton(e: Expr) -> str:
    """The expression with buffers in place of their elements."""
    return print_expr(transform(e, lambda n: Var(n.buffer.name, n.dtype) if isinstance(n, Load) else None))


def _types(e: Expr) -> str:
    return ", ".join(sorted({str(ld.dtype) for ld in loads(e)}))

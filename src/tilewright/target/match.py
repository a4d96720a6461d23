"""Does a nest of loops around one store compute what a tensor intrinsic means?

The store's value is compared with the meaning's: same operations, operands of commutative ones in any order, any index
expressions. That tells which access is which operand. How a loop moves the operands tells which loop of the meaning it
is: `k` of `C[i, j] += A[i, k] * B[k, j]` is the one that moves A and B and leaves C in place. So loops may come in any
order and names play no role. What is left to check are numbers: extents, and how far apart elements are.

A reason for a mismatch is a statement about the program; where several readings fail, it is that of the one that
came furthest.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TypeAlias

from tilewright.ir.commute import operand_orders
from tilewright.ir.expr import (
    Binary,
    Bitcast,
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    Unary,
    Var,
    free_vars,
)
from tilewright.ir.simplify import Simplifier
from tilewright.target.intrinsic import Intrinsic
from tilewright.tir.printer import print_expr
from tilewright.tir.stmt import For, Store

_Bound: TypeAlias = Mapping[Buffer, Load]  # param of the meaning -> access of the program
_Moves: TypeAlias = Mapping[Var, int]  # loop -> elements by which the operand moves with it


@dataclass(frozen=True, slots=True)
class PatternMatch:
    """`operands` has the access of each operand, over the loops of the nest; `loops` those that together are a loop of
    the meaning, outermost first (none where it has one iteration).
    """

    operands: tuple[Load, ...]
    loops: Mapping[Var, tuple[For, ...]]


@dataclass(frozen=True, slots=True)
class Mismatch:
    reason: str
    hint: str | None = None
    depth: int = 0  # how far the comparison came


def match_nest(
    intrinsic: Intrinsic, nest: Sequence[For], store: Store, simplify: Simplifier
) -> PatternMatch | Mismatch:
    """`store` is over the variables of `nest` and of loops around it, whose ranges `simplify` knows."""
    best: Mismatch | None = None
    for bound in _readings(intrinsic.store, store):
        operands = tuple(bound[p] for p in intrinsic.meaning.params)
        result = _Candidate(intrinsic, nest, operands, simplify).fit()
        if isinstance(result, PatternMatch):
            return result
        if best is None or result.depth > best.depth:
            best = result
    return best or Mismatch(
        f"it computes {_spell(store)}, and {intrinsic.name} computes {_spell(intrinsic.store)}",
        hint="inline or cast so that both are the same operations on plain accesses",
    )


# ------------------------------------------------------------------------------------------------- the operations


def _readings(meaning: Store, store: Store) -> Iterator[_Bound]:
    """The ways to see the accesses of `store` as the operands of the meaning."""
    place = Load(store.buffer, store.indices)
    return _bind(meaning.value, store.value, {meaning.buffer: place})


def _bind(pattern: Expr, e: Expr, known: _Bound) -> Iterator[_Bound]:
    # Types are those of the operands and of casts; operands are compared later, where messages can name them.
    match pattern:
        case Load():
            if isinstance(e, Load) and known.get(pattern.buffer, e) is e:
                yield {**known, pattern.buffer: e}
            return
        case Const():
            if e is pattern:
                yield known
            return
        case Cast() | Bitcast():
            same = type(e) is type(pattern) and e.dtype is pattern.dtype
        case Binary() | Unary():
            same = type(e) is type(pattern) and getattr(e, "op", None) is pattern.op
        case _:
            same = type(e) is type(pattern)
    if same:
        for children in operand_orders(e):
            yield from _bind_all(pattern.children(), children, known)


def _bind_all(patterns: Sequence[Expr], es: Sequence[Expr], known: _Bound) -> Iterator[_Bound]:
    if not patterns:
        yield known
        return
    for bound in _bind(patterns[0], es[0], known):
        yield from _bind_all(patterns[1:], es[1:], bound)


# -------------------------------------------------------------------------------------------- loops and addresses


class _Candidate:
    """One reading of the accesses as operands."""

    def __init__(
        self, intrinsic: Intrinsic, nest: Sequence[For], operands: tuple[Load, ...], simplify: Simplifier
    ) -> None:
        self._intrinsic, self._operands, self._simplify = intrinsic, operands, simplify
        self._nest = [n for n in nest if n.extent != 1]
        self._params = intrinsic.meaning.params
        self._dims = intrinsic.dims

    def fit(self) -> PatternMatch | Mismatch:
        moves = self._moves()
        if isinstance(moves, Mismatch):
            return moves
        choices = self._choices(moves)
        if isinstance(choices, Mismatch):
            return choices
        best: Mismatch | None = None
        for chosen in product(*choices):
            loops = {
                n.var: tuple(mine for mine, v in zip(self._nest, chosen, strict=True) if v is n.var)
                for n in self._intrinsic.loops
            }
            bad = (
                self._extents(loops)
                or self._types()
                or self._scopes()
                or self._linear(loops, moves)
                or self._contiguous(loops, moves)
                or self._apart(moves)
            )
            if bad is None:
                return PatternMatch(self._operands, loops)
            if best is None or bad.depth > best.depth:
                best = bad
        assert best is not None
        return best

    def _moves(self) -> list[_Moves] | Mismatch:
        """How each operand's address moves with each loop of the nest."""
        mine = {n.var for n in self._nest}
        out: list[_Moves] = []
        for access in self._operands:
            moves: dict[Var, int] = {}
            for atom, k in self._simplify.weighted(access.indices, access.buffer.strides).terms:
                if isinstance(atom, Var) and atom in mine:
                    moves[atom] = k
                elif bent := sorted(v.name for v in free_vars(atom) & mine):
                    return Mismatch(
                        f"the address of {print_expr(access)} is not linear in {bent[0]}",
                        hint=f"copy {access.buffer.name} into a buffer that is: CacheRead or Reindex",
                        depth=1,
                    )
            out.append(moves)
        return out

    def _choices(self, moves: Sequence[_Moves]) -> list[list[Var]] | Mismatch:
        """For each loop of the nest, the loops of the meaning that move the same operands."""
        out: list[list[Var]] = []
        for n in self._nest:
            moved = {o for o, m in enumerate(moves) if n.var in m}
            found = [
                loop.var
                for loop in self._intrinsic.loops
                if {o for o, dims in enumerate(self._dims) if loop.var in dims} == moved
            ]
            if not found:
                named = (
                    " and ".join(self._operands[o].buffer.name for o in sorted(moved))
                    or "none of the operands"
                )
                each = "; ".join(
                    f"{loop.var.name} moves {self._moved(loop.var)}" for loop in self._intrinsic.loops
                )
                return Mismatch(
                    f"{n.var.name} moves {named}, as no loop of {self._intrinsic.name} does",
                    hint=f"in {self._intrinsic.name} {each}; move other loops outward",
                    depth=2,
                )
            out.append(found)
        return out

    def _moved(self, v: Var) -> str:
        return " and ".join(p.name for p, dims in zip(self._params, self._dims, strict=True) if v in dims)

    def _extents(self, loops: Mapping[Var, tuple[For, ...]]) -> Mismatch | None:
        for n in self._intrinsic.loops:
            extent = math.prod(mine.extent for mine in loops[n.var])
            if n.var.name not in self._intrinsic.free and extent != n.extent:
                named = " and ".join(mine.var.name for mine in loops[n.var])
                have = f"{named} has {extent} iterations" if named else "the nest has one iteration"
                if len(loops[n.var]) > 1:
                    have = f"{named} have {extent} iterations together"
                return Mismatch(
                    f"{have} for the loop {n.var.name} of {self._intrinsic.name}, which has {n.extent}",
                    hint="split a loop so that the part inside the nest fits, or take another intrinsic",
                    depth=3,
                )
        return None

    def _types(self) -> Mismatch | None:
        for p, access in zip(self._params, self._operands, strict=True):
            if access.dtype is not p.dtype:
                return Mismatch(
                    f"{access.buffer.name} is {access.dtype}, and the operand {p.name} of {self._intrinsic.name} is "
                    f"{p.dtype}",
                    depth=4,
                )
        return None

    def _scopes(self) -> Mismatch | None:
        for o, access in zip(self._intrinsic.operands, self._operands, strict=True):
            if access.buffer.scope not in o.scopes:
                wanted = " or ".join(sorted(s.value for s in o.scopes))
                return Mismatch(
                    f"{access.buffer.name} is in {access.buffer.scope.value} scope, and the operand {o.name} of "
                    f"{self._intrinsic.name} is in {wanted}",
                    hint=f"SetScope({access.buffer.name!r}, …), or a copy by CacheRead or CacheWrite",
                    depth=5,
                )
        return None

    def _linear(self, loops: Mapping[Var, tuple[For, ...]], moves: Sequence[_Moves]) -> Mismatch | None:
        """Several loops for one loop of the meaning count like one. (Of a free loop the body keeps them all.)"""
        for v, mine in loops.items():
            if v.name in self._intrinsic.free:
                continue
            for outer, inner in pairwise(mine):
                for access, m in zip(self._operands, moves, strict=True):
                    if m.get(outer.var, 0) != m.get(inner.var, 0) * inner.extent:
                        return Mismatch(
                            f"{outer.var.name} and {inner.var.name} are both the loop {v.name} of "
                            f"{self._intrinsic.name}, and {access.buffer.name} does not move with them as with one "
                            "loop",
                            hint=f"reorder them, or leave {outer.var.name} outside",
                            depth=6,
                        )
        return None

    def _contiguous(self, loops: Mapping[Var, tuple[For, ...]], moves: Sequence[_Moves]) -> Mismatch | None:
        for n, (o, access) in enumerate(zip(self._intrinsic.operands, self._operands, strict=True)):
            expected = 1
            for v in reversed(self._dims[n][len(self._dims[n]) - o.contiguous :]):
                mine = list(loops[v]) if v is not None else []
                step = moves[n][mine[-1].var] if mine else expected
                if step != expected:
                    return Mismatch(
                        f"neighbours along {mine[-1].var.name} are {step} elements apart in {access.buffer.name}, and "
                        f"{expected} in the operand {o.name} of {self._intrinsic.name}",
                        hint=f"TransformLayout({access.buffer.name!r}, …), or a copy by CacheRead",
                        depth=7,
                    )
                expected *= math.prod(loop.extent for loop in mine)
        return None

    def _apart(self, moves: Sequence[_Moves]) -> Mismatch | None:
        """Different iterations write different elements, which no other operand reads."""
        out, *inputs = self._operands
        for access, o in zip(inputs, self._intrinsic.operands[1:], strict=True):
            if access.buffer is out.buffer:
                return Mismatch(
                    f"{out.buffer.name} is written, and read as the operand {o.name} of {self._intrinsic.name}",
                    depth=8,
                )
        extents = {n.var: n.extent for n in self._nest}
        reach = 0
        for v, step in sorted(moves[0].items(), key=lambda item: abs(item[1])):
            if abs(step) <= reach:
                return Mismatch(
                    f"iterations of {v.name} write elements of {out.buffer.name} that others write", depth=8
                )
            reach += abs(step) * (extents[v] - 1)
        return None


def _spell(store: Store) -> str:
    return f"{print_expr(Load(store.buffer, store.indices))} = {print_expr(store.value)}"

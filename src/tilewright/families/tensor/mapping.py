"""Which iterators of a block can be the iterators of a tensor intrinsic?

    Y[n, o, h, w] += P[n, c, h + r, w + s] * W[o, c, r, s]          C[i, j] += A[i, k] * B[k, j]

    A is P, B is W:   i is a fusion of some of n, h, w     (they index Y and P, as i indexes C and A)
                      j is o                               (indexes Y and W)
                      k is a fusion of some of c, r, s     (index P and W)

The *character* of an iterator is which operands its values choose elements of: the output, the first operand, and so
on. It is taken from which indices mention the iterator, whatever arithmetic they do with it. An iterator of the
intrinsic can be any ordered group of iterators of the block with its character and its kind; the group is fused, the
last one fastest. Iterators in no group stay outside, as loops around the intrinsic: those of another character (a batch
indexes all operands), and those left out.

*Every* non-empty subset in *every* order is a mapping of its own: orders differ in what is contiguous, subsets in how
much must be copied and how much of the last tile is wasted. Conventions:
- Iterators of extent 1 are never in a group, unless there is no other.
- Iterators of the intrinsic that have the same character and kind (k and the 4 of a dot product) are one *role*: the
  fused group is divided among them, the last one fastest.
- There are at most `LIMIT` mappings of one match. Where there would be more, the largest roles first keep only groups
  in the order of the block's iterators, then only runs of neighbours.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from tilewright.families.tensor.match import IntrinsicMatch, matches, meaning_block
from tilewright.ir.expr import Expr, Load, Var, free_vars, loads
from tilewright.target.intrinsic import Intrinsic
from tilewright.tir.stmt import Block, For, Iter, IterKind

LIMIT = 20_000  # mappings; bound

Character: TypeAlias = tuple[bool, ...]  # of an iterator, over the operands: the output is the first


@dataclass(frozen=True)
class Role:
    """Loops of the intrinsic's meaning with one character and kind, outermost first; most often it is one."""

    loops: tuple[For, ...]
    free: frozenset[Var]  # those that take any extent
    kind: IterKind
    character: Character

    @property
    def name(self) -> str:
        return "·".join(n.var.name for n in self.loops)

    @cached_property
    def tile(self) -> int:
        """What its extent is a multiple of: the product of the extents that are fixed."""
        return math.prod(n.extent for n in self.loops if n.var not in self.free)


@dataclass(frozen=True)
class IterGroup:
    """The iterators of the block that play a role, fused, the last one fastest."""

    role: Role
    iters: tuple[Iter, ...]

    @cached_property
    def extent(self) -> int:
        return math.prod(it.extent for it in self.iters)

    @cached_property
    def padded(self) -> int:
        """The extent in whole tiles."""
        return -(-self.extent // self.role.tile) * self.role.tile


@dataclass(frozen=True, slots=True)
class Mapping:
    """One way to compute a block with an intrinsic."""

    match: IntrinsicMatch
    groups: tuple[IterGroup, ...]
    outside: tuple[Iter, ...]

    @property
    def operands(self) -> tuple[Expr, ...]:
        """What is handed to each param of the intrinsic; the first is the output."""
        return self.match.operands

    @property
    def waste(self) -> float:
        """The share of the work that is done on padding, in [0, 1)."""
        return 1.0 - math.prod(g.extent for g in self.groups) / math.prod(g.padded for g in self.groups)

    def __str__(self) -> str:
        groups = ", ".join(
            f"{g.role.name} = {_fused(g.iters)}"
            + (f" of {g.extent} in {g.padded}" if g.padded > g.extent else "")
            for g in self.groups
        )
        return groups + (f"; outside: {_fused(self.outside)}" if self.outside else "")


@dataclass(frozen=True, slots=True)
class MappingChoice:
    """The groups of one match: any combination of one group per role is a mapping."""

    match: IntrinsicMatch
    groups: tuple[tuple[IterGroup, ...], ...]  # per role, the groups it can have
    block: Block

    def __len__(self) -> int:
        return math.prod(len(g) for g in self.groups)

    def mapping(self, at: Sequence[int]) -> Mapping:
        """The mapping with group number `at[r]` of each role r."""
        chosen = tuple(options[n] for options, n in zip(self.groups, at, strict=True))
        used = {it.var for g in chosen for it in g.iters}
        return Mapping(self.match, chosen, tuple(it for it in self.block.iters if it.var not in used))

    def __iter__(self) -> Iterator[Mapping]:
        for at in itertools.product(*(range(len(g)) for g in self.groups)):
            yield self.mapping(at)


@dataclass(frozen=True, slots=True)
class Mappings:
    """All mappings of a block to an intrinsic: those of each assignment of operands, one after the other."""

    intrinsic: Intrinsic
    choices: tuple[MappingChoice, ...]

    def __len__(self) -> int:
        return sum(len(c) for c in self.choices)

    def __iter__(self) -> Iterator[Mapping]:
        return itertools.chain.from_iterable(self.choices)


@dataclass(frozen=True, slots=True)
class NoMapping:
    reason: str  # a sentence about the block


def mappings(block: Block, intrinsic: Intrinsic) -> Mappings | NoMapping:
    """All ways to compute the block with the intrinsic, or why there is none."""
    found = matches(block, intrinsic)
    if isinstance(found, str):
        return NoMapping(found)
    for o in intrinsic.operands:
        if o.within is not None:  # copies are made of values as they are
            low, high = o.within
            return NoMapping(
                f"what {block.name} reads as {o.name} is not known to lie within {low} and {high}"
            )
    choices: list[MappingChoice] = []
    reasons: list[str] = []
    for match in found:
        choice = _choice(block, intrinsic, match)
        if isinstance(choice, MappingChoice):
            choices.append(choice)
        else:
            reasons.append(choice)
    return Mappings(intrinsic, tuple(choices)) if choices else NoMapping(reasons[0])


def roles(intrinsic: Intrinsic) -> tuple[Role, ...]:
    """The loops of the intrinsic's meaning by what they index, in their order."""
    kinds = {
        v: it.kind
        for it, b in zip(meaning_block(intrinsic).iters, meaning_block(intrinsic).bindings, strict=True)
        for v in free_vars(b)
    }
    same: dict[tuple[Character, IterKind], list[For]] = {}
    for n in intrinsic.loops:
        same.setdefault((tuple(n.var in dims for dims in intrinsic.dims), kinds[n.var]), []).append(n)
    return tuple(
        Role(tuple(loops), frozenset(n.var for n in loops if n.var.name in intrinsic.free), kind, character)
        for (character, kind), loops in same.items()
    )


def characters(block: Block, match: IntrinsicMatch) -> dict[Var, Character]:
    """The character of each iterator of the block: which operands it indexes, the output first."""
    used = [free_vars(e) for e in match.operands]
    return {it.var: tuple(it.var in u for u in used) for it in block.iters}


# ----------------------------------------------------------------------------------------------------- one match


def _choice(block: Block, intrinsic: Intrinsic, match: IntrinsicMatch) -> MappingChoice | str:
    """The groups that each role can have under one match, or why a role has none."""
    for index in match.output.indices:
        if not isinstance(index, Var) and free_vars(index):
            return f"{block.name} writes {match.output.buffer.name} at an index that is no iterator"
    character = characters(block, match)
    parts = roles(intrinsic)
    candidates: list[list[Iter]] = []
    for role in parts:
        all_of = [it for it in block.iters if character[it.var] == role.character and it.kind is role.kind]
        wide = [it for it in all_of if it.extent > 1]
        if not all_of:
            return _nobody(block, match, intrinsic, role, character)
        candidates.append(wide or all_of[:1])
    sizes = _limited([len(c) for c in candidates])
    groups = tuple(
        tuple(IterGroup(role, its) for its in orders(its, how))
        for role, its, how in zip(parts, candidates, sizes, strict=True)
    )
    return MappingChoice(match, groups, block)


def _count(n: int, how: int) -> int:
    """How many groups `orders` makes of n iterators."""
    match how:
        case 0:
            return sum(math.perm(n, k) for k in range(1, n + 1))
        case 1:
            return 2**n - 1
        case _:
            return n * (n + 1) // 2


def _limited(sizes: list[int]) -> list[int]:
    """How freely each role may choose (see `orders`) so that there are at most LIMIT combinations, where possible."""
    how = [0] * len(sizes)
    while math.prod(map(_count, sizes, how)) > LIMIT and min(how) < 2:
        largest = max((r for r in range(len(sizes)) if how[r] < 2), key=lambda r: _count(sizes[r], how[r]))
        how[largest] += 1
    return how


def orders(iters: Sequence[Iter], how: int = 0) -> list[tuple[Iter, ...]]:
    """Non-empty groups of `iters`: 0, all subsets in all orders; 1, all subsets; 2, all runs of neighbours.

    The largest groups come first, and among those of one size the order of the block.
    """
    out: list[tuple[Iter, ...]] = []
    for size in range(len(iters), 0, -1):
        match how:
            case 0:
                out += sorted(
                    itertools.permutations(iters, size), key=lambda p: sorted(p, key=iters.index) != list(p)
                )
            case 1:
                out += itertools.combinations(iters, size)
            case _:
                out += [tuple(iters[n : n + size]) for n in range(len(iters) - size + 1)]
    return out


def _nobody(
    block: Block, match: IntrinsicMatch, intrinsic: Intrinsic, role: Role, character: dict[Var, Character]
) -> str:
    """Why no iterator of the block can play a role: what it would have to index, and what each does index."""
    names = [_operand_name(e) for e in match.operands]

    def indexed(c: Character) -> str:
        return _listed([n for n, used in zip(names, c, strict=True) if used]) or "nothing"

    same: dict[tuple[Character, IterKind], list[str]] = {}
    for it in block.iters:
        same.setdefault((character[it.var], it.kind), []).append(it.var.name)
    there = "; ".join(
        f"{_listed(its)} ({kind.value}) {'index' if len(its) > 1 else 'indexes'} {indexed(c)}"
        for (c, kind), its in same.items()
    )
    return (
        f"no {role.kind.value} iterator of {block.name} indexes {indexed(role.character)} and nothing else, as "
        f"{role.name} of {intrinsic.name} does: {there or 'it has none'}"
    )


def _operand_name(e: Expr) -> str:
    if isinstance(e, Load):
        return e.buffer.name
    return f"an expression of {_listed(sorted({ld.buffer.name for ld in loads(e)}))}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _fused(iters: Sequence[Iter]) -> str:
    names = ", ".join(it.var.name for it in iters)
    return f"({names})" if len(iters) != 1 else names

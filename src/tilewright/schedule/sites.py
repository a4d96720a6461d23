"""The blocks of a Func where they stand: what is around each, and what it reads and writes there.

A site is a block with the loops and blocks around it. What is known of a site depends on the block and on the
variables and extents of those loops, and on nothing else of the program. `key` is made of exactly that: the block by
identity (statements are frozen, and unchanged ones stay the same objects from step to step) and the loops by value
(a loop is rebuilt whenever something below it changes). Equal keys mean equal sites, so what was found out about one
holds for the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.ir.expr import Var
from tilewright.tir.analysis.regions import Access, accesses
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, Stmt, Store, children
from tilewright.tir.stmt import loops as loops_below

SiteKey: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    block: Block
    position: int  # in program order; what is around a block comes before it
    path: tuple[For | Block, ...]  # around the block, outermost first
    key: SiteKey

    @property
    def loops(self) -> tuple[For, ...]:
        """All loops around the block, also those outside of the blocks around it."""
        return tuple([n for n in self.path if isinstance(n, For)])

    @property
    def own_loops(self) -> tuple[For, ...]:
        """The loops between the block and the next block around it."""
        return self.loops[sum(isinstance(n, For) for n in self._outside()) :]

    @property
    def ranging(self) -> dict[Var, int]:
        """Every loop that an access of the block may move with: those around it and those in its body."""
        inner = {n.var: n.extent for part in children(self.block) for n in loops_below(part)}
        return extents(self.loops) | inner

    @property
    def outer(self) -> tuple[Block, ...]:
        return tuple([n for n in self.path if isinstance(n, Block)])

    def _outside(self) -> tuple[For | Block, ...]:
        last = max((n for n, s in enumerate(self.path) if isinstance(s, Block)), default=-1)
        return self.path[: last + 1]


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """All sites of a Func, in program order, and what stands outside of blocks."""

    func: Func
    all: tuple[Site, ...]
    loose: tuple[Stmt, ...]  # stores that belong to no block

    def inside(self, scope: Block | None) -> tuple[Site, ...]:
        """The blocks directly in a scope: in the body of a block, or (None) of the Func."""
        return tuple([s for s in self.all if (s.outer[-1] if s.outer else None) is scope])


def sites(func: Func) -> Sites:
    found: list[Site] = []
    loose: list[Stmt] = []
    _visit(func.body, (), (), found, loose)
    return Sites(func, tuple(found), tuple(loose))


def _visit(
    s: Stmt, path: tuple[For | Block, ...], key: SiteKey, found: list[Site], loose: list[Stmt]
) -> None:
    if isinstance(s, Block):
        key = (*key, id(s))
        found.append(Site(s, len(found), path, key))
        path = (*path, s)
    elif isinstance(s, For):
        key = (*key, s.var, s.extent)
        path = (*path, s)
    elif isinstance(s, Store) and not any(isinstance(n, Block) for n in path):
        loose.append(s)
    for c in children(s):
        _visit(c, path, key, found, loose)


def shared_loops(a: Site, b: Site) -> tuple[For, ...]:
    """The loops that are around both."""
    return tuple(_common(a, b))


def _common(a: Site, b: Site) -> Iterator[For]:
    for x, y in zip((*a.path, a.block), (*b.path, b.block), strict=False):
        if x is not y:
            return
        if isinstance(x, For):
            yield x


def site_accesses(site: Site) -> list[Access]:
    """What the block itself reads and writes, not the blocks inside it, over the loops around it."""
    whole: Stmt = site.block
    for outer in reversed(site.outer):  # their bindings give the iterators that the block may mention
        whole = Block(outer.name, outer.iters, outer.bindings, whole, None, outer.predicate)
    return [a for a in accesses(whole) if a.block is site.block]


def extents(loops: tuple[For, ...]) -> dict[Var, int]:
    return {n.var: n.extent for n in loops}

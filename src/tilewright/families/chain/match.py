"""Chains of contractions: one or two, and what is computed from row to row behind or between them.

    GEMM, rows            a classifier with its softmax, a projection with the norm after it
    GEMM, GEMM            two layers of an MLP, with the activation between
    GEMM, rows, GEMM      attention

A region of the flow graph says what depends on the first contraction and which axes are rows (`gir/region.py`): no
operator is named.
"""

from dataclasses import dataclass

from tilewright.families.gemm.recipe import Contraction, try_contraction
from tilewright.families.inline import single_consumer
from tilewright.gir.region import ContractionRegion, region_of
from tilewright.ir.expr import free_vars, loads
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Iter, IterKind, blocks, stmt_exprs, walk_stmts


@dataclass(frozen=True, slots=True)
class RowLoops:
    """The iterators of the last block of a chain: over rows, of which one is divided into blocks, and the others."""

    outer: tuple[Iter, ...]
    row: Iter
    inner: tuple[Iter, ...]


@dataclass(frozen=True, slots=True)
class ContractionChain:
    contractions: tuple[Contraction, ...]  # one or two
    gemms: tuple[tuple[str, ...], ...]  # of each the block, and what takes its results up
    between: tuple[
        str, ...
    ]  # blocks that are none of these, in order; those behind the only contraction, too
    last: RowLoops | None  # of the last block, where it is none of a contraction

    @property
    def first(self) -> Contraction:
        return self.contractions[0]

    @property
    def end(self) -> Contraction:
        return self.contractions[-1]

    @property
    def is_movable(self) -> bool:
        """Are there rows, and one iterator of columns in each?"""
        return all(c.rows and len(c.cols) == 1 for c in self.contractions)


def try_contraction_chain(func: Func) -> ContractionChain | None:
    """The Func as such a chain, if it is one."""
    try:
        region = region_of(func)
    except ScheduleError:
        return None
    every = {b.name: b for b in blocks(func.body)}
    names = [n.name for n in region.chained]
    found = [c for n in region.contractions if (c := try_contraction(every[n.name])) is not None]
    if len(found) != len(region.contractions):
        return None
    match found:
        case [only]:
            return _with_rows(func, region, only, names)
        case [first, second]:
            return _of_two(func, region, first, second, names)
        case _:
            return None


def _of_two(
    func: Func, region: ContractionRegion, first: Contraction, second: Contraction, names: list[str]
) -> ContractionChain | None:
    """The second reads rows that are made from the first."""
    made = {n.out for n in region.chained}
    if second.a.buffer not in made & set(func.locals) or second.b.buffer in made:
        return None
    at = names.index(second.block.name)
    every = {b.name: b for b in blocks(func.body)}
    if any(_reads_windows(every[n]) for n in names[1:at]):  # depthwise, not rows: bands are for these
        return None
    head = _head(func, first)
    between = tuple(n for n in names[:at] if n not in head)
    return ContractionChain((first, second), (head, tuple(names[at:])), between, None)


def _with_rows(
    func: Func, region: ContractionRegion, only: Contraction, names: list[str]
) -> ContractionChain | None:
    """Rows behind it are folded."""
    rows = [n for n in region.chained if n.name != only.block.name]
    if not any(n.is_fold for n in rows) or rows[-1].is_fold or len(only.cols) != 1 or not only.rows:
        return None
    over = {region.axis_of.get(only.cols[0].var)}
    last = next(b for b in blocks(func.body) if b.name == names[-1])
    axes = {it: region.axis_of.get(it.var) for it in last.iters}
    row = next(
        (it for it, a in axes.items() if a is not None and a is region.axis_of.get(only.rows[-1].var)), None
    )
    if any({*n.over} != over for n in rows if n.is_fold) or row is None or None in axes.values():
        return None
    outer = tuple(it for it, a in axes.items() if a in region.rows and it is not row)
    inner = tuple(it for it, a in axes.items() if a not in region.rows)
    head = _head(func, only)
    between = tuple(n for n in names if n not in head)
    return ContractionChain((only,), (head,), between, RowLoops(outer, row, inner))


def _head(func: Func, c: Contraction) -> tuple[str, ...]:
    """The block of a contraction, and the one that alone takes its results up, element by element."""
    follower = single_consumer(func, c.store.buffer) if c.store.buffer in func.locals else None
    taken = (follower.name,) if follower is not None and not follower.is_reduction else ()
    return (c.block.name, *taken)


def _reads_windows(block: Block) -> bool:
    """Is it a reduction over neighbours?"""
    over = {it.var for it in block.iters if it.kind is IterKind.REDUCE}
    read = [i for n in walk_stmts(block) for e in stmt_exprs(n) for ld in loads(e) for i in ld.indices]
    return any(len(free_vars(i)) > 1 and free_vars(i) & over for i in read)

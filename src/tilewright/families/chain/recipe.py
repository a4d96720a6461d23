"""Contractions and what is computed from rows of their results, a block of rows at a time (`match.py`).

    S[r, j] = Σ q[r, k] · k[j, k]                         for blocks of rows:
    m[r] = max S[r, …]; P[r, j] = exp(S[r, j] - m[r]) ──>     S of these rows, in register tiles
    y[r, d] = Σ P[r, j] · v[j, d]                             for each row: m, P, …, in vectors
                                                              y of these rows, in register tiles

All of S is never there: a block of rows stays near from the first GEMM to the last. Nothing is computed twice, since
what a row needs are rows of its own. Workers share the blocks. Where a block of rows with all keys would not stay near,
keys are taken up in blocks too (`RollingUpdate`). What happens to rows is a flow graph (`rows.py`).
"""

import itertools
from collections.abc import Container
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from tilewright.cost.caches import LINE_BYTES, SET_BYTES
from tilewright.cost.parallel import TEAMS
from tilewright.families.chain.match import ContractionChain, RowLoops
from tilewright.families.chain.rows import schedule_rows
from tilewright.families.gemm.recipe import (
    Contraction,
    reduction_order,
    register_tiles,
    try_contraction,
)
from tilewright.families.gemm.register_tile import (
    ReductionNest,
    join_epilogue,
    loops_of,
    take_epilogue,
    tile_nest,
)
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.parallel import (
    is_worth_sharing,
    parallel_prefix,
)
from tilewright.families.stream.elements import move_near, schedule_elements
from tilewright.ir.expr import Buffer, Scope, Var, free_vars, loads
from tilewright.ir.layout import Layout, PadDim, ReorderDims, SplitDim
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import chain as chain_of
from tilewright.schedule.find import find_block, top_level
from tilewright.schedule.steps.compute_at import ComputeAt
from tilewright.schedule.steps.decompose_reduction import DecomposeReduction
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.reindex import Reindex
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.rolling_update import RollingUpdate
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import (
    Block,
    For,
    If,
    IterKind,
    Seq,
    Stmt,
    Store,
    blocks,
    loops,
    stmt_exprs,
    walk_stmts,
)

# Heads from which on workers share whole ones, so that what all rows of a head read is made and kept by one of them.
# Counted: two for each of the largest team that choices are judged by.
_ENOUGH_HEADS = 2 * max(TEAMS)


@dataclass(frozen=True, slots=True)
class ContractionTilePlan:
    """How one of the contractions is tiled."""

    tile: RegisterTile
    unroll: int  # multiply-adds written out in a step of the reduction loop, at most
    pack: bool  # its columns are copied into panels beforehand
    columns_outside: bool  # panels of columns outside, and rows past each of them; or the other way round


@dataclass(frozen=True, slots=True)
class ChainPlan:
    rows: int  # of a block; what does not divide is a block of its own
    keys: int  # likewise, if they are taken up in blocks; 0: all together
    skip: bool  # blocks of keys that no row of a block sees
    tiles: tuple[ContractionTilePlan, ...]  # of each contraction


def _after(func: Func, name: str) -> list[Block]:
    """The block, and those that read what it makes, directly or through others, in order."""
    made: set[Buffer] = set()
    found: list[Block] = []
    for b in blocks(func.body):
        if b.name == name or any(
            ld.buffer in made for n in walk_stmts(b) for e in stmt_exprs(n) for ld in loads(e)
        ):
            made |= {n.buffer for n in walk_stmts(b) if isinstance(n, Store)}
            found.append(b)
    return found


@dataclass(frozen=True, slots=True)
class _Gemm:
    """A contraction that has been moved: its block, by what the names of its loops begin with, and what takes its
    results up.
    """

    block: str
    loops: str
    follower: str
    plan: ContractionTilePlan


def schedule_chain(s: Draft, chain: ContractionChain, plan: ChainPlan, target: Target) -> None:
    """Schedule the whole Func, whose blocks are as they were prepared; what is no part of the chain stays."""
    tiled = list(zip(chain.contractions, plan.tiles, strict=True))
    copies = [_pack(s, c, p.tile.columns) for c, p in tiled if p.pack]
    if not plan.keys:
        for c in chain.contractions[1:]:
            _part_rows(s, c.a.buffer)
    gemms = [_Gemm(n, n, take_epilogue(s, n, c.store.buffer), p) for c, p in tiled for n in (c.block.name,)]
    end = gemms[-1]
    last = chain.between[-1] if chain.last is not None else end.follower
    moved = [b.name for b in _after(s.func, gemms[0].block)]
    moved = moved[: moved.index(last)]
    nest = _loops_of_end(s, chain.end, end.follower) if chain.last is None else _loops_of(s, last, chain.last)
    block, inner = _move_rows(s, chain.end, nest, moved, plan.rows)
    keys, has_rest = "", False
    for gemm in gemms[:-1] if plan.keys else gemms:
        join_epilogue(s, _nest(s, gemm, ""))
    if plan.keys:
        has_rest = chain.first.cols[-1].extent % plan.keys > 0
        keys, gemms[-1] = _divide_keys(s, end, RollingUpdate(end.block, plan.keys, plan.skip))
    suffixes = _cut_rest(s, block, chain.end.rows[-1].extent, plan.rows)
    lanes, tiles = target.lanes(chain.first.b.dtype.bytes), register_tiles(target, chain.first.b.dtype)
    for suffix in suffixes:
        for loop in (inner, keys) if keys else (inner,):
            _schedule_body(s, f"{loop}{suffix}", target)
        for p, rest in itertools.product(gemms, ("", "_rest") if has_rest else ("",)):
            how = p.plan
            nest = _nest(s, p, f"{rest}{suffix}")
            tile_nest(s, nest, how.tile, lanes, how.unroll, tiles, is_shared=False, is_joined=True)
    if is_worth_sharing(target.lanes(4), *(c.block for c in chain.contractions)):
        _share(s, [f"{inner}{suffix}" for suffix in suffixes])
    for copy in copies:
        _schedule_copy(s, copy, target)


# ------------------------------------------------------------------------------------------------------------ layouts


@dataclass(frozen=True, slots=True)
class _Copy:
    """A block that copies columns into panels; the last of its loops goes along the columns."""

    block: str
    loops: tuple[str, ...]
    width: int


def _pack(s: Draft, c: Contraction, width: int) -> _Copy:
    """Copy the columns into panels [batch, panel, k…, width]."""
    col, reduce = c.cols[-1], reduction_order(c)
    used = {v for i in c.b.indices for v in free_vars(i)}
    outer = [it for it in c.batch if it.var in used]
    order = (*outer, *reduce, col)
    copy = s.apply(Reindex(c.block.name, c.b.buffer.name, tuple(it.var.name for it in order)))
    at = len(order) - 1
    dims = (*range(len(outer)), at, *range(len(outer), at), at + 1)
    width = min(width, col.extent)
    s.apply(TransformLayout(copy.copy, Layout((SplitDim(at, width), ReorderDims(dims)))))
    return _Copy(copy.copy, copy.loops, width)


def _schedule_copy(s: Draft, copy: _Copy, target: Target) -> None:
    """Make panels inside the parts that read them, if each has its own; what is left of a panel apart, so that the
    others need no mask.
    """
    is_near = move_near(s, copy.block, target)
    is_shared = not is_near and is_worth_sharing(target.lanes(4), find_block(s.func, copy.block))
    schedule_elements(s, copy.block, target, is_shared=is_shared)


def _part_rows(s: Draft, rows: Buffer) -> None:
    """Rows that would fall into the same sets of the cache go a line apart: a tile reads several at a time."""
    if rows.shape[-1] * rows.dtype.bytes % SET_BYTES == 0:
        pad = PadDim(len(rows.shape) - 1, 0, LINE_BYTES // rows.dtype.bytes)
        s.apply(TransformLayout(rows.name, Layout((pad,))))


# ------------------------------------------------------------------------------------------------------ blocks of rows


class _RowNest(NamedTuple):
    """The loops of the last block, by name."""

    outer: tuple[str, ...]
    row: str
    inner: tuple[str, ...]


def _loops_of_end(s: Draft, c: Contraction, follower: str) -> _RowNest:
    """Of what takes the results of the last contraction up, which goes over these."""
    loops = [b.name for b in find_block(s.func, follower).bindings if isinstance(b, Var)]
    row, col = (loops[c.store.indices.index(it.var)] for it in (c.rows[-1], c.cols[-1]))
    return _RowNest(tuple(n for n in loops if n not in (row, col)), row, (col,))


def _loops_of(s: Draft, last: str, rows: RowLoops) -> _RowNest:
    """Of the block behind the only contraction."""
    loops = loops_of(find_block(s.func, last))
    outer, inner = (tuple(loops[it.var] for it in its) for its in (rows.outer, rows.inner))
    return _RowNest(outer, loops[rows.row.var], inner)


def _move_rows(s: Draft, c: Contraction, nest: _RowNest, moved: list[str], size: int) -> tuple[str, str]:
    """Put all blocks under loops that go over blocks of rows: the loop over blocks, and the innermost of the loops."""
    rest = s.loop(nest.row).extent % size
    block, inside = s.apply(Split(nest.row, (None, size))).names
    # Workers share what is outside of the rest, too.
    few = rest and prod(s.loop(n).extent for n in nest.outer) < _ENOUGH_HEADS
    around = [block, *nest.outer] if few else [*nest.outer, block]
    s.apply(Reorder((*around, inside, *nest.inner)))
    for name in _consumers_first(s, moved, c):
        s.apply(ComputeAt(name, around[-1]))
    return block, around[-1]


def _cut_rest(s: Draft, block: str, rows: int, size: int) -> tuple[str, ...]:
    """Part the whole blocks of rows from what is left; what the names in either end with."""
    if not rows % size:
        return ("",)
    s.apply(LoopPartition(block, (rows // size,)))
    return ("_p0", "_p1")


def _share(s: Draft, inner: list[str]) -> None:
    """Divide the loops around the blocks of rows among workers."""
    nests = [
        n for n in top_level(s.func) if isinstance(n, For) and any(x.var.name in inner for x in loops(n))
    ]
    for nest in nests:
        outer, parts = chain_of(nest), 1
        taken: list[str] = []
        while outer and parts < _ENOUGH_HEADS:
            taken.append(outer[0].var.name)
            parts *= outer.pop(0).extent
        parallel_prefix(s, tuple(taken))


def _consumers_first(s: Draft, moved: list[str], c: Contraction) -> list[str]:
    """The order to move blocks in: each comes in front of its first consumer. What the contraction does not need is
    moved first, and so comes before it, to where its own producers will be.
    """
    now = try_contraction(find_block(s.func, c.block.name))  # its rows may have another layout than they had
    assert now is not None
    needed, wanted = {c.block.name}, {now.a.buffer}
    for b in reversed([find_block(s.func, n) for n in moved]):
        if any(n.buffer in wanted for n in walk_stmts(b) if isinstance(n, Store)):
            needed.add(b.name)
            wanted.update(ld.buffer for n in walk_stmts(b) for e in stmt_exprs(n) for ld in loads(e))
    return sorted(reversed(moved), key=lambda n: n in needed)


def _nest(s: Draft, p: _Gemm, suffix: str) -> ReductionNest:
    """A contraction with what takes its results up, in a part whose names end with `suffix`."""
    c = try_contraction(find_block(s.func, f"{p.block}{suffix}"))
    assert c is not None, p.block
    named = {it.var: f"{p.loops}_{n}{suffix}" for n, it in enumerate(c.block.iters)}
    row, col = named[c.rows[-1].var], named[c.cols[-1].var]
    reduce = tuple(named[it.var] for it in reduction_order(c))
    # Blocks of keys have a loop that other blocks share.
    outer = tuple(n for n in named.values() if n not in (row, col, *reduce) and s.func.loop(n) is not None)
    inner = (col, row) if p.plan.columns_outside else (row, col)
    return ReductionNest(c.block.name, f"{p.follower}{suffix}", (*outer, *inner), row, col, reduce)


# ------------------------------------------------------------------------------------------------------ blocks of keys


def _divide_keys(s: Draft, p: _Gemm, step: RollingUpdate) -> tuple[str, _Gemm]:
    """Take keys up in blocks: the loop over them, and the GEMM with one of them."""
    nest = _nest(s, p, "")
    s.apply(Reorder((*nest.outside, *nest.reduce)))
    result = find_block(s.func, p.block).store
    s.apply(SetScope(result.buffer.name, Scope.GLOBAL))  # it is scaled, and added to, from block to block
    s.apply(step)
    s.apply(SetScope(step.part, Scope.REGISTER))
    over = s.loop(step.loop)
    for block in list(blocks(over)):
        reduce = [b for it, b in zip(block.iters, block.bindings, strict=True) if it.kind is IterKind.REDUCE]
        if block.init is not None and over.var in reduce:
            s.apply(DecomposeReduction(block.name, step.loop))
    return step.loop, _Gemm(step.part, p.loops, p.block, p.plan)


# --------------------------------------------------------------------------------------------------------- single rows


def _side_by_side(body: Stmt, names: Container[str]) -> list[list[str]]:
    """Those of the blocks that have a statement of `body` for themselves, in runs without others between."""
    runs: list[list[str]] = [[]]
    for stmt in body.stmts if isinstance(body, Seq) else (body,):
        if isinstance(stmt, If):
            runs += [*_side_by_side(stmt.then, names), []]
            continue
        found = [b.name for b in blocks(stmt)]
        if len(found) == 1 and found[0] in names:
            runs[-1].append(found[0])
        else:
            runs.append([])
    return [r for r in runs if r]


def _schedule_body(s: Draft, loop: str, target: Target) -> None:
    """Schedule the blocks that have a statement of the loop's body for themselves."""
    for run in _side_by_side(s.loop(loop).body, {b.name for b in blocks(s.loop(loop).body)}):
        schedule_rows(s, run, target)

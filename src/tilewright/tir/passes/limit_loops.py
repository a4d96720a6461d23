"""limit_loops: loops over open dimensions run as far as these are in use.

    Y: open(f32[512, 8], size("rows", 1, 512), None)
    for i in range(86):                           for i in range(86, (size("rows", 1, 512) + 5) // 6):
        for j in unrolled(6):              ──>        for j in unrolled(6):
            Y[i * 6 + j, …] = …                           Y[i * 6 + j, …] = …

Schedules are made for the capacity of every dimension, so everything about them is known. What lies beyond the size in
use is unspecified (`Buffer.sizes`): an iteration whose stores all go there need not run, and may. Loops are limited to
the iterations that store something else; tiles stay whole.

A reduction over an open dimension must not go beyond it (`Iter.size`). Its innermost loop is limited to exactly that
where it can be; otherwise the block gets a condition.
"""

from dataclasses import replace
from math import prod

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    TRUE,
    Binary,
    BinaryOp,
    Buffer,
    Const,
    Expr,
    Scope,
    Var,
    as_index,
    free_vars,
    maximum,
    minimum,
)
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Linear, Simplifier
from tilewright.tir.analysis.open_reductions import mask_of
from tilewright.tir.func import Func
from tilewright.tir.passes.open_bounds import OpenStore, SizeBound, open_stores
from tilewright.tir.passes.tile_heights import OpenTiles, by_heights, find_tiles, tile_indices
from tilewright.tir.rename import rename
from tilewright.tir.rewrite import map_children, redirect
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, For, If, LoopKind, Seq, Stmt, Store, children, seq, walk_stmts
from tilewright.tir.touched import touched

_MOST_LIMITS = 4  # different ones of one loop: with more, finding the largest costs more than it saves


def limit_loops(func: Func) -> Func:
    """Each of the top-level statements, as far as dimensions are in use."""
    nests: list[Stmt] = []
    made: list[Buffer] = []
    for nest in func.body.stmts if isinstance(func.body, Seq) else (func.body,):
        limits = _Limits(func, nest)
        nests.append(limits.apply(nest))
        made += limits.made
    return replace(func, body=Seq(tuple(nests)), locals=(*func.locals, *made))


def loop_limits(func: Func) -> tuple[tuple[For, Expr], ...]:
    """The loops of which only the first iterations may do anything that matters, and how many these are."""
    found: list[tuple[For, Expr]] = []
    for nest in func.body.stmts if isinstance(func.body, Seq) else (func.body,):
        limits = _Limits(func, nest).limits
        found += [(n, limits[n.var]) for n in walk_stmts(nest) if isinstance(n, For) and n.var in limits]
    return tuple(found)


class _Limits:
    def __init__(self, func: Func, nest: Stmt) -> None:
        self._simplify = Simplifier(ranges(func.body))
        self._leaves = [self._without_loose(leaf) for leaf in open_stores(nest)]
        others = [s for s in children(func.body) if s is not nest] if nest is not func.body else []
        self._outside = frozenset(func.params).union(
            *(touched(s).reads.keys() | touched(s).writes.keys() for s in others)
        )
        self._locals = frozenset(func.locals)
        self._whole: Var | None = None  # the loop whose iterations are whole: they need no condition
        self.made: list[Buffer] = []  # buffers that are new
        self.limits: dict[Var, Expr] = {}
        for loop in walk_stmts(nest):
            if isinstance(loop, For) and loop.kind in (LoopKind.SERIAL, LoopKind.PARALLEL):
                limit = self._limit(loop)
                if limit is not None:
                    self.limits[loop.var] = limit

    def _without_loose(self, leaf: OpenStore) -> OpenStore:
        """Without bounds that others are sure to be within: a buffer that has a border is in use to its end, also where
        a statement only stores what is inside.
        """
        kept: list[SizeBound] = []
        for b in leaf.bounds:
            others = [o for o in leaf.bounds if o is not b and not o.must]
            if b.must or not any(self._is_within(o, b) and not self._is_within(b, o) for o in others):
                kept.append(b)
        return leaf if len(kept) == len(leaf.bounds) else replace(leaf, bounds=tuple(kept))

    def _is_within(self, a: SizeBound, b: SizeBound) -> bool:
        """Is what `a` allows always allowed by `b`?"""
        apart = self._simplify.constant(b.size - b.index - (a.size - a.index))
        return apart is not None and apart >= 0

    def _limit(self, loop: For) -> Expr | None:
        """How many of its iterations do something that matters."""
        found: dict[Expr, None] = {}
        for leaf in self._leaves:
            if loop not in leaf.loops:
                continue
            limits = [e for b in leaf.bounds if (e := self._bound_of(loop, leaf, b)) is not None]
            if limits:
                least = limits[0]
                for e in limits[1:]:
                    least = least if e is least else minimum(least, e)
                found[least] = None
            elif not (
                self._is_inside(leaf.store.buffer, loop) or self._is_carried(leaf.store.buffer, loop, leaf)
            ):
                return None
        if not 0 < len(found) <= _MOST_LIMITS:
            return None
        first, *rest = found
        for e in rest:
            first = maximum(first, e)
        return self._simplify(first)

    def _is_inside(self, buffer: Buffer, loop: For) -> bool:
        """Does what is stored to the buffer matter in the same iteration only, because all its users are there?"""
        if buffer in self._outside:
            return False
        stores = [leaf for leaf in self._leaves if leaf.store.buffer is buffer]
        readers = [leaf for leaf in self._leaves if buffer in touched(leaf.store).reads]
        return all(loop in leaf.loops for leaf in (*stores, *readers))

    def _is_carried(self, buffer: Buffer, loop: For, inside: OpenStore) -> bool:
        """Is it one value that iterations pass on, and nobody else reads, since it begins anew whenever the loop does?
        Then what the last of them pass on does not matter.
        """
        if buffer in self._outside or prod(buffer.shape) != 1:
            return False
        around = inside.loops[: inside.loops.index(loop)]
        others = [leaf for leaf in self._leaves if loop not in leaf.loops]
        begins = any(leaf.store.buffer is buffer and leaf.loops == around for leaf in others)
        return begins and not any(buffer in touched(leaf.store).reads for leaf in others)

    def _bound_of(self, loop: For, leaf: OpenStore, bound: SizeBound) -> Expr | None:
        if not leaf.fills_whole(loop.var, bound):
            return None
        around = frozenset(n.var for n in leaf.loops[: leaf.loops.index(loop)])
        return self._below(bound.index, bound.size, loop.var, around)

    def _needed(self, loop: For) -> Expr | None:
        """Whether an iteration does something that matters, where these are not the first ones: loops that were fused
        number them all.
        """
        found: set[Expr] = set()
        for leaf in self._leaves:
            if loop not in leaf.loops or self._is_inside(leaf.store.buffer, loop):
                continue
            conditions = [c for b in leaf.bounds if (c := self._is_reached(loop, b)) is not None]
            found.add(logical_and(*conditions))
        if len(found) != 1:
            return None
        needed = found.pop()
        return None if needed is TRUE else needed

    def _is_reached(self, loop: For, bound: SizeBound) -> Expr | None:
        """Can the index be below the size in this iteration? None if that does not depend on it, or its first values
        are all that can.
        """
        form = self._simplify.linear(bound.index)
        mine = tuple((a, k) for a, k in form.terms if loop.var in free_vars(a))
        if all(a is loop.var or _is_quotient(a) for a, _ in mine):
            return None
        if any(free_vars(a) != frozenset((loop.var,)) for a, _ in mine):
            return None
        rest = tuple(t for t in form.terms if t not in mine)
        least = self._simplify.bounds(self._simplify.expr(Linear(form.const, rest))).lo
        if least == float("-inf"):
            return None
        return self._simplify(self._simplify.expr(Linear(int(least), mine)) < bound.size)

    def _room(self, index: Expr, size: Expr, mover: Expr, around: frozenset[Var]) -> Expr | None:
        """How far `index` is from `size` where `mover` is 0, if it moves the index by itself."""
        form = self._simplify.linear(index)
        return self._left(form, size, mover, around) if any(a is mover for a, _ in form.terms) else None

    def _left(self, form: Linear, size: Expr, mover: Expr, around: frozenset[Var]) -> Expr | None:
        """How far an index is from `size` where its term `mover` is 0, and what is inside of that is least."""
        outer = tuple((a, k) for a, k in form.terms if free_vars(a) <= around)
        inner = tuple(t for t in form.terms if t not in outer and t[0] is not mover)
        least = self._simplify.bounds(self._simplify.expr(Linear(0, inner))).lo
        if least == float("-inf"):
            return None
        return self._simplify(size - self._simplify.expr(Linear(form.const + int(least), outer)))

    def _below(self, index: Expr, size: Expr, var: Var, around: frozenset[Var]) -> Expr | None:
        """The number of values of `var`, from 0 on, with which `index` can be below `size`."""
        form = self._simplify.linear(index)
        movers = [(a, k) for a, k in form.terms if a is var or (_is_quotient(a) and var in free_vars(a))]
        if len(movers) != 1 or movers[0][1] <= 0:
            return None
        ((atom, k),) = movers
        room = self._left(form, size, atom, around)
        if room is None:
            return None
        count = room if k == 1 else (room + (k - 1)) // k
        if atom is var:
            return self._simplify(count)
        assert isinstance(atom, Binary) and isinstance(atom.b, Const)
        return self._below(atom.a, count * atom.b, var, around)

    # ---------------------------------------------------------------------------------------------------- the result

    def apply(self, s: Stmt) -> Stmt:
        if isinstance(s, For) and (whole := self._whole_steps(s)) is not None:
            return self._with_tail(s, *whole)
        if isinstance(s, Seq):
            return Seq(tuple([self._if_reached(c, self.apply(c)) for c in s.stmts]))
        loop = s
        if isinstance(s, Block):
            s = self._guarded(s)
        s = map_children(s, self.apply)
        if isinstance(loop, For) and isinstance(s, For) and s.kind is LoopKind.PARALLEL:
            needed = self._needed(loop)
            if needed is not None:
                tiles = self._tiles(loop, s)
                made = s if tiles is None else self._in_heights(loop, tiles)
                assert isinstance(made, For)
                s = replace(made, body=If(needed, made.body))
        if not isinstance(s, For) or s.var not in self.limits:
            return s
        limit = self.limits[s.var]
        low, high = self._simplify.bounds(limit)
        if low >= s.extent:
            return s
        if high > s.extent:
            limit = minimum(limit, s.extent)
        assert isinstance(loop, For)
        tiles = self._tiles(loop, replace(s, limit=limit) if s.kind is LoopKind.PARALLEL else s)
        if tiles is not None:
            return self._in_heights(loop, tiles)
        if s.kind is LoopKind.PARALLEL:  # whose parts are counted when the program runs: never less than one
            body = s.body if low >= 1 else If(s.var < limit, s.body)
            return replace(s, body=body, limit=limit)
        limited = replace(s, limit=limit) if s.extent > 1 else s
        return limited if low >= 1 else If(as_index(0) < limit, limited)

    def _if_reached(self, before: Stmt, now: Stmt) -> Stmt:
        """The statement, if all that it stores may begin beyond the sizes: the last tile of rows, which needs no loop.
        `before`: as it was.
        """
        inside = {id(n) for n in walk_stmts(before) if isinstance(n, Store)}
        common: set[Expr] | None = None
        for leaf in self._leaves:
            if id(leaf.store) in inside:
                found = {c for b in leaf.bounds if (c := self._begins_beyond(b, before)) is not None}
                common = found if common is None else common & found
        if not common:
            return now
        return If(logical_and(*sorted(common, key=str)), now)

    def _begins_beyond(self, bound: SizeBound, s: Stmt) -> Expr | None:
        """The condition that the index can be below the size, if it is a constant away from what moves inside."""
        form = self._simplify.linear(bound.index)
        inner = {n.var for n in walk_stmts(s) if isinstance(n, For)}
        if form.const <= 0 or not all(free_vars(a) <= inner for a, _ in form.terms):
            return None
        least = self._simplify.bounds(bound.index).lo
        if not 0 < least < float("inf") or self._simplify.bounds(bound.size).lo > least:
            return None
        return self._simplify(as_index(int(least)) < bound.size)

    # --------------------------------------------------------------------------------- contractions, unrolled

    def _whole_steps(self, loop: For) -> tuple[int, Expr] | None:
        """How many elements of an open dimension that is reduced an iteration takes up in unrolled code, and how many
        there are from the loop's start on.
        """
        found: set[tuple[int, Expr]] = set()
        if loop.kind is not LoopKind.SERIAL or loop.extent == 1:
            return None
        for leaf in self._leaves:
            if loop not in leaf.loops or self._is_inside(leaf.store.buffer, loop):
                continue
            bound = next((b for b in leaf.bounds if b.must and loop.var in free_vars(b.index)), None)
            if bound is None:
                return None
            terms = dict(self._simplify.linear(bound.index).terms)
            step = terms.pop(loop.var, 0)
            inner = leaf.loops[leaf.loops.index(loop) + 1 :]
            rows = [n for n in inner if n.var in terms]
            if not rows or step != rows[0].extent or len(rows) > 1 or rows[0].kind is not LoopKind.UNROLLED:
                return None
            around = frozenset(n.var for n in leaf.loops[: leaf.loops.index(loop)])
            room = self._room(bound.index, bound.size, loop.var, around)
            if room is None:
                return None
            found.add((step, room))
        return found.pop() if len(found) == 1 else None

    def _with_tail(self, loop: For, step: int, room: Expr) -> Stmt:
        """Whole iterations without a condition, and what is left of the dimension with one."""
        room = minimum(room, loop.extent * step)
        whole = self._simplify(room // step)
        guarded = map_children(loop, self.apply)
        around, self._whole = self._whole, loop.var
        main = map_children(loop, self.apply)
        self._whole = around
        assert isinstance(main, For) and isinstance(guarded, For)
        own = [b for b in self._locals if self._is_inside(b, loop) and b in touched(loop).writes]
        copies = {
            b: Buffer(f"{b.name}_{loop.var.name}_tail", b.shape, b.dtype, b.scope, b.sizes) for b in own
        }
        self.made += copies.values()
        tail = rename(redirect(guarded.body, copies), "_tail", {loop.var: whole})
        low, _ = self._simplify.bounds(whole)
        limited: Stmt = replace(main, limit=whole)
        return seq(
            limited if low >= 1 else If(as_index(0) < whole, limited),
            If(whole * step < room, tail),
        )

    def _in_heights(self, loop: For, tiles: OpenTiles) -> Stmt:
        own = [b for b in self._locals if self._is_stored_inside(b, loop)]
        made, new = by_heights(tiles, own, self._simplify)
        self.made += new
        return made

    def _tiles(self, loop: For, now: For) -> OpenTiles | None:
        """The loop as one over register tiles, whose rows are unrolled. `now`: with what was limited inside of it."""
        for index, other, count in tile_indices(now):
            tiles = self._tiles_by(loop, now, index, other, count)
            if tiles is not None:
                return tiles
        return None

    def _tiles_by(self, loop: For, now: For, index: Expr, other: Expr | None, count: int) -> OpenTiles | None:
        found: set[tuple[int, Expr]] = set()
        for leaf in self._leaves:
            if loop in leaf.loops and not self._is_inside(leaf.store.buffer, loop):
                if not any(loop.var in free_vars(i) for i in leaf.indices):
                    return None  # steps of a reduction: what they add up outlives them
                around = frozenset(n.var for n in leaf.loops[: leaf.loops.index(loop)])
                found |= {
                    (k, room)
                    for b in leaf.bounds
                    if (room := self._room(b.index, b.size, index, around)) is not None
                    and (k := dict(self._simplify.linear(b.index).terms).get(index, 0)) > 1
                }
        if len(found) != 1:
            return None
        height, room = found.pop()
        return find_tiles(now, index, other, count, height, room, self._simplify)

    def _is_stored_inside(self, buffer: Buffer, loop: For) -> bool:
        if not any(leaf.store.buffer is buffer and loop in leaf.loops for leaf in self._leaves):
            return False
        # Registers do not outlive an iteration over tiles: who else has them has them for rows of its own.
        return buffer.scope is Scope.REGISTER or self._is_inside(buffer, loop)

    def _guarded(self, block: Block) -> Block:
        """The block with a condition for each reduction over an open dimension that no loop is limited for."""
        values = {it.var: b for it, b in zip(block.iters, block.bindings, strict=True)}
        missing: list[Expr] = []
        for var, below in mask_of(block):
            it = next(it for it in block.iters if it.var is var)
            assert it.size is not None
            condition = substitute(below, values)
            is_whole = self._whole is not None and self._whole in free_vars(condition)
            if not is_whole and not self._is_exact(block, substitute(it.size, values)):
                missing.append(condition)
        if not missing:
            return block
        return replace(block, predicate=logical_and(block.predicate, *missing))

    def _is_exact(self, block: Block, size: Expr) -> bool:
        leaf = next((n for n in self._leaves if _holds(block, n.store)), None)
        if leaf is None:
            return False
        bound = next((b for b in leaf.bounds if b.must and b.size is size), None)
        if bound is None or any(not isinstance(a, Var) for a, _ in self._simplify.linear(bound.index).terms):
            return False
        inner = [n for n in leaf.loops if n.var in free_vars(bound.index)]
        if not inner:
            return False
        exact = self._bound_of(inner[-1], leaf, bound)
        return exact is not None and self.limits.get(inner[-1].var) is exact


def _holds(block: Block, store: Store) -> bool:
    return any(n is store for n in walk_stmts(block))


def _is_quotient(e: Expr) -> bool:
    if not isinstance(e, Binary) or e.op is not BinaryOp.FLOORDIV:
        return False
    return isinstance(e.b, Const) and e.b.value > 0

"""loop_partition: one loop becomes consecutive loops over its parts.

    for i in range(20):            LoopPartition("i", (18,))      for i_p0 in range(18):
        C(vi = i)                        ─────>                       C_p0(vi_p0 = i_p0)
                                                                  for i_p1 in range(2):
                                                                      C_p1(vi_p1 = i_p1 + 18)

Part n runs from point n-1 to point n. Everything bound inside it gets the suffix `_p{n}`. The parts run in the order
of the loop, so the program means the same.

In each part what its range decides is decided: conditions that always hold disappear, so do blocks that never run and
inits that are never reached, and a loop that every block below guards with `v < c` runs to c. So a split with a
remainder, partitioned before its last tile, gives exact tiles:

    for i_0 in range(4):           LoopPartition("i_0", (3,))     for i_0_p0 in range(3):
        for i_1 in range(6):             ─────>                       for i_1_p0 in range(6):
            C(vi = i_0 * 6 + i_1)                                         C_p0(vi_p0 = i_0_p0 * 6 + i_1_p0)
                where i_0 * 6 + i_1 < 20                          for i_0_p1 in range(1):
                                                                      for i_1_p1 in range(2):
                                                                          C_p1(vi_p1 = i_1_p1 + 18)
"""

from dataclasses import dataclass, replace
from itertools import pairwise

from tilewright.ir.condition import conjuncts
from tilewright.ir.expr import (
    FALSE,
    Binary,
    BinaryOp,
    Const,
    Expr,
    Var,
)
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.edit import replace_stmt, simplify_nest
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_loop, path_to, ranges_above
from tilewright.schedule.names import bound_names, check_fresh
from tilewright.schedule.plain_loop import check_plain
from tilewright.schedule.step import LoopStep
from tilewright.tir.func import Func
from tilewright.tir.rename import rename
from tilewright.tir.rewrite import map_children
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, For, If, IterKind, Seq, Stmt, children, seq


@dataclass(frozen=True, slots=True)
class LoopPartition(LoopStep):
    points: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The new loops, in order."""
        return tuple(f"{self.loop}_p{n}" for n in range(len(self.points) + 1))

    def rewrite(self, func: Func) -> Func:
        loop = find_loop(func, self.loop)
        check_plain(func, loop, "partition")
        ends = (0, *self.points, loop.extent)
        if not self.points or any(a >= b for a, b in pairwise(ends)):
            raise step_refusal(
                func,
                loop,
                f"the points must rise, strictly between 0 and {loop.extent}, the extent of {self.loop}",
            )
        known = ranges_above(path_to(func.body, loop)[:-1])
        new: list[str] = []
        parts: list[Stmt] = []
        for name, (start, end) in zip(self.names, pairwise(ends), strict=True):
            suffix = name.removeprefix(self.loop)
            body = rename(loop.body, suffix, {loop.var: Var(name) + start})
            part = For(Var(name), end - start, body)
            new.extend(bound_names(part))
            simplify = Simplifier(known | ranges(part))
            pruned = prune_unreachable(simplify_nest(part, simplify), simplify)
            if pruned is not None:
                parts.append(pruned)
        check_fresh(func, new)
        return replace_stmt(func, loop, seq(*parts))


def prune_unreachable(s: Stmt, simplify: Simplifier) -> Stmt | None:
    """`s`, whose bindings and predicates are simplified, without what never runs; None if nothing does."""
    match s:
        case Block():
            if s.predicate is FALSE:
                return None
            return s if s.init is None or _reaches_init(s, simplify) else replace(s, init=None)
        case For():
            body = prune_unreachable(s.body, simplify)
            return None if body is None else _tighten(replace(s, body=body))
        case Seq():
            kept = [c for c in (prune_unreachable(c, simplify) for c in s.stmts) if c is not None]
            return seq(*kept) if kept else None
        case If():
            then = prune_unreachable(s.then, simplify)
            return None if then is None else If(s.cond, then)
        case _:
            return s


def _reaches_init(block: Block, simplify: Simplifier) -> bool:
    reduce = (b for it, b in zip(block.iters, block.bindings, strict=True) if it.kind is IterKind.REDUCE)
    return all(simplify.bounds(b).lo <= 0 for b in reduce)


def _tighten(loop: For) -> For:
    """A loop whose blocks all run only where its variable is below some limit ends at that limit."""
    limits = [_limit(b.predicate, loop.var) for b in _outermost_blocks(loop.body)]
    if any(n is None for n in limits) or not limits or loop.kind.is_thread_axis:  # an axis has one extent
        return loop
    limit = max(n for n in limits if n is not None)
    if limit >= loop.extent:
        return loop
    simplify = Simplifier(ranges(For(loop.var, limit, loop.body)))
    return replace(loop, extent=limit, body=_simplify_predicates(loop.body, simplify))


def _simplify_predicates(s: Stmt, simplify: Simplifier) -> Stmt:
    """Those of the outermost blocks in `s`."""
    if isinstance(s, Block):
        return replace(s, predicate=simplify(s.predicate))
    return map_children(s, lambda c: _simplify_predicates(c, simplify))


def _outermost_blocks(s: Stmt) -> list[Block]:
    """The blocks in `s` that are not inside other blocks of `s`."""
    if isinstance(s, Block):
        return [s]
    return [b for c in children(s) for b in _outermost_blocks(c)]


def _limit(predicate: Expr, var: Var) -> int | None:
    """c if `var < c` is one of the conditions of the predicate."""
    for cond in conjuncts(predicate):
        match cond:
            case Binary(op=BinaryOp.LT, a=a, b=Const(value=c)) if a is var:
                return int(c)
            case _:
                pass
    return None

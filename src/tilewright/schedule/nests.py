"""Nests of a Func that follow each other, and what is made of them in their place."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.expr import Buffer, Var
from tilewright.schedule.edit import swap_stmt
from tilewright.schedule.find import find_block, path_to
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, Seq, Stmt, blocks, seq
from tilewright.tir.touched import touched


@dataclass(frozen=True, slots=True)
class NestRun:
    """Nests that follow each other, each with one of some blocks, wherever they stand."""

    within: Stmt  # the sequence that they are some statements of, or their only one
    stmts: tuple[Stmt, ...]  # of `within`
    first: int
    last: int  # behind them
    around: dict[Var, int]  # the loops above, and their extents

    @property
    def nests(self) -> tuple[Stmt, ...]:
        return self.stmts[self.first : self.last]

    @property
    def others(self) -> tuple[Stmt, ...]:
        return (*self.stmts[: self.first], *self.stmts[self.last :])


def find_run(func: Func, names: Sequence[str]) -> NestRun:
    """The nests of the blocks `names`. Others must not stand between them."""
    found = [find_block(func, name) for name in names]
    path = path_to(func.body, found[0])
    # The innermost sequence that has all of them; of one block, the one that it has a statement of.
    within = max(
        (
            n
            for n, s in enumerate(path)
            if isinstance(s, Seq) and all(any(b is c for c in blocks(s)) for b in found)
        ),
        default=0,
    )
    if any(isinstance(s, Block) for s in path[:within]):
        raise ScheduleError(f"{names[0]} is inside of a block")
    parent = path[within]
    stmts = parent.stmts if isinstance(parent, Seq) else (parent,)
    chosen = [n for n, nest in enumerate(stmts) if any(b.name in names for b in blocks(nest))]
    first, last = chosen[0], chosen[-1] + 1
    if chosen != list(range(first, last)):
        raise ScheduleError("other nests stand between those of the blocks")
    around = {s.var: s.extent for s in path[:within] if isinstance(s, For)}
    return NestRun(parent, stmts, first, last, around)


def replace_run(func: Func, run: NestRun, body: Stmt, made: Sequence[Buffer]) -> Func:
    """With `body` in the place of the nests, and with the new locals `made`."""
    new = swap_stmt(func.body, run.within, seq(*run.stmts[: run.first], body, *run.stmts[run.last :]))
    used = touched(new)
    kept = [b for b in func.locals if used.any_of((b,))]
    return replace(func, body=new, locals=tuple(dict.fromkeys((*kept, *made))))


def replace_nests(func: Func, names: Sequence[str], made_of: Callable[[Func], Func]) -> Func:
    """With the nests of the blocks `names`, which no loop is around, replaced by those of another Func."""
    run = find_run(func, names)
    if run.around:
        raise ScheduleError("the nests are inside of loops")
    made = made_of(_apart(func, run))
    return replace_run(func, run, made.body, made.locals)


def shared_buffers(func: Func, run: NestRun) -> tuple[Buffer, ...]:
    """What the nests use, and others too: params, and what they leave to others."""
    mine, elsewhere = touched(seq(*run.nests)), touched(swap_stmt(func.body, run.within, seq(*run.others)))
    every = [b for b in (*func.params, *func.locals) if mine.any_of((b,))]
    return tuple(b for b in every if b in func.params or elsewhere.any_of((b,)))


def _apart(func: Func, run: NestRun) -> Func:
    """Some nests as a Func of their own: what others touch is a param of it."""
    params = shared_buffers(func, run)
    mine = touched(seq(*run.nests))
    local = tuple(b for b in func.locals if b not in params and mine.any_of((b,)))
    return Func(func.name, params, local, seq(*run.nests), tuple(b for b in params if b in mine.writes))

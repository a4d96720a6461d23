"""Nests of a Func that follow each other, as a Func of their own, and what is made of that in their place."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.stmt import Seq, Stmt, blocks, seq
from tilewright.tir.touched import touched


def replace_nests(func: Func, names: Sequence[str], made_of: Callable[[Func], Func]) -> Func:
    """With the nests of the blocks `names` replaced. Others must not stand between them."""
    unknown = next((b for b in names if func.block(b) is None), None)
    if unknown is not None:
        raise ScheduleError(f"{func.name} has no block {unknown!r}")
    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    chosen = [n for n, nest in enumerate(nests) if any(b.name in names for b in blocks(nest))]
    first, last = chosen[0], chosen[-1] + 1
    if chosen != list(range(first, last)):
        raise ScheduleError("other nests stand between those of the blocks")
    made = made_of(_apart(func, nests[first:last], (*nests[:first], *nests[last:])))
    body = seq(*nests[:first], made.body, *nests[last:])
    used = touched(body)
    kept = [b for b in func.locals if used.any_of((b,))]
    return replace(func, body=body, locals=tuple(dict.fromkeys((*kept, *made.locals))))


def _apart(func: Func, nests: Sequence[Stmt], others: Sequence[Stmt]) -> Func:
    """Some nests as a Func of their own: what others touch is a param of it."""
    mine, elsewhere = touched(seq(*nests)), [touched(s) for s in others]
    every = [b for b in (*func.params, *func.locals) if mine.any_of((b,))]
    params = tuple(b for b in every if b in func.params or any(t.any_of((b,)) for t in elsewhere))
    local = tuple(b for b in every if b not in params)
    return Func(func.name, params, local, seq(*nests), tuple(b for b in params if b in mine.writes))

"""The loops and blocks of a statement by name, and the ranges of their variables.

Every step asks for some of them, and changes one nest of many. So statements remember the answer, and a sequence puts
together what its statements know: after a step, only what is on the way from the root to the change is looked at
again.
"""

from functools import lru_cache
from typing import NamedTuple

from tilewright.ir.expr import Var
from tilewright.ir.simplify import Interval
from tilewright.tir.stmt import Block, For, Seq, Stmt, Store, children


class Declared(NamedTuple):
    """Shared by all who ask: not to be changed."""

    loops: dict[str, For]
    blocks: dict[str, Block]
    ranges: dict[Var, Interval]  # of loop variables and block iterators

    def __contains__(self, name: object) -> bool:
        """Is it the name of a loop, a block or an iterator?"""
        return isinstance(name, str) and (name in self.blocks or Var(name) in self.ranges)


_NOTHING = Declared({}, {}, {})


def declared(s: Stmt) -> Declared:
    """What `s` and all below it declare. Names are unique; where they are not yet, the last one counts."""
    below = declared_below(s)
    if not isinstance(s, For) and not isinstance(s, Block):
        return below
    found = Declared({}, {}, {})
    _add(s, found)
    _add_all(below, found)
    return found


def declared_below(s: Stmt) -> Declared:
    """What is declared below `s`. It is what `s` remembers: if it knew itself, it would keep itself alive."""
    if isinstance(s, Store):
        return _NOTHING
    try:
        return s.known_below
    except AttributeError:
        found = _below(s)
        object.__setattr__(s, "known_below", found)
        return found


def _below(s: Stmt) -> Declared:
    found = Declared({}, {}, {})
    todo = list(reversed(children(s)))
    while todo:
        node = todo.pop()
        if isinstance(node, Store):
            continue
        _add(node, found)
        if isinstance(node, Seq) or isinstance(s, Seq):
            _add_all(declared_below(node), found)
        else:
            todo.extend(reversed(children(node)))
    return found


def _add(s: Stmt, found: Declared) -> None:
    if isinstance(s, For):
        found.loops[s.var.name] = s
        found.ranges[s.var] = _below_extent(s.extent)
    elif isinstance(s, Block):
        found.blocks[s.name] = s
        for it in s.iters:
            found.ranges[it.var] = _below_extent(it.extent)


@lru_cache(maxsize=1024)
def _below_extent(extent: int) -> Interval:
    return Interval(0, extent - 1)


def _add_all(some: Declared, found: Declared) -> None:
    found.loops.update(some.loops)
    found.blocks.update(some.blocks)
    found.ranges.update(some.ranges)

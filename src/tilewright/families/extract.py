"""Some nests of a Func as a Func of their own, so that another family may schedule them."""

from collections.abc import Sequence

from tilewright.ir.expr import Buffer, loads
from tilewright.schedule.find import top_level
from tilewright.tir.func import Func
from tilewright.tir.stmt import Stmt, Store, blocks, seq, stmt_exprs, walk_stmts


def extract_nests(func: Func, run: set[str]) -> Func:
    """The nests of these blocks as a Func. What others use too is a param."""
    inside = [n for n in top_level(func) if any(b.name in run for b in blocks(n))]
    others = [n for n in top_level(func) if n not in inside]
    used, elsewhere = buffers_of(inside), buffers_of(others)
    shared = [b for b in used if b in func.params or b in elsewhere]
    stored = {n.buffer for nest in inside for n in walk_stmts(nest) if isinstance(n, Store)}
    local = tuple(b for b in used if b not in shared)
    return Func(func.name, tuple(shared), local, seq(*inside), tuple(b for b in shared if b in stored))


def buffers_of(nests: Sequence[Stmt]) -> dict[Buffer, None]:
    found: dict[Buffer, None] = {}
    for n in (n for nest in nests for n in walk_stmts(nest)):
        found.update((ld.buffer, None) for e in stmt_exprs(n) for ld in loads(e))
        if isinstance(n, Store):
            found[n.buffer] = None
    return found

"""place_sizes: sizes of open dimensions are read from memory.

for i in range(512, size("rows", 1, 512)):   ──>   for i in range(512, rows[0]):

A size is a parameter of one element, which the program's caller sets before a run. Until code is made of them, sizes
are expressions of their own, with a range, so that they can be computed with.
"""

from dataclasses import replace

from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import Buffer, DimSize, Expr, Load, Scope, const, walk
from tilewright.ir.rewrite import transform_where
from tilewright.ir.traits import SIZES
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_exprs
from tilewright.tir.stmt import Stmt, stmt_exprs, walk_stmts
from tilewright.tir.touched import touched

_PREFIX = "size__"  # no name that comes from a model has two underscores in a row


def size_buffer(name: str) -> Buffer:
    """Where the size of the dimension of this name is read."""
    return Buffer(f"{_PREFIX}{name}", (1,), INDEX, Scope.GLOBAL)


def size_name(buffer: Buffer) -> str | None:
    """The dimension whose size is read there, if it is such a buffer."""
    return buffer.name.removeprefix(_PREFIX) if buffer.name.startswith(_PREFIX) else None


def size_buffers(func: Func) -> tuple[Buffer, ...]:
    """Of all sizes that the Func, or a limit of one of its loops, may read."""
    found = {e.name for e in sizes_in(func.body)}
    for b in (*func.params, *func.locals):
        for size in b.sizes:
            if size is not None:
                found |= {e.name for e in walk(size) if isinstance(e, DimSize)}
    return tuple(size_buffer(name) for name in sorted(found))


def has_sizes(func: Func) -> bool:
    """Is there anything open in it?"""
    return any(b.sizes for b in (*func.params, *func.locals)) or bool(touched(func.body).kinds & SIZES)


def sizes_in(s: Stmt) -> tuple[DimSize, ...]:
    """All sizes that a statement mentions, by name."""
    found = {e for n in walk_stmts(s) for root in stmt_exprs(n) for e in walk(root) if isinstance(e, DimSize)}
    return tuple(sorted(found, key=lambda e: e.name))


def place_sizes(func: Func) -> Func:
    if not touched(func.body).kinds & SIZES:
        return func
    found = sizes_in(func.body)

    def load(e: Expr) -> Expr | None:
        return Load(size_buffer(e.name), (const(0),)) if isinstance(e, DimSize) else None

    memo: dict[Expr, Expr] = {}
    body = map_exprs(func.body, lambda e: transform_where(e, SIZES, load, memo))
    missing = tuple(b for e in found if (b := size_buffer(e.name)) not in func.params)
    return replace(func, body=body, params=(*func.params, *missing))

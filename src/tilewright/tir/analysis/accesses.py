"""What one block reads and writes, as it is written in its body.

The accesses are over the iterators of the block (and of loops inside it); `regions` has them from outside, over loop
variables.
"""

from tilewright.ir.expr import Load, loads
from tilewright.tir.stmt import Block, Store, children, stmt_exprs, walk


def reads(block: Block) -> tuple[Load, ...]:
    """The distinct loads of the init and the body, statement by statement, those of one expression by buffer name.
    A reduction's own accumulator is one of them.
    """
    found: dict[Load, None] = {}
    for part in children(block):
        for s in walk(part):
            for e in stmt_exprs(s):
                found |= dict.fromkeys(sorted(loads(e), key=_name))
    return tuple(found)


def writes(block: Block) -> tuple[Load, ...]:
    """The distinct elements that the init and the body store to, in program order."""
    stores = (s for part in children(block) for s in walk(part) if isinstance(s, Store))
    return tuple(dict.fromkeys(Load(s.buffer, s.indices) for s in stores))


def _name(load: Load) -> str:
    return load.buffer.name

"""What one block reads and writes, as it is written in its body.

The accesses are over the iterators of the block (and of loops inside it); `regions` has them from outside, over loop
variables. A block with loops of its own touches boxes: `touched_regions` tells them over its iterators.
"""

from tilewright.ir.expr import Buffer, Load, loads
from tilewright.ir.simplify import Simplifier
from tilewright.tir.analysis.regions import BufferRegion, covering_region, loop_extents
from tilewright.tir.analysis.regions import accesses as seen_from_outside
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, Store, children, stmt_exprs, walk_stmts


def reads(block: Block) -> tuple[Load, ...]:
    """The distinct loads of the init and the body, statement by statement, those of one expression by buffer name.
    A reduction's own accumulator is one of them.
    """
    found: dict[Load, None] = {}
    for part in children(block):
        for s in walk_stmts(part):
            for e in stmt_exprs(s):
                found |= dict.fromkeys(sorted(loads(e), key=_name))
    return tuple(found)


def writes(block: Block) -> tuple[Load, ...]:
    """The distinct elements that the init and the body store to, in program order."""
    stores = (s for part in children(block) for s in walk_stmts(part) if isinstance(s, Store))
    return tuple(dict.fromkeys(Load(s.buffer, s.indices) for s in stores))


def touched_regions(block: Block) -> tuple[dict[Buffer, BufferRegion], dict[Buffer, BufferRegion]]:
    """The box of each buffer that the init and the body read, and of each that they write."""
    simplify = Simplifier(ranges(block))
    inside = [a for part in children(block) for a in seen_from_outside(part)]
    ranging = {v: n for part in children(block) for v, n in loop_extents(part).items()}
    found: list[dict[Buffer, BufferRegion]] = []
    for is_write in (False, True):
        chosen = [a for a in inside if a.is_write is is_write]
        boxes = {
            b: covering_region(chosen, b, ranging, simplify) for b in dict.fromkeys(a.buffer for a in chosen)
        }
        found.append({b: box for b, box in boxes.items() if box is not None})
    return found[0], found[1]


def _name(load: Load) -> str:
    return load.buffer.name

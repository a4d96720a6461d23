"""What a block costs on one core, roughly: enough to say whether a team should share it.

    seconds = the longer of: instructions of all elements, in vectors; bytes of what it reads and writes, from the cache
    that they fit

Rules have better figures for what they choose among. This one is for every block, however it is scheduled, and is asked
before it is.
"""

import math

from tilewright.cost.stream import moving_seconds
from tilewright.ir.expr import Binary, BinaryOp, Expr, Fma, Select, Unary, UnaryOp, loads, walk
from tilewright.target.machine import Machine
from tilewright.tir.stmt import Block, Store, stmt_exprs
from tilewright.tir.stmt import walk_stmts as walk_stmts

_SHARED = 0.25  # of a load: what many elements share is loaded for a tile of about four of them
_STEP = 1.0  # cycles of a vector beside: addresses, the loop, the store; as copies take

# Instructions of what takes several: counted in the code that `tir/math` makes; of division and roots, cycles.
_LONG: dict[UnaryOp | BinaryOp, float] = {
    UnaryOp.SQRT: 6,
    UnaryOp.RSQRT: 8,
    UnaryOp.EXP: 16,
    UnaryOp.LOG: 24,
    UnaryOp.TANH: 36,
    UnaryOp.SIGMOID: 24,
    UnaryOp.ERF: 40,
    UnaryOp.SIN: 40,
    UnaryOp.COS: 40,
    BinaryOp.DIV: 6,
    BinaryOp.POW: 60,
}


def domain(block: Block) -> int:
    """How many elements it computes, or steps it takes."""
    return math.prod(it.extent for it in block.iters)


def block_seconds(block: Block, lanes: int, m: Machine) -> float:
    """Of all iterations of `block`, in vectors of `lanes` lanes."""
    values = [e for n in walk_stmts(block.body) for e in stmt_exprs(n)]
    stored = {n.buffer for n in walk_stmts(block.body) if isinstance(n, Store)}
    found = [ld for e in values for ld in loads(e)]
    elements = domain(block)
    work = sum(map(instructions, values))
    for ld in found:
        if ld.buffer not in stored:  # what many elements share is loaded for a tile of them
            work += _SHARED if block.is_reduction and ld.buffer.size * 4 < elements else 1
    cycles = elements / lanes * (work / m.loads_per_cycle + (0.0 if block.is_reduction else _STEP))
    touched = stored | {ld.buffer for ld in found}
    # Windows and GEMMs read an element many times; it comes from afar once.
    nbytes = sum(min(b.bytes, elements * b.dtype.bytes) for b in touched)
    return max(cycles / m.hertz, moving_seconds(nbytes, m))


def instructions(e: Expr) -> float:
    """Of a value; where elements are is no part of it."""
    total = 0.0
    for n in walk(e):
        match n:
            case Unary(op=op) | Binary(op=op):
                total += _LONG.get(op, 1) if n.dtype.is_float else 0
            case Fma() | Select():
                total += 1
            case _:
                pass
    return total

"""What a block costs on one core, roughly: enough to say whether a team should share it.

    seconds = the longer of: instructions of all elements, in vectors; bytes of what it reads and writes, from the cache
    that they fit

Rules have better figures for what they choose among. This one is for every block, however it is scheduled, and is asked
before it is.
"""

import math
from collections.abc import Iterator

from tilewright.cost.stream import moving_seconds
from tilewright.ir.expr import Binary, BinaryOp, Expr, Fma, Select, Unary, UnaryOp, loads, walk
from tilewright.target.machine import Machine
from tilewright.tir.stmt import Block, For, LoopKind, Repeat, Stmt, Store, children, stmt_exprs, walk_stmts

# Counted.
_SHARED = 0.25  # of a load: what many elements share is loaded for a tile of about four of them
_STEP = 1.0  # cycles of a vector beside: addresses, the loop, the store; as copies take
# Iterations of a loop whose number depends on data, when nothing is known of it. Swept: only whether a team shares the
# kernel depends on it.
_REPEATED = 16

# Instructions of what takes several: counted in the code that `tir/math` makes; of division and roots, cycles.
_LONG: dict[UnaryOp | BinaryOp, float] = {
    UnaryOp.SQRT: 6,
    UnaryOp.RSQRT: 8,
    UnaryOp.EXP: 18,
    UnaryOp.EXP_NONPOSITIVE: 12,
    UnaryOp.LOG: 24,
    UnaryOp.TANH: 29,
    UnaryOp.SIGMOID: 21,
    UnaryOp.ERF: 25,
    UnaryOp.GELU: 23,
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
    values = list(_values(block.body, 1))
    stored = {n.buffer for n in walk_stmts(block.body) if isinstance(n, Store)}
    found = [(ld, times) for e, times in values for ld in loads(e)]
    elements = domain(block)
    work = sum(times * instructions(e) for e, times in values)
    for ld, times in found:
        if ld.buffer not in stored or times > 1:  # what many elements share is loaded for a tile of them
            work += times * (_SHARED if block.is_reduction and ld.buffer.size * 4 < elements else 1)
    cycles = elements / lanes * (work / m.loads_per_cycle + (0.0 if block.is_reduction else _STEP))
    touched = stored | {ld.buffer for ld, _ in found}
    # Windows and GEMMs read an element many times; it comes from afar once.
    nbytes = sum(min(b.bytes, elements * b.dtype.bytes) for b in touched)
    return max(cycles / m.hertz, moving_seconds(nbytes, m))


def _values(s: Stmt, times: int) -> Iterator[tuple[Expr, int]]:
    """The expressions in `s`, and how often each is evaluated."""
    for e in stmt_exprs(s):
        yield e, times
    inside = times * _iterations(s)
    for c in children(s):
        yield from _values(c, inside)


def _iterations(s: Stmt) -> int:
    match s:
        case For():
            return 1 if s.kind is LoopKind.VECTORIZED else s.extent
        case Repeat():
            return _REPEATED
        case _:
            return 1


def instructions(e: Expr) -> float:
    """Of a value; where elements are is no part of it."""
    return sum(map(instructions_of, walk(e)))


def instructions_of(e: Expr) -> float:
    """Of one node."""
    match e:
        case Unary(op=op) | Binary(op=op):
            return _LONG.get(op, 1) if e.dtype.is_float else 0
        case Fma() | Select():
            return 1
        case _:
            return 0

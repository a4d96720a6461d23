"""The time of blocks without a reduction, and of passes over data.

A kernel takes as long as its arithmetic, with what it costs to put vectors together that do not lie side by side, or as
long as its data needs to come from the cache that it fits, whichever is longer. Other families count with these what
they have beside their reductions.
"""

from collections.abc import Container, Iterable

from tilewright.cost.caches import SET_BYTES
from tilewright.cost.parallel import evenly
from tilewright.cost.stream import pass_seconds
from tilewright.cost.work import domain, instructions
from tilewright.families.gemm.recipe import load_strides, strides_along
from tilewright.ir.expr import Buffer, Expr, Load, Select, Var, free_vars, loads, walk
from tilewright.schedule.find import find_block
from tilewright.target.machine import Machine
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Iter, Store, blocks, stmt_exprs, walk_stmts

# Cycles an element costs more than in a whole vector, as measured by `benchmarks.predicted` on kernels that do so.
# Swept (docs/results/constants.md).
_TRANSPOSED = 0.9  # side by side along another loop: squares of elements go through registers
_ONE_SET = 2.0  # times that, if the lines of a square fall into one set of the first-level cache
_STRIDED = 0.5  # of every few, one
_SCATTERED = 2.5  # one by one
_NEAR = 4  # elements: a stride up to this is served by whole vectors
_STEP = 1.0  # cycles of a vector beside arithmetic and loads: addresses, the loop, the store; likewise
_RUN = 4.0  # cycles, likewise, to come to the next run of results that lie side by side


# ----------------------------------------------------------------------------------------------------- whole kernels


def alone_seconds(every: Iterable[Block], target: Target) -> float:
    """Of blocks that are kernels of their own."""
    m, lanes = target.machine, target.lanes(4)
    return sum(
        m.meeting_seconds + evenly(max(spatial_seconds(b, lanes, m), pass_seconds(block_bytes([b]), m)), m)
        for b in every
    )


def around_seconds(
    func: Func,
    name: str,
    target: Target,
    constants: frozenset[str] = frozenset(),
    *,
    without: Container[str] = (),
) -> float:
    """Of all blocks but the reduction `name`, which has them near: what it reads is made just before, and what reads
    its result finds that in registers. What reads constants alone runs at compile time. Those of `without`
    are parts of the reduction.
    """
    m, lanes, made = target.machine, target.lanes(4), find_block(func, name).store.buffer
    total = 0.0
    for b in blocks(func.body):
        read = _read(b)
        if b.name == name or b.name in without or (read and all(buffer.name in constants for buffer in read)):
            continue
        if made in read and b.try_store is not None:
            total += domain(b) / lanes * instructions(b.store.value) / m.fma_per_cycle / m.hertz
        else:
            total += spatial_seconds(b, lanes, m)
    return total


# ------------------------------------------------------------------------------------------------------- what streams


def block_bytes(every: Iterable[Block], local: Iterable[Buffer] = ()) -> float:
    """Of all buffers that these blocks read or write but for `local` ones, as far as they are touched."""
    touched: dict[Buffer, float] = {}
    for b in every:
        stored = {n.buffer for n in walk_stmts(b) if isinstance(n, Store)}
        for buffer in _read(b) | stored:
            most = float(min(buffer.bytes, domain(b) * buffer.dtype.bytes))
            touched[buffer] = max(touched.get(buffer, 0.0), most)
    near = set(local)
    return sum(n for b, n in touched.items() if b not in near)


# --------------------------------------------------------------------------------------------------------- arithmetic


def spatial_seconds(block: Block, lanes: int, m: Machine, *, is_cut: bool = True) -> float:
    """The arithmetic of a block, all of it from the nearest cache. `is_cut`: loops end where conditions change, so that
    no vector has elements of several sides.
    """
    store = block.try_store
    if store is None:
        return domain(block) * _SCATTERED / m.hertz
    inner = _side_by_side(block) or next((it for it in reversed(block.iters) if it.extent > 1), None)
    read = [ld for ld in loads(store.value) if inner is not None and _varies(ld, inner)]
    cycles = (instructions(store.value) / m.fma_per_cycle + len(read) / m.loads_per_cycle + _STEP) / lanes
    runs = float(domain(block))
    if inner is not None:
        runs /= inner.extent
        cycles += sum(_access_cycles(ld, block, inner, is_cut=is_cut) for ld in read)
        cycles += _SCATTERED if not is_cut and _chooses(store.value, inner.var) else 0.0
    return (domain(block) * cycles + runs * _RUN) / m.hertz


def _side_by_side(block: Block) -> Iter | None:
    """The iterator along which results lie side by side."""
    steps = load_strides(Load(block.store.buffer, block.store.indices), block)
    return next((it for it in reversed(block.iters) if steps.get(it.var) == 1 and it.extent > 1), None)


def _access_cycles(load: Load, block: Block, inner: Iter, *, is_cut: bool) -> float:
    """What an element of a load costs beyond its share of a vector."""
    step = strides_along(load, block, (inner,))
    if step in (0, 1):
        return 0.0
    if step is not None and abs(step) <= _NEAR:
        return _STRIDED
    if step is None or not is_cut or 1 not in load_strides(load, block).values():
        return _SCATTERED
    return _TRANSPOSED * (_ONE_SET if step * load.dtype.bytes % SET_BYTES == 0 else 1.0)


def _chooses(value: Expr, inner: Var) -> bool:
    return any(isinstance(e, Select) and inner in free_vars(e.cond) for e in walk(value))


def _varies(load: Load, inner: Iter) -> bool:
    return any(inner.var in free_vars(i) for i in load.indices)


def _read(block: Block) -> set[Buffer]:
    return {ld.buffer for n in walk_stmts(block) for e in stmt_exprs(n) for ld in loads(e)}

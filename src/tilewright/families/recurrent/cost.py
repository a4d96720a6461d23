"""The time of loops whose iterations depend on each other, and of the nests around them.

Every iteration reads all weights again. With few rows that is what it takes: they come from the cache that they fit,
and the multiply-adds are done meanwhile.
"""

from collections.abc import Callable, Collection
from math import prod
from typing import TypeAlias

from tilewright.cost.machine import Machine, machine_of
from tilewright.cost.work import domain
from tilewright.families.elementwise.cost import KERNEL_SECONDS, alone_seconds, pass_seconds, spatial_seconds
from tilewright.ir.expr import loads
from tilewright.schedule.moves import top_level
from tilewright.schedule.nest import chain
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, Stmt, blocks

# Of a nest before, between or after: what the cheapest family for it needs; None if none is for it.
NestSeconds: TypeAlias = Callable[[set[str]], float | None]

_OF_PEAK = 0.87  # of the multiply-adds of a core, that a good register tile does


def recurrent_seconds(
    func: Func, carried: Collection[For], alone: NestSeconds, target: Target, constants: frozenset[str]
) -> float:
    total = sum(_carried_seconds(nest, target) for nest in carried)
    for nest in top_level(func):
        if nest not in carried and not _is_constant(nest, constants):
            total += _nest_seconds(nest, alone, target)
    return total


def _carried_seconds(nest: For, target: Target) -> float:
    m, lanes = machine_of(target), target.lanes(4)
    times = prod(loop.extent for loop in chain(nest))
    every = list(blocks(nest))
    sums = sum(_sum_seconds(b, times, m) for b in every if b.is_reduction)
    return KERNEL_SECONDS + sums + sum(spatial_seconds(b, lanes, m) for b in every if not b.is_reduction)


def _sum_seconds(block: Block, times: int, m: Machine) -> float:
    """Of all iterations, each of which reads the largest operand anew."""
    busy = domain(block) / (m.lanes * m.fma_per_cycle * _OF_PEAK) / m.hertz
    made = block.store.buffer
    largest = max((ld.buffer.bytes for ld in loads(block.store.value) if ld.buffer is not made), default=0)
    return max(busy, times * pass_seconds(min(largest, domain(block) // times * made.dtype.bytes), m))


def _nest_seconds(nest: Stmt, alone: NestSeconds, target: Target) -> float:
    every = list(blocks(nest))
    if not any(b.is_reduction for b in every):
        return alone_seconds(every, target)
    found = alone({b.name for b in every})
    if found is not None:
        return found
    m = machine_of(target)
    return sum(domain(b) / m.lanes / m.hertz for b in every)


def _is_constant(nest: Stmt, constants: frozenset[str]) -> bool:
    """Does it run at compile time, as it reads nothing but constants?"""
    every = [b for b in blocks(nest) if b.try_store is not None]
    read = {ld.buffer.name for b in every for ld in loads(b.store.value)}
    return bool(read) and read <= constants

"""Where workers meet between the calls of a program."""

from collections.abc import Sequence

import pytest

from tilewright.driver.kernels import Item, NativeKernel, calls_of
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer
from tilewright.support.artifact import Place, Slot
from tilewright.tir.build import FuncBuilder

SIZE = 16  # elements, 64 bytes


def kernel() -> NativeKernel:
    """b = a + 1"""
    b = FuncBuilder("f")
    a = b.param("a", (SIZE,), DType.F32)
    func = b.finish(b.compute("b", (SIZE,), lambda i: a[i] + 1))
    return NativeKernel("f", func, 1, "", b"")


def barriers(calls: Sequence[tuple[Slot, Slot]]) -> list[bool]:
    """Of calls that read one place and write another."""
    slots: dict[Buffer, Slot] = {}
    items: list[Item] = []
    for n, call in enumerate(calls):
        buffers = tuple(Buffer(f"t{n}_{i}", (SIZE,), DType.F32) for i in range(2))
        slots.update(zip(buffers, call, strict=True))
        items.append(Item(kernel(), buffers))
    return [c.barrier for c in calls_of(items, slots)]


def arena(at: int) -> Slot:
    return Slot(Place.ARENA, at)


def inp(at: int) -> Slot:
    return Slot(Place.INPUT, at)


def out(at: int) -> Slot:
    return Slot(Place.OUTPUT, at)


WEIGHT = Slot(Place.CONSTANT, 0)


@pytest.mark.parametrize(
    ("calls", "meet"),
    [
        ([(inp(0), arena(0)), (arena(0), arena(64)), (arena(64), out(0))], [True, True, False]),
        ([(inp(0), arena(0)), (inp(0), arena(64)), (WEIGHT, arena(128))], [False, False, False]),
        ([(inp(0), arena(0)), (WEIGHT, arena(128)), (arena(0), arena(64))], [False, True, False]),
        ([(inp(0), arena(0)), (inp(0), arena(32))], [True, False]),
        ([(arena(0), arena(64)), (inp(0), arena(32))], [True, False]),
        ([(inp(0), out(0)), (WEIGHT, out(1))], [False, False]),
        ([(WEIGHT, out(0)), (WEIGHT, out(1)), (WEIGHT, out(0))], [False, True, False]),
    ],
    ids=[
        "each reads what the last one made",
        "no two have to do with each other",
        "the third reads what the first made",
        "both write one piece of memory",
        "the memory of what was read is used again",
        "an input is never an output",
        "the same output twice",
    ],
)
def test_workers_meet_where_they_must(calls: Sequence[tuple[Slot, Slot]], meet: list[bool]) -> None:
    assert barriers(calls) == meet

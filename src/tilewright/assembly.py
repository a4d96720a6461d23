"""The program of an artifact: what is called in which order, before and after its buffers have places."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.ir.expr import Buffer
from tilewright.kernels import Kernel, calls_of
from tilewright.support.artifact import (
    BranchStep,
    ExternalCall,
    ProgramStep,
    Segment,
    Slot,
    TensorSpec,
    WhileStep,
)
from tilewright.tir.func import External


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """A kernel call before its buffers have places."""

    kernel: Kernel
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Fork:
    cond: Buffer
    then: "list[ProgramNode]"
    otherwise: "list[ProgramNode]"


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    cond: Buffer
    body: "list[ProgramNode]"


ProgramNode: TypeAlias = "Item | External | Fork | Repeat"


def items_of(n: ProgramNode) -> list[Item]:
    match n:
        case Item():
            return [n]
        case External():
            return []
        case Fork():
            return [i for m in (*n.then, *n.otherwise) for i in items_of(m)]
        case Repeat():
            return [i for m in n.body for i in items_of(m)]


def touched(n: ProgramNode, in_place: Collection[str] = ()) -> list[tuple[Buffer, ...]]:
    """The buffers of each call in order. What a loop touches is all alive as long as the loop runs. External calls of
    the keys `in_place` are over with their inputs before they touch an output.
    """
    match n:
        case Item():
            return [n.buffers]
        case External():
            return [n.inputs, n.outputs] if n.key in in_place else [(*n.inputs, *n.outputs)]
        case Fork():
            return [(n.cond,), *(t for m in (*n.then, *n.otherwise) for t in touched(m, in_place))]
        case Repeat():
            return [(n.cond, *(b for m in n.body for t in touched(m, in_place) for b in t))]


def steps_of(nodes: list[ProgramNode], slots: Mapping[Buffer, Slot]) -> tuple[ProgramStep, ...]:
    """Runs of kernel calls become segments."""
    out: list[ProgramStep] = []
    items: list[Item] = []

    def end_segment() -> None:
        if items:
            out.append(Segment(calls_of([(i.kernel, i.buffers) for i in items], slots)))
            items.clear()

    for n in nodes:
        if isinstance(n, Item):
            items.append(n)
            continue
        end_segment()
        match n:
            case External():
                inputs, outputs = (
                    tuple((slots[b], _spec(b, b.name)) for b in bs) for bs in (n.inputs, n.outputs)
                )
                out.append(ExternalCall(n.key, inputs, outputs))
            case Fork():
                out.append(BranchStep(slots[n.cond], steps_of(n.then, slots), steps_of(n.otherwise, slots)))
            case Repeat():
                out.append(WhileStep(slots[n.cond], steps_of(n.body, slots)))
    end_segment()
    return tuple(out)


def _spec(b: Buffer, name: str) -> TensorSpec:
    return TensorSpec(name, b.dtype.numpy.name, b.shape)


def specs_of(buffers: tuple[Buffer, ...], names: list[str]) -> tuple[TensorSpec, ...]:
    return tuple(_spec(b, n) for b, n in zip(buffers, names, strict=True))

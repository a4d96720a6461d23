"""The program of an artifact: what is called in which order, before and after its buffers have places."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias, assert_never

from tilewright.driver.kernels import Item, calls_of
from tilewright.ir.expr import Buffer
from tilewright.support.artifact import ArtifactProgram, ExternalCall, Segment, Slot, TensorSpec
from tilewright.support.program import Branch, ProgramTree, While, map_program
from tilewright.tir.func import Call, External, Program

Assembly: TypeAlias = ProgramTree[Item | External, Buffer]


def assembled(
    program: Program, kernels: Callable[[Call], list[Item]], beside: Iterable[tuple[str, ...]]
) -> Assembly:
    """Calls of Funcs become calls of their kernels. Funcs `beside` each other follow each other in the program."""
    later = {name for calls in beside for name in calls[1:]}

    def items(run: list[Call | External]) -> Iterator[Item | External]:
        last: Item | External | None = None
        for step in run:
            made = kernels(step) if isinstance(step, Call) else [step]
            match last, made:
                case Item(), [Item() as only] if isinstance(step, Call) and step.func in later:
                    is_one_part = (
                        last.kernel.parts == only.kernel.parts == 1
                    )  # unless its schedule was given up
                    made = [replace(only, beside=is_one_part)]
                case _:
                    pass
            yield from made
            last = made[-1] if made else None  # those of constants have run already

    return map_program(program, items, lambda cond: cond)


def buffers_by_call(program: Assembly, in_place: Collection[str] = ()) -> list[tuple[Buffer, ...]]:
    """The buffers of each call in order. What a loop touches is all alive as long as the loop runs. External calls of
    the keys `in_place` are over with their inputs before they touch an output.
    """
    out: list[tuple[Buffer, ...]] = []
    for n in program:
        match n:
            case Item():
                if n.beside and out:  # all of what runs at the same time is alive
                    out[-1] += n.buffers
                else:
                    out.append(n.buffers)
            case External():
                out += [n.inputs, n.outputs] if n.key in in_place else [(*n.inputs, *n.outputs)]
            case Branch():
                out += [
                    (n.cond,),
                    *buffers_by_call(n.then, in_place),
                    *buffers_by_call(n.otherwise, in_place),
                ]
            case While():
                out.append((n.cond, *(b for t in buffers_by_call(n.body, in_place) for b in t)))
            case _:
                assert_never(n)
    return out


def placed(program: Assembly, slots: Mapping[Buffer, Slot]) -> ArtifactProgram:
    """Runs of kernel calls become segments."""

    def segments(run: list[Item | External]) -> Iterator[Segment | ExternalCall]:
        items: list[Item] = []
        for n in (*run, None):
            if isinstance(n, Item):
                items.append(n)
                continue
            if items:
                yield Segment(calls_of(items, slots))
                items = []
            if n is not None:
                inputs, outputs = (
                    tuple((slots[b], _spec(b, b.name)) for b in bs) for bs in (n.inputs, n.outputs)
                )
                yield ExternalCall(n.key, inputs, outputs)

    return map_program(program, segments, lambda cond: slots[cond])


def _spec(b: Buffer, name: str) -> TensorSpec:
    return TensorSpec(name, b.dtype.numpy.name, b.shape)


def specs_of(buffers: tuple[Buffer, ...], names: list[str]) -> tuple[TensorSpec, ...]:
    return tuple(_spec(b, n) for b, n in zip(buffers, names, strict=True))

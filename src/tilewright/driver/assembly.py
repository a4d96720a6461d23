"""The program of an artifact: what is called in which order, before and after its buffers have places."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias, assert_never

from tilewright.driver.kernels import Item, calls_of
from tilewright.driver.parts_in_use import size_in_use
from tilewright.graph.graph import Graph
from tilewright.graph.recurrent_states import find_states
from tilewright.graph.value_spec import value_spec
from tilewright.ir.expr import Buffer
from tilewright.support.artifact import ArtifactProgram, ExternalCall, Segment, Slot, TensorSpec
from tilewright.support.program import Branch, ProgramTree, While, map_program
from tilewright.support.sizes import Dim, dims_in
from tilewright.tir.func import Call, External, Func, Module, Program
from tilewright.tir.program import rename_calls

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


def placed(program: Assembly, slots: Mapping[Buffer, Slot], dims: Sequence[Dim] = ()) -> ArtifactProgram:
    """Runs of kernel calls become segments."""
    by_name = {d.name: d for d in dims}

    def segments(run: list[Item | External]) -> Iterator[Segment | ExternalCall]:
        items: list[Item] = []
        for n in (*run, None):
            if isinstance(n, Item):
                items.append(n)
                continue
            if items:
                yield Segment(calls_of(items, slots, by_name))
                items = []
            if n is not None:
                inputs, outputs = (
                    tuple((slots[b], _spec(b, b.name, by_name)) for b in bs) for bs in (n.inputs, n.outputs)
                )
                yield ExternalCall(n.key, inputs, outputs)

    return map_program(program, segments, lambda cond: slots[cond])


def _spec(b: Buffer, name: str, dims: Mapping[str, Dim] = MappingProxyType({})) -> TensorSpec:
    sizes = tuple(None if e is None else size_in_use(e, dims) for e in b.sizes)
    return TensorSpec(name, b.dtype.numpy.name, b.shape, sizes)


def with_scheduled(module: Module, made: Mapping[str, Func]) -> Module:
    """The module of scheduled Funcs: one that was made for several that are equal is called in place of each."""
    funcs = tuple(dict.fromkeys(made[f.name] for f in module.funcs))
    return replace(
        module, funcs=funcs, program=rename_calls(module.program, {n: f.name for n, f in made.items()})
    )


@dataclass(frozen=True, slots=True)
class Interface:
    """What a program takes and writes. Its last inputs are the sizes of open dimensions that kernels read. `in_place`
    are inputs, and the outputs that are the same buffers with more in use; `states` those that they become.
    """

    inputs: tuple[TensorSpec, ...]
    written: tuple[TensorSpec, ...]
    dims: tuple[Dim, ...]
    in_place: tuple[tuple[int, int], ...]
    states: tuple[tuple[int, int], ...]


def interface_of(graph: Graph, module: Module) -> Interface:
    """Of a graph and its Module."""
    sizes = module.inputs[len(graph.inputs) :]
    written = [replace(value_spec(v), name=n) for v, n in zip(graph.outputs, graph.output_names, strict=True)]
    found = {d for v in graph.inputs for d in dims_in(v.shape)}
    return Interface(
        (*map(value_spec, graph.inputs), *(_spec(b, b.name) for b in sizes)),
        tuple(written),
        tuple(sorted(found)),
        tuple((i, module.outputs.index(b)) for i, b in enumerate(module.inputs) if b in module.outputs),
        find_states(graph) if found else (),
    )

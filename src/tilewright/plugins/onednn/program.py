"""Programs of primitives, one for each unit.

A tensor stays as the primitive left it that made it, and is reordered only for one that wants it otherwise: if it is
a constant once and for all, when the program is made. On the border of the region tensors are row-major. Memory in
between is planned ahead; runs at the same time have memory of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float, c_void_p
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer
from tilewright.plugins.onednn import library as dnnl
from tilewright.plugins.onednn.library import BoundPrimitive, MemoryDesc, Primitive
from tilewright.runtime.memory import MemoryRegion, address_of
from tilewright.support.arrays import Array
from tilewright.tir.memory_plan import MemoryPlan, plan_memory


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A tensor as a primitive sees it; `role` is what it is to it (`library.SOURCE`, …). `is_transposed`: the last
    two dimensions are exchanged in memory. `is_free`: the library may choose how it lies.
    """

    role: int
    name: str
    shape: tuple[int, ...]
    is_transposed: bool = False
    is_free: bool = False

    @staticmethod
    def read(fields: Mapping[str, Any]) -> "TensorArg":
        """From JSON, which knows no tuples."""
        given: dict[str, Any] = {**fields, "shape": tuple(fields["shape"])}
        return TensorArg(**given)


class PrimitiveStep(NamedTuple):
    """A primitive by its name in C, and what it takes there: numbers, tensors, extents of windows, parameters. `posts`:
    what is done to each element of the result, with two numbers or an operand. A "reshape" takes nothing.
    """

    kind: str
    numbers: Sequence[int]
    tensors: Sequence[TensorArg | None]
    result: TensorArg
    window: Sequence[Sequence[int]] = ()
    parameters: Sequence[float] = ()
    posts: Sequence[tuple[int, float, float, TensorArg | None]] = ()

    @property
    def reads(self) -> list[TensorArg]:
        return [o for o in (*self.tensors, *(p[3] for p in self.posts)) if o is not None]

    def described(self, held: Callable[[TensorArg], MemoryDesc]) -> Primitive | None:
        def wanted(o: TensorArg | None) -> MemoryDesc | None:
            return o and (dnnl.free(o.shape) if o.is_free else held(o))

        if self.kind == "reshape":
            return None
        result, tensors = wanted(self.result), [wanted(o) for o in self.tensors]
        if self.kind == "concat":
            sources = (c_void_p * len(tensors))(*(t and t.address for t in tensors))
            return Primitive(self.kind, dnnl.engine(), result, len(tensors), *self.numbers, sources)
        posts = [(algorithm, alpha, beta, wanted(o)) for algorithm, alpha, beta, o in self.posts]
        rest = (*map(dnnl.dims, self.window), *map(c_float, self.parameters))
        return Primitive(self.kind, dnnl.engine(), *self.numbers, *tensors, result, *rest, posts=posts)


class Held(NamedTuple):
    """How a tensor lies, and where: in a buffer, at an address, or ~i for array i of those that are given."""

    shape: tuple[int, ...]
    layout: MemoryDesc
    place: Buffer | int


_Call: TypeAlias = tuple[Primitive, Sequence[tuple[int, Held]]]
_numbers = count()


class PrimitiveProgram:
    """A region, ready to run. `ends` are its inputs and outputs.

    To be looked at: `held` says how tensors lie, `packed` are the constants that lie otherwise than in the model,
    `reorderings` are how often something else is reordered in a run, and `plan` is that of the memory in between.
    """

    def __init__(
        self,
        steps: Sequence[PrimitiveStep],
        ends: Sequence[Sequence[TensorArg]],
        constants: Mapping[str, Array],
        threads: int,
    ) -> None:
        self._constants, self._threads, (inputs, outputs) = constants, threads, ends
        given = {o.name: (o.shape, ~i) for i, o in enumerate(inputs)}
        given |= {name: (a.shape or (1,), address_of(a)) for name, a in constants.items()}
        self.held = {name: Held(shape, dnnl.plain(shape), place) for name, (shape, place) in given.items()}
        self._results = {o.name: ~i for i, o in enumerate(outputs, len(inputs))}
        self._copies: dict[tuple[str, bool], list[Held]] = {}
        self.packed: list[MemoryRegion] = []
        self.reorderings = 0
        self._calls: list[_Call] = []
        with dnnl.using_threads(threads):
            for step in steps:
                self._add(step)
            for name, place in self._results.items():
                have = self.held[name]
                if have.place != place:
                    self._reorder(have, Held(have.shape, dnnl.plain(have.shape), place))
            self.plan = _planned(self._calls)
            self._frames = [_Frame(self._calls, self.plan)]  # those that nobody runs in

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        with dnnl.using_threads(self._threads):
            try:
                frame = self._frames.pop()
            except IndexError:
                frame = _Frame(self._calls, self.plan)
            frame.run((*inputs, *outputs))
        self._frames.append(frame)

    def _add(self, step: PrimitiveStep) -> None:
        out = step.result
        primitive = step.described(lambda o: dnnl.plain(o.shape) if o is out else self._view(o).layout)
        if primitive is None:
            self.held[out.name] = self._view(replace(step.reads[0], shape=out.shape))
            return
        tensors = [(o.role, self._fetch(o, primitive.layout(o.role))) for o in step.reads]
        layout, place = primitive.layout(out.role), self._results.get(out.name)
        if place is None or not layout.is_like(dnnl.plain(out.shape)):
            place = _buffer(layout)
        self.held[out.name] = Held(out.shape, layout, place)
        self._calls.append(self._call(primitive, *tensors, (out.role, self.held[out.name])))

    def _view(self, o: TensorArg) -> Held:
        """The operand as it lies, in its shape."""
        have = self.held[o.name]
        if have.shape == o.shape and not o.is_transposed:
            return have
        rows = self._fetch(replace(o, shape=have.shape, is_transposed=False), dnnl.plain(have.shape))
        return Held(o.shape, dnnl.plain(o.shape, o.is_transposed), rows.place)

    def _fetch(self, o: TensorArg, layout: MemoryDesc) -> Held:
        """The operand in this layout."""
        have, copies = self._view(o), self._copies.setdefault((o.name, o.is_transposed), [])
        for one in (have, *copies):
            if one.layout.is_like(layout):
                return one
        if o.name in self._constants:
            self.packed.append(MemoryRegion(layout.nbytes))
            copies.append(Held(o.shape, layout, self.packed[-1].address))
            once = [self._move(have, copies[-1])]
            _Frame(once, _planned(once)).run(())
        else:
            copies.append(Held(o.shape, layout, _buffer(layout)))
            self._reorder(have, copies[-1])
        return copies[-1]

    def _reorder(self, source: Held, target: Held) -> None:
        self._calls.append(self._move(source, target))
        self.reorderings += 1

    def _move(self, source: Held, target: Held) -> _Call:
        made = dnnl.reordering(source.layout, target.layout)
        return self._call(made, (dnnl.SOURCE, source), (dnnl.RESULT, target))

    def _call(self, primitive: Primitive, *tensors: tuple[int, Held]) -> _Call:
        role = dnnl.SCRATCHPAD
        scratch = primitive.layout(role)
        if scratch.nbytes:
            tensors = (*tensors, (role, Held((), scratch, _buffer(scratch))))
        return primitive, tensors


def _buffer(layout: MemoryDesc) -> Buffer:
    return Buffer(str(next(_numbers)), (layout.nbytes,), DType.U8)


def _planned(calls: Sequence[_Call]) -> MemoryPlan:
    touched = [[h.place for _, h in held if isinstance(h.place, Buffer)] for _, held in calls]
    return plan_memory(touched, {b for some in touched for b in some})


class _Frame:
    """Memory for one run at a time."""

    def __init__(self, calls: Sequence[_Call], plan: MemoryPlan) -> None:
        self._arena = MemoryRegion(plan.bytes)
        self._calls: list[BoundPrimitive] = []
        self._given: list[
            tuple[BoundPrimitive, int, int]
        ] = []  # tensors of calls, and the arrays that they are
        for primitive, held in calls:
            places = [
                h.place if isinstance(h.place, int) else self._arena.address + plan.offsets[h.place]
                for _, h in held
            ]
            tensors = [(r, h.layout, max(at, 0)) for (r, h), at in zip(held, places, strict=True)]
            self._calls.append(primitive.bind(tensors))
            self._given += [(self._calls[-1], i, ~at) for i, at in enumerate(places) if at < 0]

    def run(self, arrays: Sequence[Array]) -> None:
        for call, i, which in self._given:
            call.move(i, address_of(arrays[which]))
        for call in self._calls:
            call.run()

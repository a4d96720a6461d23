"""What follows from the sizes of open dimensions: numbers that kernels read, parts of calls, what is in use of arrays.

All of it is a few sums, and is kept for sizes that come again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.support.arrays import OpaqueArray
from tilewright.support.artifact import (
    SIZE_INPUT,
    KernelCall,
    Manifest,
    SizeChoice,
    TensorSpec,
    boxes_of,
    choice_at,
)
from tilewright.support.errors import Hint, UserError
from tilewright.support.sizes import Dim, SizeExpr

_KNOWN_SIZES = 4096  # whose tables are kept


class OutOfRange(UserError):
    """Sizes that the program is not made for."""


@dataclass(frozen=True, slots=True, eq=False)
class Sized:
    """What follows from the sizes of the open dimensions."""

    values: dict[str, int]
    numbers: tuple[int, ...]  # what kernels read
    choice: SizeChoice  # which calls are made
    parts: tuple[int, ...]  # of those in which that depends on sizes
    inputs: tuple[tuple[slice, ...], ...]  # what is in use of each
    outputs: tuple[tuple[slice, ...], ...]


def in_use(array: OpaqueArray, at: tuple[slice, ...]) -> OpaqueArray:
    """What is in use of an array, as a view of it: numpy would make a number of one without axes."""
    return array[at] if at else array


class OpenSizes:
    """The open dimensions of a program with these `calls`."""

    def __init__(self, manifest: Manifest, calls: Sequence[KernelCall]) -> None:
        self.dims = manifest.dims
        self._guards = manifest.guards
        self._by_name = {d.name: d for d in self.dims}
        self.inputs = manifest.given
        sizes = manifest.inputs[len(self.inputs) :]
        self.outputs = manifest.outputs
        self.read = tuple(
            s.name.removeprefix(SIZE_INPUT) for s in sizes
        )  # dimensions whose sizes kernels read
        self._boxes = boxes_of(calls)
        # Layers are alike: few calls have parts of their own, and few arrays sizes.
        self._steps = [c for c in calls for _ in range(c.steps) if c.in_use]
        self._alike: dict[SizeChoice, tuple[list[KernelCall], list[int]]] = {}
        kinds = [replace(s, name="") for s in (*self.inputs, *self.outputs)]
        self._specs = tuple(dict.fromkeys(kinds))
        self._spec_of = tuple(map(self._specs.index, kinds))
        found = {d.name: place_of(d, self.inputs) for d in self.dims}
        self._where = {name: place for name, place in found.items() if place is not None}
        self._missing = next((name for name, place in found.items() if place is None), None)
        self._known: dict[tuple[int, ...], Sized] = {}

    def of(self, shapes: Sequence[tuple[int, ...]]) -> Sized:
        """For inputs of these shapes. UserError if they do not fit each other or the program."""
        key = tuple(n for shape in shapes for n in shape)
        found = self._known.get(key)
        if found is None:
            if self._missing is not None:
                raise UserError(
                    f"no input has the dimension {self._missing}", hint="compile the program again"
                )
            values = {name: shapes[i][d] for name, (i, d) in self._where.items()}
            found = self.at(values, dict(enumerate(shapes)))
            self.keep(key, found)
        return found

    def keep(self, key: tuple[int, ...], sized: Sized) -> None:
        if len(self._known) >= _KNOWN_SIZES:
            self._known.clear()
        self._known[key] = sized

    def at(self, values: dict[str, int], shapes: Mapping[int, tuple[int, ...]]) -> Sized:
        """For these sizes of the dimensions, and inputs of these shapes. OutOfRange, or UserError if they differ."""
        for dim in self.dims:
            if not dim.allows(values[dim.name]):
                raise OutOfRange(
                    f"{dim.name} is {values[dim.name]}, and the program is made for {dim}",
                    hint=Hint(
                        f"load the model with a wider range: dims={{{dim.name!r}: (…, …)}}",
                        command=f"give a wider range: --dim {dim.name}=LEAST..MOST",
                    ),
                )
        wanted = [s.shape_at(values) for s in self._specs]
        for i, shape in shapes.items():
            if shape != wanted[self._spec_of[i]]:
                raise UserError(
                    f"the feeds do not fit each other: {self.inputs[i].name} is {list(shape)}, and should be "
                    f"{list(wanted[self._spec_of[i]])} where {', '.join(f'{n} is {v}' for n, v in values.items())}"
                )
        wrong = next((g for g in self._guards if not g.holds(values)), None)
        if wrong is not None:
            raise OutOfRange(
                f"the program is made for sizes with {wrong}",
                hint=Hint(
                    "load the model for these shapes: shapes={…}; or without ranges, for a program where one is needed",
                    command="give these shapes: --shape NAME=1x3x224x224",
                ),
            )
        choice = choice_at(self._boxes, values)
        different, call_of = self._alike.get(choice) or self._alike_at(choice)
        parts = [c.parts_at(values) // c.steps for c in different]
        slices = [tuple(map(slice, shape)) for shape in wanted]
        return Sized(
            values,
            tuple(values[n] // self._by_name[n].multiple for n in self.read),
            choice,
            tuple([parts[n] for n in call_of]),
            tuple(slices[n] for n in self._spec_of[: len(self.inputs)]),
            tuple(slices[n] for n in self._spec_of[len(self.inputs) :]),
        )

    def _alike_at(self, choice: SizeChoice) -> tuple[list[KernelCall], list[int]]:
        """Of the calls that are made, those that differ in their parts, and which of them each is like."""
        made = [c for c in self._steps if c.is_made(choice)]
        keys = [(c.in_use, c.parts, c.steps) for c in made]
        different = list(dict.fromkeys(keys))
        number = {key: n for n, key in enumerate(different)}
        some = dict(zip(keys, made, strict=True))
        found = [some[key] for key in different], [number[key] for key in keys]
        self._alike[choice] = found
        return found


def place_of(dim: Dim, inputs: Sequence[TensorSpec]) -> tuple[int, int] | None:
    """An input, and its axis, which have the size of the dimension."""
    whole = SizeExpr.of_dim(dim)
    for i, spec in enumerate(inputs):
        for d, size in enumerate(spec.sizes):
            if size == whole:
                return i, d
    return None


def number_arrays(sized: Sized) -> list[OpaqueArray]:
    """The last inputs of the program."""
    return [np.array([n], np.int64) for n in sized.numbers]
